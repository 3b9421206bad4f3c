//! A Cluster that reaches its workers through konnectivity agents.

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::api::PostParams;
use yoke_api::cluster::Konnectivity;
use yoke_api::{Cluster, JoinToken};
use yoke_pki::cert_manager::Certificate;

use crate::harness::{Host, PKI, TENANT};
use crate::readiness::run_ready;

const SERVER: &str = "konnectivity-server";

/// Returns the control plane's containers, and the digest of the files that they read only once.
async fn template(host: &Host, hosted: &str) -> (Vec<String>, String) {
    let template = host.stateful_set(hosted).await.unwrap().spec.unwrap().template;
    let names = template
        .spec
        .unwrap()
        .containers
        .into_iter()
        .map(|container| container.name);
    let annotations = template.metadata.unwrap().annotations.unwrap();
    (names.collect(), annotations["yoke.drzzl.io/config-digest"].clone())
}

async fn has_server(host: &Host, hosted: &str) -> bool {
    template(host, hosted).await.0.iter().any(|name| name == SERVER)
}

/// Reconciles until the control plane has a konnectivity-server, or until it has none.
async fn reconcile_until_server(host: &Host, hosted: &str, expected: bool) {
    let observe = async || has_server(host, hosted).await;
    host.reconcile_until_equal("a", "the existence of a konnectivity-server", observe, expected)
        .await;
}

/// Returns the configuration that is published to ingress-xds.
async fn published(host: &Host, hosted: &str) -> String {
    let map = host.api::<ConfigMap>(hosted).get("yoke-ingress").await.unwrap();
    map.data.unwrap().remove("ingress.json").unwrap()
}

async fn ports(host: &Host, hosted: &str) -> Vec<i32> {
    let service = host.api::<Service>(hosted).get("a").await.unwrap();
    let ports = service.spec.unwrap().ports.unwrap();
    ports.into_iter().map(|port| port.port).collect()
}

