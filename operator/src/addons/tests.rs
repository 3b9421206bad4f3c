use std::path::Path;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::ResourceExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use yoke_api::cluster::Konnectivity;
use yoke_api::{ClusterSpec, labels};
use yoke_pki::kubeconfig::{Credential, Kubeconfig};

use crate::addons::*;
use crate::config::Config;

fn config() -> Config {
    Config::parse(include_str!("../../testdata/config.yaml")).unwrap()
}

fn plan_with(config: &Config, version: &str, change: impl FnOnce(&mut ClusterSpec)) -> Plan {
    let mut spec = ClusterSpec::default();
    change(&mut spec);
    let id: yoke_api::ClusterId = "bcdfghjk24".parse().unwrap();
    plan(&Facts {
        spec: &spec,
        public_name: &id.public_name("demo", "yoke.test"),
        version: version.parse().unwrap(),
        catalogue: &config.versions[0],
        kubelet_ca: "kubelets",
        config,
    })
}

fn all(version: &str) -> Plan {
    plan_with(&config(), version, |spec| {
        spec.konnectivity = Konnectivity::Enabled;
        spec.addons.metrics_server.enabled = true;
    })
}

fn names(parts: &[Part]) -> Vec<String> {
    parts.iter().map(Part::name).collect()
}

fn find<'a>(plan: &'a Plan, name: &str) -> &'a Part {
    plan.wanted.iter().find(|part| part.name() == name).unwrap()
}

fn image(plan: &Plan, name: &str) -> String {
    let image = find(plan, name)
        .object
        .data
        .pointer("/spec/template/spec/containers/0/image");
    image.and_then(Value::as_str).unwrap().to_owned()
}

fn round_trip<K: DeserializeOwned + Serialize>(value: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<K>(value.clone()).unwrap()).unwrap()
}

#[test]
fn objects_equal_the_golden_file() {
    let plan = all("v1.35.4");
    assert_eq!(plan.unwanted, []);
    let documents = plan
        .wanted
        .iter()
        .map(|part| serde_saphyr::to_string(&part.object).unwrap());
    let text = documents.collect::<Vec<_>>().join("---\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/addons.yaml");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}; UPDATE=1 writes it anew", path.display());
}

/// No field is lost in a round trip through the Kubernetes types, so none is misspelled or
/// misplaced.
#[test]
fn objects_decode_as_their_kinds() {
    for version in ["v1.32.0", "v1.35.4"] {
        for part in all(version).wanted {
            let value = serde_json::to_value(&part.object).unwrap();
            let read = match part.resource.kind.as_str() {
                "ServiceAccount" => round_trip::<ServiceAccount>(&value),
                "ConfigMap" => round_trip::<ConfigMap>(&value),
                "Service" => round_trip::<Service>(&value),
                "ClusterRole" => round_trip::<ClusterRole>(&value),
                "ClusterRoleBinding" => round_trip::<ClusterRoleBinding>(&value),
                "RoleBinding" => round_trip::<RoleBinding>(&value),
                "APIService" => round_trip::<APIService>(&value),
                "Deployment" => round_trip::<Deployment>(&value),
                "DaemonSet" => round_trip::<DaemonSet>(&value),
                other => panic!("{other}"),
            };
            assert_eq!(read, value, "{version}: {}", part.name());
            let labels = part.object.labels();
            assert_eq!(labels["app.kubernetes.io/managed-by"], "yoke-operator");
            assert_eq!(labels["yoke.drzzl.io/addon"], part.addon.as_str());
        }
    }
}

