//! Leader election among several operators, with a Lease in a real API.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, Config};
use tokio::time::timeout;
use yoke_operator::testing::{Election, LEASE, Terms};
use yoke_runtime::Readiness;
use yoke_test_support::eventually;

use crate::harness::Host;

const NAMESPACE: &str = "yoke-system";
const TERMS: Terms = Terms {
    term: Duration::from_secs(5),
    renew: Duration::from_millis(300),
    poll: Duration::from_millis(100),
};
const LIMIT: Duration = Duration::from_secs(20);

fn operator(client: &Client, name: &str) -> Election {
    let check = Readiness::new().check("lease");
    Election::new(client.clone(), NAMESPACE, name.to_owned(), TERMS, check)
}

async fn win(election: &mut Election) -> Duration {
    let start = Instant::now();
    timeout(LIMIT, election.win()).await.unwrap();
    start.elapsed()
}

async fn holder(host: &Host) -> Option<String> {
    let lease = host.api::<Lease>(NAMESPACE).get_opt(LEASE).await.unwrap();
    lease?.spec.unwrap().holder_identity
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_waits_until_the_lease_is_released() {
    let host = Host::start().await;
    let (mut first, mut second) = (operator(&host.client, "a"), operator(&host.client, "b"));
    win(&mut first).await;
    let handle = first.clone();
    let hold = tokio::spawn(async move { first.hold().await });
    let waited = timeout(TERMS.term * 2, second.win()).await;
    assert!(waited.is_err(), "both operators won");
    // A standby operator releases nothing.
    second.release().await;
    assert_eq!(holder(&host).await.as_deref(), Some("a"));
    hold.abort();
    assert!(hold.await.unwrap_err().is_cancelled());
    handle.release().await;
    assert_eq!(holder(&host).await, None);
    let waited = win(&mut second).await;
    assert!(
        waited < TERMS.term,
        "the operator waited for {waited:?}, although the Lease had no holder"
    );
    assert_eq!(holder(&host).await.as_deref(), Some("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_leader_is_replaced_and_notices_it() {
    let host = Host::start().await;
    let (mut first, mut second) = (operator(&host.client, "a"), operator(&host.client, "b"));
    win(&mut first).await;
    let leadership = first.leadership();
    timeout(LIMIT, leadership.wait()).await.unwrap();
    let waited = win(&mut second).await;
    assert!(
        waited >= TERMS.term,
        "the second operator won after {waited:?}, beside the first"
    );
    timeout(LIMIT, second.leadership().wait()).await.unwrap();
    let waited = timeout(TERMS.term, leadership.wait()).await;
    assert!(waited.is_err(), "the first operator still counts as the holder");
    let lost = timeout(LIMIT, first.hold()).await.unwrap();
    assert_eq!(lost.holder, "b");
    assert_eq!(holder(&host).await.as_deref(), Some("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_process_of_the_leader_wins_at_once() {
    let host = Host::start().await;
    win(&mut operator(&host.client, "a")).await;
    let waited = win(&mut operator(&host.client, "a")).await;
    assert!(
        waited < TERMS.term,
        "the operator waited for {waited:?} for its own Lease"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_lease_is_created_again() {
    let host = Host::start().await;
    let mut first = operator(&host.client, "a");
    win(&mut first).await;
    host.delete::<Lease>(NAMESPACE, LEASE).await;
    let hold = tokio::spawn(async move { first.hold().await });
    let expected = Some("a".to_owned());
    host.until_equal("the holder of the new Lease", async || holder(&host).await, expected)
        .await;
    assert!(!hold.is_finished(), "the holder gave up");
    hold.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_lease_is_reported() {
    yoke_runtime::install_crypto();
    let unreachable = Client::try_from(Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
    let readiness = Readiness::new();
    let mut election = Election::new(unreachable, NAMESPACE, "a".into(), TERMS, readiness.check("lease"));
    let reason = async || Ok::<_, Infallible>(readiness.failing().get("lease").cloned());
    let reported = eventually("the reason of the failing check", LIMIT, reason, |reason| {
        reason
            .as_ref()
            .is_some_and(|reason| reason.starts_with("requesting the Lease yoke-operator"))
    });
    tokio::select! {
        () = election.win() => panic!("the operator won without a Lease"),
        reported = reported => reported.unwrap(),
    };
}