/// Creates the Cluster `a` with agents, and reconciles until its control plane is requested.
async fn bring_up(host: &Host) -> (String, String) {
    let mut cluster = Cluster::new("a", Default::default());
    cluster.spec.konnectivity = Konnectivity::Enabled;
    host.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    host.reconcile_until_started("a").await;
    let id = host.cluster("a").await.id().unwrap();
    (id.to_string(), id.hosted_namespace().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_waits_for_its_certificate_and_is_removed_completely() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    let before = host.stateful_set(&hosted).await.unwrap().spec;
    let (serving, own) = (format!("{id}-apiserver"), format!("{id}-{SERVER}"));
    assert_eq!(host.secret(PKI, &own).await, None);
    assert_eq!(ports(&host, &hosted).await, [6443]);

    host.patch_cluster("a", serde_json::json!({"spec": {"konnectivity": "Enabled"}}))
        .await;
    let has_copy = async || host.secret(&hosted, SERVER).await.is_some();
    host.reconcile_until_equal("a", "the copy of the server's certificate", has_copy, true)
        .await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    let requested = host.api::<Certificate>(PKI).get(&serving).await.unwrap().spec.dns_names;
    assert!(
        requested.iter().any(|name| name.starts_with("konnectivity.a-")),
        "{requested:?}"
    );
    assert_eq!(
        host.stateful_set(&hosted).await.unwrap().spec,
        before,
        "the control plane changed before its certificate had the name"
    );

    host.lose_secret(PKI, &serving).await;
    reconcile_until_server(&host, &hosted, true).await;
    assert_eq!(
        host.text(&hosted, SERVER, "serving.crt").await,
        host.text(PKI, &serving, "tls.crt").await
    );
    assert!(published(&host, &hosted).await.contains("\"konnectivity\":true"));
    assert_eq!(ports(&host, &hosted).await, [6443, 8132]);

    host.patch_cluster("a", serde_json::json!({"spec": {"konnectivity": "Disabled"}}))
        .await;
    let observe = async || {
        let certificate = host.api::<Certificate>(PKI).get_opt(&own).await.unwrap();
        [
            ("Certificate", certificate.is_some()),
            ("Secret", host.secret(PKI, &own).await.is_some()),
            ("copy", host.secret(&hosted, SERVER).await.is_some()),
        ]
    };
    let expected = [("Certificate", false), ("Secret", false), ("copy", false)];
    host.reconcile_until_equal("a", "the existing objects", observe, expected)
        .await;
    assert!(!has_server(&host, &hosted).await);
    assert!(!published(&host, &hosted).await.contains("konnectivity"));
    assert_eq!(ports(&host, &hosted).await, [6443]);
    let requested = host.api::<Certificate>(PKI).get(&serving).await.unwrap().spec.dns_names;
    assert!(
        !requested.iter().any(|name| name.contains("konnectivity")),
        "{requested:?}"
    );
}

/// konnectivity-server loads its certificate only once. A refused Cluster has workers too.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_restarts_the_konnectivity_server() {
    let host = Host::start().await;
    let (id, hosted) = bring_up(&host).await;
    let serving = format!("{id}-apiserver");
    for (rule, change, accepted) in [
        ("accepted", serde_json::json!({}), "True/Valid"),
        (
            "refused",
            serde_json::json!({"spec": {"class": "none"}}),
            "False/UnknownClass",
        ),
    ] {
        host.patch_cluster("a", change).await;
        host.reconcile_until_condition("a", "Accepted", accepted).await;
        let before = template(&host, &hosted).await;
        host.reconcile("a").await.unwrap();
        assert_eq!(template(&host, &hosted).await, before, "{rule}: nothing changed");
        host.lose_secret(PKI, &serving).await;
        let digest = async || template(&host, &hosted).await.1;
        host.reconcile_until("a", "another digest of the files", digest, |digest| *digest != before.1)
            .await;
        let (containers, _) = template(&host, &hosted).await;
        assert_eq!(containers, before.0, "{rule}");
        assert_eq!(
            host.text(&hosted, SERVER, "serving.crt").await,
            host.text(PKI, &serving, "tls.crt").await,
            "{rule}"
        );
        assert!(
            published(&host, &hosted).await.contains("\"konnectivity\":true"),
            "{rule}"
        );
        assert_eq!(ports(&host, &hosted).await, [6443, 8132], "{rule}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agents_are_maintained_in_the_cluster() {
    const AGENTS: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/konnectivity-agent";
    let mut host = Host::start().await;
    bring_up(&host).await;
    let server = run_ready(&host).await;
    host.reconcile_until_condition("a", "AddonsReady", "True/AsExpected")
        .await;
    let written = || {
        let behaviour = server.behaviour.lock().unwrap();
        let objects = behaviour.objects.keys().cloned();
        let own = objects.filter(|path| path.contains("konnectivity"));
        (own.collect::<Vec<_>>(), behaviour.writes)
    };
    let (own, writes) = written();
    assert_eq!(
        own,
        [
            "/api/v1/namespaces/kube-system/serviceaccounts/konnectivity-agent",
            AGENTS,
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/yoke:konnectivity-server",
        ]
    );
    // A deleted object is created again, and no other is written.
    server.behaviour.lock().unwrap().objects.remove(AGENTS);
    host.restart_operator().await;
    host.reconcile_until("a", "three objects", async || written().0, |own| own.len() == 3)
        .await;
    assert_eq!(written().1, writes + 1);

    // Objects of an operator version without add-ons are repaired, and deleted with the others.
    {
        let mut behaviour = server.behaviour.lock().unwrap();
        let mut agents: serde_json::Value = serde_json::from_str(&behaviour.objects[AGENTS]).unwrap();
        agents["metadata"] = serde_json::json!({"name": "konnectivity-agent", "namespace": "kube-system",
            "labels": {"k8s-app": "konnectivity-agent"}});
        behaviour.objects.insert(AGENTS.to_owned(), agents.to_string());
    }
    host.restart_operator().await;
    let agents = async || server.behaviour.lock().unwrap().objects[AGENTS].clone();
    host.reconcile_until("a", "the label of the add-on", agents, |agents| {
        agents.contains("yoke.drzzl.io/addon")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_join_token_enables_konnectivity_permanently() {
    let host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    let hosted = id.hosted_namespace().to_string();
    assert!(!has_server(&host, &hosted).await);
    let token = serde_json::json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken", "metadata": {"name": "first"},
        "spec": {"clusterName": "a"}});
    let token: JoinToken = serde_json::from_value(token).unwrap();
    let tokens = host.api::<JoinToken>(TENANT);
    tokens.create(&PostParams::default(), &token).await.unwrap();
    let serving = format!("{id}-apiserver");
    let requested = async || host.api::<Certificate>(PKI).get(&serving).await.unwrap().spec.dns_names;
    host.reconcile_until("a", "the name in the API server's Certificate", requested, |names| {
        names.iter().any(|name| name.starts_with("konnectivity.a-"))
    })
    .await;
    host.lose_secret(PKI, &serving).await;
    reconcile_until_server(&host, &hosted, true).await;
    assert_eq!(host.cluster("a").await.spec.konnectivity, Konnectivity::Automatic);

    tokens.delete("first", &Default::default()).await.unwrap();
    let observe = async || tokens.get_opt("first").await.unwrap();
    host.until_none("the deletion of the JoinToken", observe).await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    assert!(has_server(&host, &hosted).await, "workers may have joined");
    host.patch_cluster("a", serde_json::json!({"spec": {"konnectivity": "Disabled"}}))
        .await;
    reconcile_until_server(&host, &hosted, false).await;
}