#[test]
fn each_add_on_is_disabled_alone() {
    let default = plan_with(&config(), "v1.35.4", |_| {});
    let core_dns = [
        "ServiceAccount kube-system/coredns",
        "ClusterRole system:coredns",
        "ClusterRoleBinding system:coredns",
        "ConfigMap kube-system/coredns",
        "Service kube-system/kube-dns",
        "DaemonSet kube-system/coredns",
    ];
    let kube_proxy = [
        "ServiceAccount kube-system/kube-proxy",
        "ClusterRoleBinding yoke:node-proxier",
        "ConfigMap kube-system/kube-proxy",
        "DaemonSet kube-system/kube-proxy",
    ];
    let metrics_server = [
        "ServiceAccount kube-system/metrics-server",
        "ClusterRole system:aggregated-metrics-reader",
        "ClusterRole system:metrics-server",
        "ClusterRoleBinding system:metrics-server",
        "ClusterRoleBinding metrics-server:system:auth-delegator",
        "RoleBinding kube-system/metrics-server-auth-reader",
        "ConfigMap kube-system/metrics-server",
        "Service kube-system/metrics-server",
        "Deployment kube-system/metrics-server",
        "APIService v1beta1.metrics.k8s.io",
    ];
    let konnectivity = [
        "ServiceAccount kube-system/konnectivity-agent",
        "ClusterRoleBinding yoke:konnectivity-server",
        "DaemonSet kube-system/konnectivity-agent",
    ];
    let others = [&metrics_server[..], &konnectivity].concat();
    assert_eq!(names(&default.wanted), [&core_dns[..], &kube_proxy].concat());
    assert_eq!(names(&default.unwanted), others);
    let all = [&core_dns[..], &kube_proxy, &others].concat();
    assert_eq!(names(&self::all("v1.35.4").wanted), all);
    let plan = plan_with(&config(), "v1.35.4", |spec| spec.addons.core_dns.enabled = false);
    assert_eq!(names(&plan.wanted), kube_proxy);
    assert_eq!(names(&plan.unwanted), [&core_dns[..], &others].concat());
    let plan = plan_with(&config(), "v1.35.4", |spec| spec.addons.kube_proxy.enabled = false);
    assert_eq!(names(&plan.wanted), core_dns);
    assert_eq!(names(&plan.unwanted), [&kube_proxy[..], &others].concat());
}

#[test]
fn images_follow_the_version_and_the_configuration() {
    const DNS: &str = "DaemonSet kube-system/coredns";
    const PROXY: &str = "DaemonSet kube-system/kube-proxy";
    let plan = all("v1.35.4");
    assert_eq!(image(&plan, PROXY), "registry.k8s.io/kube-proxy:v1.35.4");
    assert_eq!(image(&plan, DNS), "registry.k8s.io/coredns/coredns:v1.13.1");
    assert_eq!(image(&all("v1.34.1"), PROXY), "registry.k8s.io/kube-proxy:v1.34.1");

    let mut config = config();
    config.addons.registry = "registry.example:5000/k8s".into();
    let plan = plan_with(&config, "v1.35.4", |_| {});
    assert_eq!(image(&plan, PROXY), "registry.example:5000/k8s/kube-proxy:v1.35.4");
    assert_eq!(image(&plan, DNS), "registry.example:5000/k8s/coredns/coredns:v1.13.1");
    let metrics = "Deployment kube-system/metrics-server";
    assert_eq!(
        image(&all("v1.35.4"), metrics),
        "registry.k8s.io/metrics-server/metrics-server:v0.9.0"
    );
    config.versions[0].images.core_dns = Some("registry.example/dns@sha256:00".into());
    let plan = plan_with(&config, "v1.35.4", |_| {});
    assert_eq!(image(&plan, DNS), "registry.example/dns@sha256:00");
}

#[test]
fn kube_proxy_reaches_the_api_without_a_service() {
    let files = find(&all("v1.35.4"), "ConfigMap kube-system/kube-proxy").object.data["data"].clone();
    let kubeconfig = Kubeconfig::from_yaml(files["kubeconfig.conf"].as_str().unwrap()).unwrap();
    assert_eq!(kubeconfig.server, "https://100.64.0.2:443", "the ingress, no Service");
    let name = kubeconfig.tls_server_name.unwrap();
    assert!(name.starts_with("demo-") && name.ends_with(".yoke.test"), "{name}");
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    assert_eq!(kubeconfig.credential, Credential::TokenFile(token.into()));
}

#[test]
fn mode_of_kube_proxy_follows_the_version() {
    for (version, mode, privileged) in [("v1.32.9", "iptables", true), ("v1.33.0", "nftables", false)] {
        let plan = all(version);
        let files = &find(&plan, "ConfigMap kube-system/kube-proxy").object.data["data"];
        let configuration: Value = serde_json::from_str(files["config.conf"].as_str().unwrap()).unwrap();
        assert_eq!(configuration["mode"], mode);
        let set = &find(&plan, "DaemonSet kube-system/kube-proxy").object.data;
        let security = set.pointer("/spec/template/spec/containers/0/securityContext").unwrap();
        assert_eq!(security.get("privileged").is_some(), privileged, "{version}");
    }
}

