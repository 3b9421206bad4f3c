//! Add-ons in a tenant's real API.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use yoke_test_support::Process;

use crate::harness::{Host, condition};
use crate::readiness::run_pod;
use crate::tenant_api::TenantServer;

const NAMESPACE: &str = "kube-system";
const READY: &str = "AddonsReady";

/// A ready cluster, and its API.
struct Stage {
    host: Host,
    _process: Process,
    client: Client,
}

/// Resource versions of objects, by kind and name.
type Versions = BTreeMap<String, String>;

impl Stage {
    async fn start() -> Self {
        let host = Host::start().await;
        host.bring_up("a").await;
        let (process, client) = host.start_tenant_api("a").await;
        run_pod(&host, "a").await;
        host.reconcile_until_ready("a").await;
        Self {
            host,
            _process: process,
            client,
        }
    }

    /// Changes the spec, and waits until the condition has this value for it.
    async fn reconcile_until(&self, addons: serde_json::Value, expected: &str) {
        let patch = json!({"spec": {"addons": addons}});
        self.host.patch_cluster("a", patch).await;
        let observe = async || {
            let cluster = self.host.cluster("a").await;
            let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
            let mut found = conditions.into_iter().filter(|found| found.type_ == READY);
            let is_current = found.all(|found| found.observed_generation == cluster.metadata.generation);
            (condition(&cluster, READY), is_current)
        };
        let what = "the add-ons' condition, and whether it is current,";
        self.host
            .reconcile_until_equal("a", what, observe, (expected.to_owned(), true))
            .await;
    }

    fn api<K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn versions(&self) -> Versions {
        let mut all = Versions::new();
        collect::<ServiceAccount>(&mut all, self.api()).await;
        collect::<ConfigMap>(&mut all, self.api()).await;
        collect::<Service>(&mut all, self.api()).await;
        collect::<DaemonSet>(&mut all, self.api()).await;
        collect::<ClusterRole>(&mut all, Api::all(self.client.clone())).await;
        collect::<ClusterRoleBinding>(&mut all, Api::all(self.client.clone())).await;
        all
    }
}

async fn collect<K>(all: &mut Versions, api: Api<K>)
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = api.list(&ListParams::default()).await.unwrap();
    for object in found {
        let key = format!("{} {}", K::kind(&()), object.name_any());
        all.insert(key, object.resource_version().unwrap());
    }
}

fn keys(all: &Versions) -> Vec<&str> {
    let own = |key: &&str| {
        ["coredns", "kube-dns", "kube-proxy", "node-proxier"]
            .iter()
            .any(|name| key.contains(name))
    };
    // Kubernetes itself creates a role with such a name.
    let keys = all.keys().map(String::as_str).filter(own);
    keys.filter(|key| !key.contains("system:node-proxier")).collect()
}

const CORE_DNS: [&str; 6] = [
    "ClusterRole system:coredns",
    "ClusterRoleBinding system:coredns",
    "ConfigMap coredns",
    "DaemonSet coredns",
    "Service kube-dns",
    "ServiceAccount coredns",
];
const KUBE_PROXY: [&str; 4] = [
    "ClusterRoleBinding yoke:node-proxier",
    "ConfigMap kube-proxy",
    "DaemonSet kube-proxy",
    "ServiceAccount kube-proxy",
];

