//! The end of a log, as the operator requests it from the servers.

use std::time::{Duration, Instant};

use tokio::time::error::Elapsed;
use yoke_operator::testing::nats::Size;

use super::{LIMIT, OTHER, OWN, Server, Store, connect, timeout};

/// Timeout of requests that may have no answer.
const SHORT: Duration = Duration::from_secs(1);
const SUBJECT: &str = "kine.bcdfghjk24.log";

/// Sends one request; an error if there is no answer.
async fn ask_end(store: &Store) -> Result<Option<u64>, Elapsed> {
    let end = store.nats.find_log_end(&store.plan.id, &store.account.public_key);
    timeout(SHORT, end).await
}

/// Repeats the request until there is an answer.
async fn find_end(store: &Store) -> Option<u64> {
    let deadline = Instant::now() + LIMIT;
    loop {
        match ask_end(store).await {
            Ok(end) => return end,
            Err(_) => assert!(Instant::now() < deadline, "nobody says where the log ends"),
        }
    }
}

#[tokio::test]
async fn the_end_of_a_log_moves_with_its_records() {
    let mut server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    assert_eq!(find_end(&store).await, Some(0));
    let mut connection = store.open(&server).await;
    for expected in 1..=3 {
        assert!(connection.ask(SUBJECT, "x").await.is_reply());
        assert_eq!(find_end(&store).await, Some(expected));
    }
    let none = ask_end(&Store::draw(&nats, OTHER)).await;
    assert!(
        !matches!(none, Ok(Some(_))),
        "of an account that is not there: {none:?}"
    );
    server.stop();
    assert_eq!(find_end(&store).await, None, "who knows that NATS is away asks nobody");
}

#[tokio::test]
async fn who_leads_a_stream_says_where_it_ends() {
    let server = Server::start_cluster().await;
    let nats = connect(&server).await;
    let mut store = Store::draw(&nats, OWN);
    store.account.size = Size {
        replicas: 3,
        ..store.account.size
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    // The servers first elect a leader.
    while let Err(error) = store.ensure().await {
        assert!(Instant::now() < deadline, "streams are made: {error:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut connection = store.open(&server).await;
    for expected in 1..=3 {
        assert!(connection.ask(SUBJECT, "x").await.is_reply());
        assert_eq!(find_end(&store).await, Some(expected));
    }
}
