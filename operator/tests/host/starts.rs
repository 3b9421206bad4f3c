//! Every start of a control plane has a higher incarnation than all earlier ones.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt as _};
use yoke_api::JoinToken;
use yoke_pki::cert_manager::Certificate;

use crate::harness::{Host, PKI, TENANT, condition};
use crate::readiness::run_pod;

/// Users may create any number of objects with the operator's label. The first lists still
/// complete.
#[tokio::test(flavor = "multi_thread")]
async fn the_operator_starts_with_more_than_a_thousand_objects() {
    let mut host = Host::start().await;
    let maps = host.api::<ConfigMap>("yoke-system");
    let make = |index: usize| {
        let map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": format!("a{index}"),
            "labels": {"app.kubernetes.io/managed-by": "yoke-operator", "yoke.drzzl.io/tenant": format!("t{index}"),
                "yoke.drzzl.io/cluster": "a"}}}))
        .unwrap();
        let maps = maps.clone();
        async move { maps.create(&PostParams::default(), &map).await.map(|_| ()) }
    };
    futures::stream::iter((0..1200).map(make))
        .buffer_unordered(32)
        .try_collect::<()>()
        .await
        .unwrap();
    host.restart_operator().await;
    assert!(host.context.host.caches.config_maps.count() >= 1200);
}

/// Returns the incarnation in the StatefulSet; `None` if there is none.
async fn incarnation_of(host: &Host, hosted: &str) -> Option<u64> {
    let template = host.stateful_set(hosted).await?.spec?.template;
    let annotations = template.metadata?.annotations?;
    let argument = format!("--incarnation={}", annotations["yoke.drzzl.io/incarnation"]);
    let store = &template.spec?.containers[0];
    assert!(
        store.args.as_ref()?.contains(&argument),
        "the store's argument differs from the annotation"
    );
    annotations["yoke.drzzl.io/incarnation"].parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_start_raises_the_incarnation() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let assert_stable = async |host: &Host, expected: u64| {
        for _ in 0..4 {
            host.reconcile("a").await.unwrap();
            assert_eq!(incarnation_of(host, &hosted).await, Some(expected));
        }
    };
    // The first incarnation is higher than any that is recorded in the streams of an earlier
    // Cluster with this identity.
    let now = u64::try_from(k8s_openapi::jiff::Timestamp::now().as_second()).unwrap();
    let first = incarnation_of(&host, &hosted).await.unwrap();
    assert!((now - 60..=now).contains(&first), "{first} at {now}");
    assert_stable(&host, first).await;
    host.restart_operator().await;
    assert_stable(&host, first).await;
    host.patch_cluster("a", serde_json::json!({"spec": {"version": "v1.35.5"}}))
        .await;
    // A change of the version raises it.
    let incarnation = async || incarnation_of(&host, &hosted).await;
    host.reconcile_until_equal("a", "the incarnation", incarnation, Some(first + 1))
        .await;
    assert_stable(&host, first + 1).await;
    // Sleep and wake use the same template.
    host.patch_cluster("a", serde_json::json!({"spec": {"state": "Asleep"}}))
        .await;
    assert_stable(&host, first + 1).await;
    host.delete::<StatefulSet>(&hosted, "control-plane").await;
    // A StatefulSet that is created again has another one.
    host.reconcile_until_equal("a", "the incarnation", incarnation, Some(first + 2))
        .await;
    assert_stable(&host, first + 2).await;
    // The incarnation survives the loss of the user's copy and of the persisted Secret.
    host.lose_secret(PKI, &format!("{id}-store")).await;
    assert_stable(&host, first + 2).await;
}

/// While a certificate is being issued again, the control plane is still repaired, and follows its
/// spec.
#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_is_repaired_while_certificates_are_pending() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let first = incarnation_of(&host, &hosted).await;
    host.lose_secret(PKI, &format!("{id}-kube-scheduler")).await;
    let patch = async |value: serde_json::Value| {
        let sets = host.api::<StatefulSet>(&hosted);
        let params = kube::api::PatchParams::default();
        sets.patch("control-plane", &params, &kube::api::Patch::Merge(value))
            .await
            .unwrap();
    };
    patch(serde_json::json!({"spec": {"replicas": 0}})).await;
    let observe = async || {
        host.reconcile("a").await.unwrap();
        host.replicas("a").await
    };
    host.until_equal("the replicas", observe, Some(1)).await;
    assert_eq!(
        incarnation_of(&host, &hosted).await,
        first,
        "the control plane was started again"
    );
    host.patch_cluster("a", serde_json::json!({"spec": {"version": "v1.35.5"}}))
        .await;
    // The version changes.
    let observe = async || {
        host.reconcile("a").await.unwrap();
        incarnation_of(&host, &hosted).await
    };
    let expected = first.map(|first| first + 1);
    host.until_equal("the incarnation", observe, expected).await;
    assert_eq!(
        condition(&host.cluster("a").await, "CertificatesReady"),
        "False/CertificatesPending"
    );
    host.reconcile_until_condition("a", "CertificatesReady", "True/AsExpected")
        .await;
    assert_eq!(incarnation_of(&host, &hosted).await, first.map(|first| first + 1));
}

