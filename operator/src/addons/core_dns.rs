//! CoreDNS, in the form that kubeadm uses, but as a DaemonSet.

use k8s_openapi::api::apps::v1::RollingUpdateDaemonSet;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, HTTPGetAction, PodSpec, Probe, ResourceRequirements, SecurityContext,
    Service, ServicePort, ServiceSpec,
};
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use yoke_api::Cidr;

use crate::addons::facts::Facts;
use crate::addons::images;
use crate::addons::kube_system::{
    DaemonPods, build_account, build_account_binding, build_daemon_set, build_files, build_metadata, build_mount,
    build_toleration, build_volume, to_labels, to_map,
};
use crate::addons::part::Parts;
use crate::config::DNS_NUMBER;
use crate::model::pod_security::build_security;
use crate::model::rbac::{build_role, build_rule};

const NAME: &str = "coredns";
/// The usual name of the cluster DNS Service.
const SERVICE: &str = "kube-dns";
const ROLE: &str = "system:coredns";
/// An optional ConfigMap of the tenant.
const CUSTOM: &str = "coredns-custom";

const DNS_PORT: i32 = 53;
const METRICS_PORT: i32 = 9153;
const HEALTH_PORT: i32 = 8080;
const READY_PORT: i32 = 8181;

pub(super) fn build(facts: &Facts<'_>, parts: &mut Parts) {
    let file = to_corefile(&facts.spec.network.cluster_domain);
    parts.add(&build_account(NAME));
    parts.add(&build_role(ROLE, build_rules()));
    parts.add(&build_account_binding(ROLE, ROLE, NAME));
    parts.add(&build_files(NAME, [("Corefile".to_owned(), file)].into()));
    parts.add(&build_service(&facts.spec.network.service_cidr));
    let (image, pull_policy) = (images::to_core_dns(facts), &facts.config.image_pull_policy);
    parts.add(&build_daemon_set(build_pods(image, pull_policy)));
}

/// Forwards other names to the worker's resolver. `loop` stops a server that would forward to
/// itself.
fn to_corefile(domain: &str) -> String {
    format!(
        "\
.:53 {{
    errors
    health {{
        lameduck 5s
    }}
    ready
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    prometheus :{METRICS_PORT}
    forward . /etc/resolv.conf {{
        max_concurrent 1000
    }}
    cache 30 {{
        disable success {domain}
        disable denial {domain}
    }}
    loop
    reload
    loadbalance
    import /etc/{CUSTOM}/*.override
}}
import /etc/{CUSTOM}/*.server
"
    )
}

fn build_rules() -> Vec<PolicyRule> {
    let verbs = ["list", "watch"];
    vec![
        build_rule(&[""], &["endpoints", "services", "pods", "namespaces"], &verbs),
        build_rule(&["discovery.k8s.io"], &["endpointslices"], &verbs),
    ]
}

fn build_service(range: &str) -> Service {
    let port = |name: &str, number: i32, protocol: &str| ServicePort {
        name: Some(name.into()),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        protocol: Some(protocol.into()),
        ..ServicePort::default()
    };
    // The host's configuration is validated: each range has this address.
    let address = range.parse::<Cidr>().ok().and_then(|range| range.nth(DNS_NUMBER));
    let labels = [
        ("k8s-app", SERVICE),
        ("kubernetes.io/cluster-service", "true"),
        ("kubernetes.io/name", "CoreDNS"),
    ];
    Service {
        metadata: ObjectMeta {
            annotations: Some(to_map(&[
                ("prometheus.io/port", "9153"),
                ("prometheus.io/scrape", "true"),
            ])),
            ..build_metadata(SERVICE, to_map(&labels))
        },
        spec: Some(ServiceSpec {
            cluster_ip: address.map(|address| address.to_string()),
            ports: Some(vec![
                port("dns", DNS_PORT, "UDP"),
                port("dns-tcp", DNS_PORT, "TCP"),
                port("metrics", METRICS_PORT, "TCP"),
            ]),
            selector: Some(to_labels(SERVICE)),
            // Pods of one worker may not reach those of another.
            internal_traffic_policy: Some("Local".into()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// One Pod per worker, since Pods of one worker may not reach those of another. It tolerates all
/// taints, and a rolling update starts the new Pod before it stops the old one.
fn build_pods(image: String, pull_policy: &str) -> DaemonPods {
    DaemonPods {
        name: NAME,
        app: SERVICE,
        files_digest: None,
        pod: PodSpec {
            service_account_name: Some(NAME.into()),
            priority_class_name: Some("system-node-critical".into()),
            dns_policy: Some("Default".into()),
            node_selector: Some(to_map(&[("kubernetes.io/os", "linux")])),
            tolerations: Some(vec![build_toleration(None)]),
            containers: vec![build_container(image, pull_policy)],
            volumes: Some(vec![build_volume(NAME, None), build_volume(CUSTOM, Some(true))]),
            ..PodSpec::default()
        },
        update: RollingUpdateDaemonSet {
            max_surge: Some(IntOrString::Int(1)),
            max_unavailable: Some(IntOrString::Int(0)),
        },
    }
}

fn build_container(image: String, pull_policy: &str) -> Container {
    let port = |name: &str, number: i32, protocol: &str| ContainerPort {
        name: Some(name.into()),
        container_port: number,
        protocol: Some(protocol.into()),
        ..ContainerPort::default()
    };
    let probe = |path: &str, port: i32| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(port),
            scheme: Some("HTTP".into()),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    };
    let quantities = |pairs: &[(&str, &str)]| {
        let pairs = to_map(pairs).into_iter();
        pairs.map(|(name, value)| (name, Quantity(value))).collect()
    };
    Container {
        name: NAME.into(),
        image: Some(image),
        image_pull_policy: Some(pull_policy.into()),
        args: Some(vec!["-conf".into(), format!("/etc/{NAME}/Corefile")]),
        ports: Some(vec![
            port("dns", DNS_PORT, "UDP"),
            port("dns-tcp", DNS_PORT, "TCP"),
            port("metrics", METRICS_PORT, "TCP"),
        ]),
        resources: Some(ResourceRequirements {
            requests: Some(quantities(&[("cpu", "100m"), ("memory", "70Mi")])),
            limits: Some(quantities(&[("memory", "170Mi")])),
            ..ResourceRequirements::default()
        }),
        liveness_probe: Some(Probe {
            initial_delay_seconds: Some(60),
            timeout_seconds: Some(5),
            failure_threshold: Some(5),
            ..probe("/health", HEALTH_PORT)
        }),
        readiness_probe: Some(probe("/ready", READY_PORT)),
        security_context: Some(SecurityContext {
            capabilities: Some(Capabilities {
                // For port 53.
                add: Some(vec!["NET_BIND_SERVICE".into()]),
                drop: Some(vec!["ALL".into()]),
            }),
            ..build_security()
        }),
        volume_mounts: Some(vec![
            build_mount(NAME, &format!("/etc/{NAME}")),
            build_mount(CUSTOM, &format!("/etc/{CUSTOM}")),
        ]),
        ..Container::default()
    }
}
