//! Where a log ends, as the operator asks the servers.

use std::time::{Duration, Instant};

use yoke_operator::nats::Size;

use super::{OTHER, OWN, Server, Store, connect, timeout};

const SHORT: Duration = Duration::from_millis(900);
const SUBJECT: &str = "kine.bcdfghjk24.log";

async fn find_end(store: &Store) -> Option<u64> {
    let end = store.nats.find_log_end(&store.plan.id, &store.account.public_key);
    timeout(SHORT, end).await.ok()?
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
    assert_eq!(
        find_end(&Store::draw(&nats, OTHER)).await,
        None,
        "of an account that is not there"
    );
    server.stop();
    let began = Instant::now();
    assert_eq!(find_end(&store).await, None, "NATS is away");
    assert!(began.elapsed() < SHORT * 2, "{:?}", began.elapsed());
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
    // The servers elect a leader first.
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