/// On a node that is about to shut down without a replacement, a stopped pod may not start again.
#[tokio::test(flavor = "multi_thread")]
async fn upgrades_on_a_draining_node_run_one_at_a_time() {
    let mut host = Host::start().await;
    let node = serde_json::json!({"metadata": {"name": "one"},
        "spec": {"taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]}});
    let node: Node = serde_json::from_value(node).unwrap();
    let nodes = Api::<Node>::all(host.client.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let mut firsts = Vec::new();
    for name in ["a", "b"] {
        host.bring_up(name).await;
        run_pod(&host, name).await;
        let hosted = host.hosted(name).await;
        host.bind(&hosted, "control-plane-0", "one").await;
        firsts.push(incarnation_of(&host, &hosted).await.unwrap());
    }
    let is_upgraded = async |host: &Host, index: usize, name: &str| {
        incarnation_of(host, &host.hosted(name).await).await == Some(firsts[index] + 1)
    };
    host.upgrade_operator("registry.example/kine-nats:next").await;
    let drains_known = async || {
        host.context.notices.check(&host.context.host);
        let pods = host.context.host.caches.pods.state();
        let drains = pods.iter().map(|pod| host.context.notices.of(&pod.uid().unwrap()));
        drains.map(|drain| drain.is_some()).collect::<Vec<_>>()
    };
    host.until_equal("the known drains of the pods", drains_known, [true, true])
        .await;
    host.reconcile_until_equal("a", "the upgrade of a", async || is_upgraded(&host, 0, "a").await, true)
        .await;
    for _ in 0..3 {
        host.reconcile("b").await.unwrap();
        assert!(!is_upgraded(&host, 1, "b").await, "the upgrade of a was not complete");
    }
}

/// A new release of the operator changes one control plane at a time: the next one only when the
/// last one runs. In production it is four at a time, here one.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_upgrade_restarts_a_few_control_planes_at_a_time() {
    let mut host = Host::start().await;
    host.patch_tenant(serde_json::json!({"spec": {"quota": {"clusters": 5}}}))
        .await;
    let mut firsts = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        host.bring_up(name).await;
        run_pod(&host, name).await;
        firsts.push(incarnation_of(&host, &host.hosted(name).await).await.unwrap());
    }
    let is_upgraded = async |host: &Host, index: usize, name: &str| {
        incarnation_of(host, &host.hosted(name).await).await == Some(firsts[index] + 1)
    };
    host.upgrade_operator("registry.example/kine-nats:next").await;
    host.reconcile_until_equal("a", "the upgrade of a", async || is_upgraded(&host, 0, "a").await, true)
        .await;
    for _ in 0..4 {
        host.reconcile("a").await.unwrap();
        host.reconcile("b").await.unwrap();
        assert!(!is_upgraded(&host, 1, "b").await, "the upgrade of a was not complete");
    }
    host.patch_cluster("c", serde_json::json!({"spec": {"version": "v1.35.5"}}))
        .await;
    // A change by the owner does not wait.
    host.reconcile_until_equal("c", "the update of c", async || is_upgraded(&host, 2, "c").await, true)
        .await;
    let token = serde_json::json!({"metadata": {"name": "j"}, "spec": {"clusterName": "d"}});
    let token: JoinToken = serde_json::from_value(token).unwrap();
    let tokens = host.api::<JoinToken>(TENANT);
    tokens.create(&Default::default(), &token).await.unwrap();
    let serving = format!("{}-apiserver", host.cluster("d").await.id().unwrap());
    let requested = async || host.api::<Certificate>(PKI).get(&serving).await.unwrap().spec.dns_names;
    host.reconcile_until("d", "another name in the Certificate", requested, |names| {
        names.iter().any(|name| name.starts_with("konnectivity."))
    })
    .await;
    host.lose_secret(PKI, &serving).await;
    // A change for a worker does not wait.
    host.reconcile_until_equal("d", "the update of d", async || is_upgraded(&host, 3, "d").await, true)
        .await;

    let pods = host.api::<Pod>(&host.hosted("a").await);
    let now = DeleteParams::default().grace_period(0);
    pods.delete("control-plane-0", &now).await.unwrap();
    run_pod(&host, "a").await;
    let observe = async || {
        host.reconcile("a").await.unwrap();
        is_upgraded(&host, 1, "b").await
    };
    host.reconcile_until_equal("b", "the upgrade of b", observe, true).await;

    host.reconcile("e").await.unwrap();
    assert!(!is_upgraded(&host, 4, "e").await, "the upgrade of b was not complete");
    host.clusters().delete("b", &Default::default()).await.unwrap();
    // A deleted Cluster blocks no upgrade.
    let observe = async || {
        host.reconcile("b").await.unwrap();
        is_upgraded(&host, 4, "e").await
    };
    host.reconcile_until_equal("e", "the upgrade of e", observe, true).await;
}
