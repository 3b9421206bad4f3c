//! Loss of persisted material by a manual deletion.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};

use crate::harness::{Host, PKI, condition};

/// Less than five waits until NATS counts as lost, of four seconds each.
const LONG: Duration = Duration::from_secs(15);

/// Records that the Cluster has had an API: tokens and data depend on its generated keys.
async fn record_state(host: &Host, name: &str) {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let status = serde_json::json!({"status": {"history":
        [{"version": "v1.35.4", "started": now, "completed": now}]}});
    host.clusters()
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_secrets_are_restored_from_their_copies() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let (keys, user) = (format!("{id}-service-account"), format!("{id}-store"));
    record_state(&host, "a").await;
    let before = (
        host.text(PKI, &keys, "sa.key").await,
        host.text(PKI, &user, "user.creds").await,
        host.text(PKI, &user, "user.pub").await,
    );
    host.lose_secret(PKI, &keys).await;
    host.lose_secret(PKI, &user).await;
    let observe = async || {
        (
            host.secret(PKI, &keys).await.is_some(),
            host.secret(PKI, &user).await.is_some(),
        )
    };
    host.reconcile_until_equal("a", "the existence of both Secrets", observe, (true, true))
        .await;
    let after = (
        host.text(PKI, &keys, "sa.key").await,
        host.text(PKI, &user, "user.creds").await,
        host.text(PKI, &user, "user.pub").await,
    );
    assert_eq!(after, before);
    // Without a copy, no new key is generated for a cluster whose tokens depend on the lost one.
    host.lose_secret(&hosted, "kube-apiserver").await;
    host.lose_secret(PKI, &keys).await;
    host.reconcile_until_condition("a", "Degraded", "True/KeyLost").await;
    assert_eq!(host.secret(PKI, &keys).await, None::<Secret>);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_a_lost_ca_stay_trusted() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let previous = host.text(&hosted, "kube-apiserver", "client-ca.crt").await;
    host.lose_secret(PKI, &format!("{id}-ca-g1")).await;
    host.issuer.issue(&host.client).await;
    let next = host.text(PKI, &format!("{id}-ca-g1"), "tls.crt").await;
    let trusted = async || host.text(&hosted, "kube-apiserver", "client-ca.crt").await;
    host.reconcile_until("a", "the new CA among the trusted ones", trusted, |trusted| {
        trusted.contains(next.trim())
    })
    .await;
    assert!(
        trusted().await.contains(previous.trim()),
        "existing certificates are no longer trusted"
    );
}

/// The account is known by its name, which is also in the status. Its data depends on no other part
/// of the Secrets.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_survives_the_loss_of_its_secrets() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let store = format!("{id}-store");
    record_state(&host, "a").await;
    let account = host.text(PKI, &store, "account.pub").await;
    let previous = host.text(PKI, &store, "user.creds").await;
    assert!(host.accepts_user(&previous).await && host.has_stream(&account, id.as_str()).await);
    host.lose_secret(PKI, &store).await;
    host.lose_secret(&hosted, "kine-nats").await;
    let has_user = async || {
        let credentials = host.text(PKI, &store, "user.creds").await;
        !credentials.is_empty() && host.accepts_user(&credentials).await
    };
    host.reconcile_until_equal("a", "the acceptance of another user", has_user, true)
        .await;
    assert_eq!(host.text(PKI, &store, "account.pub").await, account);
    assert!(!host.accepts_user(&previous).await, "the lost user is still accepted");
    assert!(host.events().await.contains(&"KeyLost".to_owned()));
    // If nothing names the account, no new one is created: it would have none of the data.
    host.lose_secret(PKI, &store).await;
    host.lose_secret(&hosted, "kine-nats").await;
    let nothing = serde_json::json!({"status": {"storage": null}});
    host.clusters()
        .patch_status("a", &PatchParams::default(), &Patch::Merge(nothing))
        .await
        .unwrap();
    host.reconcile_until_condition("a", "Degraded", "True/KeyLost").await;
    assert_eq!(host.secret(PKI, &store).await, None::<Secret>);
}

/// A Cluster whose account belongs to another, as when Tenants had accounts, touches neither the
/// account nor its data.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_of_another_cluster_is_not_changed() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let account = host.create_account("zzzzzzzzz2").await;
    let claims = host.context.nats.find_account(&account).await.unwrap();
    let named = serde_json::json!({"stringData": {"account.pub": account}});
    host.api::<Secret>(PKI)
        .patch(&format!("{id}-store"), &PatchParams::default(), &Patch::Merge(named))
        .await
        .unwrap();
    host.reconcile_until_condition("a", "StoreReady", "False/IdentityConflict")
        .await;
    host.take_down("a").await;
    assert_eq!(host.context.nats.find_account(&account).await.unwrap(), claims);
}

/// While NATS is not reachable, certificates still reach the control planes, and reconciliations
/// are not delayed.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_are_renewed_while_nats_is_lost() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    // NATS never becomes reachable: a wait for it would last forever.
    let restarted = tokio::time::timeout(LONG, host.restart_operator_without_nats());
    restarted.await.expect("an operator starts without NATS");
    host.lose_secret(PKI, &format!("{id}-apiserver")).await;
    host.issuer.issue(&host.client).await;
    let renewed = host.text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    let copy = async || host.text(&hosted, "kube-apiserver", "tls.crt").await;
    host.reconcile_until_equal("a", "the copy of the certificate", copy, renewed)
        .await;
    assert_eq!(
        condition(&host.cluster("a").await, "StoreReady"),
        "False/StoreUnavailable"
    );
    let start = Instant::now();
    for _ in 0..5 {
        host.reconcile("a").await.unwrap();
    }
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    host.restart_operator().await;
    host.reconcile_until_condition("a", "StoreReady", "True/AsExpected")
        .await;
    // The loss of the log is reported, and the log is not replaced by an empty one.
    record_state(&host, "a").await;
    let account = host.text(PKI, &format!("{id}-store"), "account.pub").await;
    host.nats.lose_streams(&account).await;
    host.context.memory.forget_stores();
    host.reconcile_until_condition("a", "Degraded", "True/StoreLost").await;
    assert!(!host.has_stream(&account, id.as_str()).await);
}