/// kube-proxy reads its configuration only once: a change replaces its Pods.
#[test]
fn another_configuration_replaces_the_pods_of_kube_proxy() {
    let digest_annotation = |plan: &Plan| {
        let set = find(plan, "DaemonSet kube-system/kube-proxy");
        let annotations = set.object.data.pointer("/spec/template/metadata/annotations").unwrap();
        annotations["yoke.drzzl.io/config-digest"].clone()
    };
    let other = plan_with(&config(), "v1.35.4", |spec| {
        spec.network.pod_cidr = "10.100.0.0/16".into()
    });
    assert_eq!(digest_annotation(&all("v1.35.4")), digest_annotation(&all("v1.35.5")));
    assert_ne!(digest_annotation(&all("v1.35.4")), digest_annotation(&other));
}

#[test]
fn dns_has_the_tenth_address_and_the_clusters_domain() {
    let plan = plan_with(&config(), "v1.35.4", |spec| {
        spec.network.service_cidr = "10.112.0.0/12".into();
        spec.network.cluster_domain = "inside.example".into();
    });
    let service = &find(&plan, "Service kube-system/kube-dns").object.data;
    assert_eq!(service["spec"]["clusterIP"], "10.112.0.10");
    assert_eq!(service["spec"]["internalTrafficPolicy"], "Local");
    let file = &find(&plan, "ConfigMap kube-system/coredns").object.data["data"]["Corefile"];
    assert!(
        file.as_str()
            .unwrap()
            .contains("kubernetes inside.example in-addr.arpa ip6.arpa {")
    );
}

#[test]
fn an_object_without_the_label_is_owned_by_another() {
    let plan = all("v1.35.4");
    let part = find(&plan, "DaemonSet kube-system/coredns");
    assert_eq!(part.owner(&part.object), Owner::Own);
    let mut other = part.object.clone();
    other.labels_mut().insert(labels::ADDON.into(), "kube-proxy".into());
    assert_eq!(part.owner(&other), Owner::Foreign);
    other.labels_mut().remove(labels::ADDON);
    assert_eq!(part.owner(&other), Owner::Foreign);
}

#[test]
fn agents_of_older_operators_are_owned() {
    let plan = all("v1.35.4");
    for name in [
        "ServiceAccount kube-system/konnectivity-agent",
        "ClusterRoleBinding yoke:konnectivity-server",
        "DaemonSet kube-system/konnectivity-agent",
    ] {
        let part = find(&plan, name);
        let mut found = part.object.clone();
        found.labels_mut().remove(labels::ADDON);
        assert_eq!(part.owner(&found), Owner::Foreign, "{name}: taken over");
        found.metadata.annotations = None;
        assert_eq!(part.owner(&found), Owner::Own, "{name}: older");
        found.metadata.labels = None;
        let unmarked = if name.contains("yoke:") {
            Owner::Own
        } else {
            Owner::Foreign
        };
        assert_eq!(part.owner(&found), unmarked, "{name}: of no app");
    }
}

#[test]
fn an_ingress_without_an_address_has_no_host_alias() {
    let aliases = |address: &str| {
        let mut config = config();
        config.ingress.address = address.into();
        let plan = plan_with(&config, "v1.35.4", |spec| spec.konnectivity = Konnectivity::Enabled);
        let agents = &find(&plan, "DaemonSet kube-system/konnectivity-agent").object.data;
        agents.pointer("/spec/template/spec/hostAliases").cloned()
    };
    assert_eq!(aliases("in.example.org"), None);
    assert_eq!(aliases("192.0.2.1").unwrap()[0]["ip"], "192.0.2.1");
}

/// An APIService is unavailable until the server behind it exists.
#[test]
fn the_metrics_api_is_created_last() {
    let last = all("v1.35.4")
        .wanted
        .into_iter()
        .rfind(|part| part.addon == Addon::MetricsServer);
    assert_eq!(last.unwrap().resource.kind, "APIService");
}
