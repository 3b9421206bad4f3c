//! Leader election among several operators, with a Lease in a real API.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, Config};
use tokio::time::{sleep, timeout};
use yoke_operator::testing::{Election, LEASE, Terms};
use yoke_runtime::Readiness;

use crate::harness::Host;

const NAMESPACE: &str = "yoke-system";
const TERMS: Terms = Terms {
    term: Duration::from_secs(5),
    renew: Duration::from_millis(300),
    look: Duration::from_millis(100),
};
const LIMIT: Duration = Duration::from_secs(20);

fn operator(client: &Client, name: &str) -> Election {
    let check = Readiness::new().check("lease");
    Election::new(client.clone(), NAMESPACE, name.to_owned(), TERMS, check)
}

async fn win(election: &mut Election) -> Duration {
    let began = Instant::now();
    timeout(LIMIT, election.win()).await.unwrap();
    began.elapsed()
}

async fn holder(host: &Host) -> Option<String> {
    let lease = host.api::<Lease>(NAMESPACE).get_opt(LEASE).await.unwrap();
    lease?.spec.unwrap().holder_identity
}

#[tokio::test(flavor = "multi_thread")]
async fn another_stands_by_until_the_lease_is_left() {
    let host = Host::start().await;
    let (mut first, mut second) = (operator(&host.client, "a"), operator(&host.client, "b"));
    win(&mut first).await;
    let leaving = first.clone();
    let holding = tokio::spawn(async move { first.hold().await });
    let waited = timeout(TERMS.term * 2, second.win()).await;
    assert!(waited.is_err(), "two act at once");
    // A standby operator releases nothing.
    second.leave().await;
    assert_eq!(holder(&host).await.as_deref(), Some("a"));
    holding.abort();
    assert!(holding.await.unwrap_err().is_cancelled());
    leaving.leave().await;
    assert_eq!(holder(&host).await, None);
    let waited = win(&mut second).await;
    assert!(
        waited < TERMS.term,
        "it waited for {waited:?}, though nobody held the Lease"
    );
    assert_eq!(holder(&host).await.as_deref(), Some("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_fell_silent_is_followed_and_hears_of_it() {
    let host = Host::start().await;
    let (mut first, mut second) = (operator(&host.client, "a"), operator(&host.client, "b"));
    win(&mut first).await;
    let held = first.held();
    timeout(LIMIT, held.wait()).await.unwrap();
    let waited = win(&mut second).await;
    assert!(waited >= TERMS.term, "it acted after {waited:?} beside another");
    timeout(LIMIT, second.held().wait()).await.unwrap();
    let begins = timeout(TERMS.term, held.wait()).await;
    assert!(begins.is_err(), "the first one begins something beside the other");
    let lost = timeout(LIMIT, first.hold()).await.unwrap();
    assert_eq!(lost.holder, "b");
    assert_eq!(holder(&host).await.as_deref(), Some("b"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_process_of_a_pod_goes_on_at_once() {
    let host = Host::start().await;
    win(&mut operator(&host.client, "a")).await;
    let waited = win(&mut operator(&host.client, "a")).await;
    assert!(waited < TERMS.term, "it waited for {waited:?} for itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_gone_is_made_anew() {
    let host = Host::start().await;
    let mut first = operator(&host.client, "a");
    win(&mut first).await;
    host.delete::<Lease>(NAMESPACE, LEASE).await;
    let holding = tokio::spawn(async move { first.hold().await });
    host.until("the Lease is there again", async || {
        holder(&host).await.as_deref() == Some("a")
    })
    .await;
    assert!(!holding.is_finished(), "its holder gave up");
    holding.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_cannot_be_read_is_told() {
    yoke_runtime::install_crypto();
    let nobody = Client::try_from(Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
    let readiness = Readiness::new();
    let mut election = Election::new(nobody, NAMESPACE, "a".into(), TERMS, readiness.check("lease"));
    let told = async {
        let is_told = |why: &String| why.starts_with("requesting the Lease yoke-operator");
        while !readiness.failing().get("lease").is_some_and(is_told) {
            sleep(TERMS.look).await;
        }
    };
    tokio::select! {
        () = election.win() => panic!("nobody has given it the Lease"),
        told = timeout(LIMIT, told) => told.expect("it is told"),
    }
}
