//! The end of a log, as the operator requests it from the servers.

use std::time::Duration;

use tokio::time::error::Elapsed;
use yoke_operator::testing::nats::Size;
use yoke_test_support::eventually;

use super::{LIMIT, OTHER, OWN, Server, Store, connect, timeout};

/// Timeout of requests that may have no answer.
const SHORT: Duration = Duration::from_secs(1);
/// Timeout of the first election of a leader.
const START_LIMIT: Duration = Duration::from_secs(30);
const SUBJECT: &str = "kine.bcdfghjk24.log";

/// Sends one request; an error if there is no answer.
async fn request_end(store: &Store) -> Result<Option<u64>, Elapsed> {
    let end = store.nats.find_log_end(&store.plan.id, &store.account.public_key);
    timeout(SHORT, end).await
}

/// Repeats the request until there is an answer.
async fn find_end(store: &Store) -> Option<u64> {
    eventually("the end of the log", LIMIT, async || request_end(store).await, |_| true)
        .await
        .unwrap()
}

#[tokio::test]
async fn the_end_of_a_log_follows_its_records() {
    let mut server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    assert_eq!(find_end(&store).await, Some(0));
    let mut connection = store.open(&server).await;
    for expected in 1..=3 {
        assert!(connection.request(SUBJECT, "x").await.is_reply());
        assert_eq!(find_end(&store).await, Some(expected));
    }
    let none = request_end(&Store::draw(&nats, OTHER)).await;
    assert!(!matches!(none, Ok(Some(_))), "an end for a missing account: {none:?}");
    server.stop();
    assert_eq!(find_end(&store).await, None, "requested although NATS is lost");
}

#[tokio::test]
async fn the_leader_of_a_replicated_log_reports_its_end() {
    let server = Server::start_cluster().await;
    let nats = connect(&server).await;
    let mut store = Store::draw(&nats, OWN);
    store.account.size = Size {
        replicas: 3,
        ..store.account.size
    };
    // The servers first elect a leader.
    eventually("the streams", START_LIMIT, async || store.ensure().await, |_| true)
        .await
        .unwrap();
    let mut connection = store.open(&server).await;
    for expected in 1..=3 {
        assert!(connection.request(SUBJECT, "x").await.is_reply());
        assert_eq!(find_end(&store).await, Some(expected));
    }
}
