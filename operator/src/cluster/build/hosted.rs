//! What surrounds a control plane in its namespace: the namespace itself, the way in, the words for the ingress.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use yoke_api::Cidr;
use yoke_api::cluster::{ClusterSpec, DeletionPolicy};
use yoke_api::ingress::{Asleep, CONFIG_KEY, IngressConfig, Upstream};
use yoke_api::labels::{self, component};
use yoke_api::names::{API_PORT, API_PORT_NAME, INGRESS_CONFIG_MAP, KONNECTIVITY_PORT, KONNECTIVITY_PORT_NAME};

use super::{Blueprint, Trust, arguments, audit, authentication, konnectivity, stateful_set};
use crate::cluster::identity::Identity;

/// Name of the ConfigMap with kube-apiserver's files.
pub(super) const API_SERVER_FILES: &str = "kube-apiserver";
/// The well-known label of a StatefulSet's pod.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// The hosted namespace. It holds pods of the strictest kind only, and tells what is to become of the data.
pub fn build_namespace(identity: &Identity, policy: DeletionPolicy) -> Namespace {
    let mut annotations = identity.owner_annotations();
    let policy = match policy {
        DeletionPolicy::Delete => labels::DELETION_POLICY_DELETE,
        DeletionPolicy::Retain => labels::DELETION_POLICY_RETAIN,
    };
    // Never left out: an apply does not remove what the namespace was made with.
    annotations.insert(labels::DELETION_POLICY.into(), policy.into());
    let mut labels = identity.labels(component::CONTROL_PLANE);
    labels.insert("pod-security.kubernetes.io/enforce".into(), "restricted".into());
    Namespace {
        metadata: ObjectMeta {
            name: Some(identity.hosted().to_string()),
            labels: Some(labels),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

/// The Service by which the ingress and the operator reach the API server, and agents the konnectivity-server if there is one.
///
/// Its addresses are published before they are ready, so that everything on the way is set up while the API server starts;
/// it is for one pod, the one with this number, and who finds it not listening tries again either way.
pub fn build_service(identity: &Identity, konnectivity: bool, number: i32) -> Service {
    let mut ports = vec![build_port(API_PORT_NAME, API_PORT)];
    ports.extend(konnectivity.then(|| build_port(KONNECTIVITY_PORT_NAME, KONNECTIVITY_PORT)));
    let mut pods = selector(identity);
    pods.insert(POD_NAME.to_owned(), stateful_set::pod_name(number));
    Service {
        metadata: identity.hosted_meta(&identity.cluster, component::CONTROL_PLANE),
        spec: Some(ServiceSpec {
            selector: Some(pods),
            ports: Some(ports),
            publish_not_ready_addresses: Some(true),
            type_: Some("ClusterIP".into()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Has evictions wait. One that is not ready goes at any time.
pub fn build_budget(identity: &Identity) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: identity.hosted_meta(stateful_set::NAME, component::CONTROL_PLANE),
        spec: Some(PodDisruptionBudgetSpec {
            // Also while another one is ready to take over: it is to be reached first.
            max_unavailable: Some(IntOrString::Int(0)),
            selector: Some(LabelSelector {
                match_labels: Some(selector(identity)),
                ..LabelSelector::default()
            }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

fn build_port(name: &str, port: u16) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        port: port.into(),
        target_port: Some(IntOrString::Int(port.into())),
        protocol: Some("TCP".into()),
        ..ServicePort::default()
    }
}

/// Labels by which the control plane's pods are found.
pub(super) fn selector(identity: &Identity) -> BTreeMap<String, String> {
    [
        (labels::ID.to_owned(), identity.id.to_string()),
        (labels::COMPONENT.to_owned(), component::CONTROL_PLANE.to_owned()),
    ]
    .into()
}

/// Files of kube-apiserver that are no secret.
pub fn build_api_server_files(blueprint: &Blueprint<'_>) -> ConfigMap {
    let authentication = authentication::to_file(&blueprint.spec.extra_args.api_server);
    let mut files = BTreeMap::from([(arguments::AUTHENTICATION_FILE.to_owned(), authentication)]);
    if blueprint.spec.konnectivity.is_enabled() {
        files.insert(konnectivity::EGRESS_FILE.to_owned(), konnectivity::to_egress_file());
    }
    if blueprint.spec.sleep.after_inactivity.is_some() {
        files.insert(audit::POLICY_FILE.to_owned(), audit::to_policy_file());
        files.insert(audit::WEBHOOK_FILE.to_owned(), audit::to_webhook_file());
    }
    ConfigMap {
        metadata: blueprint
            .identity
            .hosted_meta(API_SERVER_FILES, component::CONTROL_PLANE),
        data: Some(files),
        ..ConfigMap::default()
    }
}

/// What of the ingress's configuration a tenant asks for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Names beside the public one.
    pub names: Vec<String>,
    /// From where the cluster may be reached; from everywhere if `None`.
    pub sources: Option<Vec<Cidr>>,
    /// Whether konnectivity agents are let in.
    pub konnectivity: bool,
    /// What those are told who connect while no API answers, as asked for.
    pub asleep: Option<Asleep>,
}

impl Asked {
    /// What a spec asks for, of a Cluster that does not sleep. A range that is none allows nobody.
    pub fn of(spec: &ClusterSpec) -> Self {
        let endpoint = &spec.endpoint;
        let ranges = endpoint.allowed_cidrs.iter();
        Self {
            names: endpoint.extra_sans.clone(),
            sources: (!endpoint.allowed_cidrs.is_empty())
                .then(|| ranges.filter_map(|text| text.parse().ok()).collect()),
            konnectivity: spec.konnectivity.is_enabled(),
            asleep: None,
        }
    }
}

/// What the ingress is told.
pub fn build_ingress(identity: &Identity, asked: Asked, trust: &Trust) -> ConfigMap {
    let mut extra_names = asked.names;
    extra_names.sort();
    let config = IngressConfig {
        id: identity.id.clone(),
        tenant: identity.tenant.clone(),
        cluster: identity.cluster.clone(),
        public_name: identity.public_name.clone(),
        extra_names,
        konnectivity: asked.konnectivity,
        allowed_sources: asked.sources,
        issuer: identity.public_name.issuer(),
        audiences: arguments::audiences(identity),
        service_account_keys: vec![trust.service_account.clone()],
        client_ca: trust.client_ca.clone(),
        upstream: Upstream {
            server_name: identity.upstream_name(),
            ca: trust.client_ca.clone(),
            service: identity.cluster.clone(),
        },
        asleep: asked.asleep,
    };
    build_ingress_map(identity, &config)
}

/// The same, as it is to be told.
pub fn build_ingress_map(identity: &Identity, config: &IngressConfig) -> ConfigMap {
    let text = serde_json::to_string(config).expect("fields are strings and lists");
    ConfigMap {
        metadata: identity.hosted_meta(INGRESS_CONFIG_MAP, component::INGRESS),
        data: Some([(CONFIG_KEY.to_owned(), text)].into()),
        ..ConfigMap::default()
    }
}
