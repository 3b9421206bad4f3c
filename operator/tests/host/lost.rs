//! What is kept and gets lost by a hand.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use yoke_api::Tenant;

use crate::harness::{Host, PKI, TENANT, condition};

/// The Cluster has had an API: tokens and data hang on what was drawn for it.
async fn note_state(host: &Host, name: &str) {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let status = serde_json::json!({"status": {"history":
        [{"version": "v1.35.4", "started": now, "completed": now}]}});
    host.clusters()
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_secrets_come_back_from_their_copies() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let (keys, user) = (format!("{id}-service-account"), format!("{id}-store"));
    note_state(&host, "a").await;
    let before = (
        host.text(PKI, &keys, "sa.key").await,
        host.text(PKI, &user, "user.creds").await,
        host.text(PKI, &user, "user.pub").await,
    );
    host.lose_secret(PKI, &keys).await;
    host.lose_secret(PKI, &user).await;
    host.bring("a", "the kept Secrets are there again", async || {
        host.secret(PKI, &keys).await.is_some() && host.secret(PKI, &user).await.is_some()
    })
    .await;
    let after = (
        host.text(PKI, &keys, "sa.key").await,
        host.text(PKI, &user, "user.creds").await,
        host.text(PKI, &user, "user.pub").await,
    );
    assert_eq!(after, before);
    // Without a copy no other key is drawn for a cluster whose tokens hang on the first.
    host.lose_secret(&hosted, "kube-apiserver").await;
    host.lose_secret(PKI, &keys).await;
    host.bring("a", "the loss is told", async || {
        condition(&host.cluster("a").await, "Degraded") == "True/KeyLost"
    })
    .await;
    assert_eq!(host.secret(PKI, &keys).await, None::<Secret>);
}

#[tokio::test(flavor = "multi_thread")]
async fn leaves_of_a_lost_ca_stay_trusted() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let former = host.text(&hosted, "kube-apiserver", "client-ca.crt").await;
    host.lose_secret(PKI, &format!("{id}-ca-g1")).await;
    host.issuer.issue(&host.client).await;
    let anew = host.text(PKI, &format!("{id}-ca-g1"), "tls.crt").await;
    host.bring("a", "the new CA is trusted", async || {
        host.text(&hosted, "kube-apiserver", "client-ca.crt")
            .await
            .contains(anew.trim())
    })
    .await;
    let both = host.text(&hosted, "kube-apiserver", "client-ca.crt").await;
    assert!(
        both.contains(former.trim()),
        "the leaves that there are must be trusted on"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn account_goes_on_without_its_first_keys() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let account = "nats-account-demo";
    let credentials = host.text(PKI, &format!("{id}-store"), "user.creds").await;
    let works = async |host: &Host| {
        let options = host.nats.connect_options(&credentials);
        let client = options
            .custom_inbox_prefix(id.inbox_prefix())
            .connect(host.nats.url())
            .await
            .unwrap();
        client
            .request(format!("$JS.API.STREAM.INFO.KINE_{id}"), "".into())
            .await
            .is_ok()
    };
    assert!(works(&host).await);
    host.lose_secret("yoke-system", account).await;
    host.bring("a", "the loss is told", async || {
        condition(&host.cluster("a").await, "StoreReady") == "False/AccountKeyLost"
    })
    .await;
    assert_eq!(
        condition(&host.cluster("a").await, "CertificatesReady"),
        "True/AsExpected"
    );
    host.reconcile_tenant().await.unwrap();
    assert!(host.secret("yoke-system", account).await.is_some());
    assert!(works(&host).await, "a user of the lost key is good on");
    // A Tenant that is restored has no status; its Clusters know the account.
    let tenants = Api::<Tenant>::all(host.client.clone());
    let known = tenants.get(TENANT).await.unwrap().status.unwrap().account;
    host.lose_secret("yoke-system", account).await;
    let nothing = serde_json::json!({"status": {"account": null}});
    tenants
        .patch_status(TENANT, &PatchParams::default(), &Patch::Merge(nothing))
        .await
        .unwrap();
    host.reconcile_tenant().await.unwrap();
    assert_eq!(tenants.get(TENANT).await.unwrap().status.unwrap().account, known);
    assert!(works(&host).await);
    host.bring("a", "the store is looked at again", async || {
        condition(&host.cluster("a").await, "StoreReady") == "True/AsExpected"
    })
    .await;
    // A Cluster that goes takes its streams along, also if nobody has made new keys yet.
    host.lose_secret("yoke-system", account).await;
    host.clusters().delete("a", &Default::default()).await.unwrap();
    host.until("the Cluster is gone", async || {
        let _ = host.reconcile("a").await;
        host.finalize(id.hosted_namespace().as_str()).await;
        host.clusters().get_opt("a").await.unwrap().is_none()
    })
    .await;
    assert!(host.secret("yoke-system", account).await.is_some());
    assert!(!host.has_stream(id.as_str()).await);
}

/// NATS that is lost keeps no certificate from its control plane, and takes the operator's time from nobody.
#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_kept_alive_while_nats_is_lost() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let began = Instant::now();
    host.restart_operator_without_nats().await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    host.lose_secret(PKI, &format!("{id}-apiserver")).await;
    host.issuer.issue(&host.client).await;
    let wanted = host.text(PKI, &format!("{id}-apiserver"), "tls.crt").await;
    host.bring("a", "the renewed certificate is copied", async || {
        host.text(&hosted, "kube-apiserver", "tls.crt").await == wanted
    })
    .await;
    assert_eq!(
        condition(&host.cluster("a").await, "StoreReady"),
        "False/StoreUnavailable"
    );
    let began = Instant::now();
    for _ in 0..5 {
        host.reconcile("a").await.unwrap();
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    host.restart_operator().await;
    host.bring("a", "the store is found again", async || {
        condition(&host.cluster("a").await, "StoreReady") == "True/AsExpected"
    })
    .await;
}
