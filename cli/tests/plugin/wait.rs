//! Waits and their results.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use yoke_test_support::free_port;

use crate::fixtures::{DEMO, cluster, condition, demo, ready};
use crate::host::Host;

#[tokio::test(flavor = "multi_thread")]
async fn wait_tells_what_it_waits_for() {
    let host = Host::start().await;
    let running = host.begin("create cluster demo --wait --timeout 20s");
    host.until_watched().await;
    host.set(DEMO, demo("Ready", "False", "PodPending", "Waiting for the pod."));
    host.set(DEMO, cluster("demo", &[ready()]));
    let said = running.end().await;
    assert_eq!(
        (said.code, said.out.as_str()),
        (0, "cluster.yoke.drzzl.io/demo created\n")
    );
    let lines: Vec<_> = said
        .err
        .lines()
        .map(|line| line.split_once("s  ").map_or(line, |(_, rest)| rest))
        .collect();
    assert_eq!(
        lines,
        [
            "Waiting for the pod.",
            "ready",
            "next: kubectl yoke kubeconfig demo -n t --merge"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_at_a_refusal_and_at_its_limit() {
    let host = Host::start().await;
    host.set(DEMO, demo("Accepted", "False", "UnknownVersion", "v9 is not offered."));
    let said = host.run("kubeconfig demo --wait --timeout 20s").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .contains("error: Cluster demo is refused (UnknownVersion): v9 is not offered.\nhint: "),
        "{}",
        said.err
    );

    host.set(DEMO, demo("Ready", "False", "PodPending", "Waiting for the pod."));
    let said = host.run("kubeconfig demo --wait=true --timeout=1s").await;
    assert_eq!(said.code, 3);
    assert!(
        said.err
            .contains("error: Cluster demo did not become ready within 1s; last seen: Waiting for the pod.\n"),
        "{}",
        said.err
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_that_is_not_known_yet_is_waited_through() {
    let missing = || condition("Accepted", "False", "TenantMissing", "There is no Tenant t.");
    let host = Host::start().await;
    host.set(DEMO, cluster("demo", &[missing()]));
    let running = host.begin("kubeconfig demo --wait --timeout 20s");
    running.until_err("There is no Tenant t.").await;
    host.until_watched().await;
    host.set(DEMO, demo("Ready", "False", "PodPending", "Waiting for the pod."));
    running.until_err("Waiting for the pod.").await;
    host.set(DEMO, cluster("demo", &[missing()]));
    // Nothing changes any more: a lasting refusal is an error long before the wait's own timeout.
    let said = host.run("kubeconfig demo --wait --timeout 25s").await;
    assert_eq!(said.code, 1);
    assert!(
        said.err
            .contains("error: Cluster demo is refused (TenantMissing): There is no Tenant t.\n"),
        "{}",
        said.err
    );
    assert_eq!(running.end().await.code, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_is_a_switch_and_its_time_another_option() {
    let host = Host::start().await;
    for (line, code, part) in [
        ("kubeconfig demo --wait 5m", 2, "unexpected argument '5m'"),
        ("kubeconfig demo --timeout 5m", 2, "--wait"),
        ("create cluster demo --timeout 5m", 2, "--wait"),
        ("create cluster demo --wait=perhaps", 2, "'perhaps'"),
        ("delete cluster demo --yes --timeout 5m", 1, "not found"),
        ("create tenant t --timeout 5m --dry-run=client", 0, ""),
    ] {
        let said = host.run(line).await;
        assert!(said.code == code && said.err.contains(part), "{line}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_a_host_that_is_away_says_so_and_goes_on() {
    let (address, host) = absent_host();
    let running = host.begin("kubeconfig demo --wait --timeout 25s");
    let trouble = format!("   0s  cannot reach the host's API at {}/: ", host.url());
    running.until_err(&trouble).await;
    running.until_err("; trying again\n").await;
    host.set(DEMO, demo("Ready", "False", "PodPending", "Waiting for the pod."));
    host.serve(TcpListener::bind(address).await.unwrap());
    running.until_err("s  the host's API answers\n").await;
    running.until_err("Waiting for the pod.").await;
    host.until_watched().await;
    host.set(DEMO, cluster("demo", &[ready()]));
    let said = running.end().await;
    assert_eq!(said.err.matches("cannot reach").count(), 1, "{}", said.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_a_host_that_stays_away_ends_with_why() {
    let (_, host) = absent_host();
    let said = host.run("kubeconfig demo --wait --timeout 1s").await;
    assert_eq!(said.code, 3);
    let error = format!(
        "error: Cluster demo did not become ready within 1s; last seen: cannot reach the host's API at {}/: ",
        host.url()
    );
    assert!(said.err.contains(&error), "{}", said.err);
    assert_eq!(said.err.matches("trying again").count(), 1, "{}", said.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_what_is_not_there_says_so() {
    let host = Host::start().await;
    let running = host.begin("kubeconfig demo --wait --timeout 20s");
    running.until_err("   0s  there is no Cluster demo yet\n").await;
    host.until_watched().await;
    host.set(DEMO, demo("Ready", "False", "PodPending", "Waiting for the pod."));
    running.until_err("Waiting for the pod.").await;
    host.remove(DEMO);
    let said = running.end().await;
    assert!(
        said.code == 1 && said.err.contains("error: Cluster demo was deleted during the wait\n"),
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_for_a_host_that_is_silent_says_so() {
    let host = Host::start().await;
    host.stall("clusters");
    let said = host.run("kubeconfig demo --wait --timeout 4s").await;
    assert_eq!(said.code, 3);
    let silence = format!("   3s  no answer yet from the host's API at {}/\n", host.url());
    assert!(said.err.starts_with(&silence), "{}", said.err);
}

/// A host at an address without a listener.
fn absent_host() -> (SocketAddr, Host) {
    let address = ([127, 0, 0, 1], free_port()).into();
    (address, Host::new(&format!("http://{address}")))
}