fn sorted(parts: &[&[&'static str]]) -> Vec<&'static str> {
    let mut all = parts.concat();
    all.sort_unstable();
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn add_ons_are_applied_once_and_other_fields_stay() {
    let mut stage = Stage::start().await;
    stage.reconcile_until(json!({}), "True/AsExpected").await;
    let first = stage.versions().await;
    assert_eq!(keys(&first), sorted(&[&CORE_DNS, &KUBE_PROXY]));
    let service = stage.api::<Service>().get("kube-dns").await.unwrap().spec.unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("10.96.0.10"));

    // An object that is current is not written: neither by the same operator, nor by one that has
    // just started.
    stage.host.restart_operator().await;
    let was_checked = async || stage.host.context.memory.running(&id(&stage)).addons.state.is_some();
    stage
        .host
        .reconcile_until_equal("a", "the check of the add-ons", was_checked, true)
        .await;
    assert_eq!(stage.versions().await, first);

    // The tenant's own fields stay, also while other fields are repaired.
    let servers = stage.api::<DaemonSet>();
    let params = PatchParams::default();
    let change = json!({"metadata": {"labels": {"team": "dns"}}, "spec": {"minReadySeconds": 3,
        "template": {"spec": {"priorityClassName": "other"}}}});
    servers.patch("coredns", &params, &Patch::Merge(change)).await.unwrap();
    stage.host.restart_operator().await;
    let priority_class = async || {
        let spec = servers.get("coredns").await.unwrap().spec.unwrap();
        spec.template.spec.unwrap().priority_class_name
    };
    let expected = Some("system-node-critical".to_owned());
    stage
        .host
        .reconcile_until_equal("a", "the priority class of CoreDNS", priority_class, expected)
        .await;
    let repaired = servers.get("coredns").await.unwrap();
    assert_eq!(repaired.labels()["team"], "dns");
    assert_eq!(repaired.spec.unwrap().min_ready_seconds, Some(3));
    let after = stage.versions().await;
    let written: Vec<_> = after
        .iter()
        .filter(|(key, version)| first.get(*key) != Some(*version))
        .collect();
    assert_eq!(written.len(), 1, "{written:?}");
}

fn id(stage: &Stage) -> yoke_api::ClusterId {
    stage.host.context.host.caches.clusters.summaries()[0]
        .identity()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_objects_of_a_disabled_add_on_are_deleted() {
    let stage = Stage::start().await;
    stage.reconcile_until(json!({}), "True/AsExpected").await;
    // An object of the tenant, beside those of the add-ons.
    let tenants_config: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "coredns-custom"}})).unwrap();
    stage
        .api()
        .create(&PostParams::default(), &tenants_config)
        .await
        .unwrap();
    let before = stage.versions().await;

    stage
        .reconcile_until(json!({"coreDNS": {"enabled": false}}), "True/AsExpected")
        .await;
    let mut expected = before.clone();
    expected.retain(|key, _| !CORE_DNS.contains(&key.as_str()));
    assert_eq!(stage.versions().await, expected);

    // An object of the tenant takes its place, and is not touched when the add-on is enabled again.
    let labels = json!({"k8s-app": "kube-dns"});
    let service: Service = serde_json::from_value(json!({"metadata": {"name": "kube-dns"}, "spec":
        {"selector": labels, "ports": [{"port": 53, "protocol": "UDP"}]}}))
    .unwrap();
    let tenants_service = stage.api().create(&PostParams::default(), &service).await.unwrap();
    stage
        .reconcile_until(json!({"coreDNS": {"enabled": true}}), "False/AddonConflict")
        .await;
    assert_eq!(stage.api::<Service>().get("kube-dns").await.unwrap(), tenants_service);
    // A tenant that has taken over one object may need the others.
    let mixed = stage.versions().await;
    stage
        .reconcile_until(json!({"coreDNS": {"enabled": false}}), "False/AddonConflict")
        .await;
    assert_eq!(stage.api::<Service>().get("kube-dns").await.unwrap(), tenants_service);
    assert_eq!(stage.versions().await, mixed);
    stage
        .api::<Service>()
        .delete("kube-dns", &Default::default())
        .await
        .unwrap();

    let both = json!({"coreDNS": {"enabled": true}, "kubeProxy": {"enabled": false}});
    stage.reconcile_until(both, "True/AsExpected").await;
    let mut expected = CORE_DNS.to_vec();
    expected.insert(2, "ConfigMap coredns-custom");
    let all = stage.versions().await;
    let mut found = keys(&all);
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// A ready cluster with all its add-ons, and a fake API that the test controls.
struct FakeStage {
    host: Host,
    server: TenantServer,
}

impl FakeStage {
    async fn start() -> Self {
        let host = Host::start().await;
        host.bring_up("a").await;
        let server = TenantServer::start(&host, "a").await;
        server.behaviour.lock().unwrap().has_account = true;
        run_pod(&host, "a").await;
        let stage = Self { host, server };
        stage.reconcile_until("True/AsExpected").await;
        stage
    }

    async fn reconcile_until(&self, expected: &str) {
        self.host.reconcile_until_condition("a", READY, expected).await;
    }

    /// Returns the message of the condition.
    async fn message(&self) -> String {
        let conditions = self.host.cluster("a").await.status.unwrap().conditions;
        let mut found = conditions.into_iter().filter(|found| found.type_ == READY);
        found.next().unwrap().message
    }

    /// Replaces a text in an existing object.
    fn change(&self, path: &str, from: &str, to: &str) {
        let mut behaviour = self.server.behaviour.lock().unwrap();
        let object = behaviour.objects.get_mut(path).unwrap();
        assert!(object.contains(from), "{object}");
        *object = object.replace(from, to);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_replaced_only_if_a_field_is_immutable() {
    const PROXIES: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy";
    const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/yoke:node-proxier";
    let mut stage = FakeStage::start().await;
    // A tenant's admission policy refuses with the same code as an immutable field.
    stage.change(PROXIES, "system-node-critical", "other");
    stage.server.behaviour.lock().unwrap().refuses = Some(PROXIES);
    stage.host.restart_operator().await;
    stage.reconcile_until("False/AddonsPending").await;
    assert!(stage.message().await.contains("not in my cluster"));
    assert_eq!(stage.server.behaviour.lock().unwrap().deleted, [""; 0]);

    stage.change(PROXIES, "other", "system-node-critical");
    stage.change(BINDING, "system:node-proxier", "view");
    stage.server.behaviour.lock().unwrap().refuses = Some(BINDING);
    stage.host.restart_operator().await;
    stage.reconcile_until("True/AsExpected").await;
    let behaviour = stage.server.behaviour.lock().unwrap();
    assert_eq!(behaviour.deleted, [BINDING]);
    assert!(behaviour.objects[BINDING].contains("system:node-proxier"));
}

/// The tenant controls the size and the number of its objects.
#[tokio::test(flavor = "multi_thread")]
async fn the_read_of_a_large_object_is_bounded() {
    const FILE: &str = "/api/v1/namespaces/kube-system/configmaps/coredns";
    const PROXIES: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy";
    let mut stage = FakeStage::start().await;
    {
        let mut behaviour = stage.server.behaviour.lock().unwrap();
        behaviour.endless = Some(FILE);
        behaviour.objects.remove(PROXIES);
    }
    stage.host.restart_operator().await;
    stage.reconcile_until("False/AddonsPending").await;
    let message = stage.message().await;
    assert!(message.contains("applying ConfigMap kube-system/coredns"), "{message}");
    {
        let behaviour = stage.server.behaviour.lock().unwrap();
        // Socket buffers take some of it as well.
        assert!(behaviour.taken < 7 << 20, "{} bytes", behaviour.taken);
        assert!(
            behaviour.objects.contains_key(PROXIES),
            "the other objects are not maintained"
        );
    }

    stage.server.behaviour.lock().unwrap().endless = None;
    let noise = format!("{{\"noise\": \"{}\", ", "x".repeat(100 << 10));
    let writes = {
        let mut behaviour = stage.server.behaviour.lock().unwrap();
        let object = behaviour.objects.get_mut(FILE).unwrap();
        *object = object.replacen('{', &noise, 1);
        behaviour.writes
    };
    stage.host.restart_operator().await;
    stage.reconcile_until("True/AsExpected").await;
    assert_eq!(
        stage.server.behaviour.lock().unwrap().writes,
        writes,
        "an object that is current was written"
    );
}
