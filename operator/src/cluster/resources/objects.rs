//! Builds the objects around a control plane: its namespace, its Service, its configuration files
//! and the ingress configuration.

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

use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::names::{API_SERVER_FILES, selector};
use crate::cluster::resources::summary::Trust;
use crate::cluster::resources::{arguments, audit, authentication, konnectivity, paths};
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;

/// The well-known label of a StatefulSet's pod.
const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";

/// Builds the control-plane namespace. It admits only pods of the `restricted` security standard,
/// and an annotation has the deletion policy of the data.
pub fn build_namespace(identity: &Identity, policy: DeletionPolicy) -> Namespace {
    let mut annotations = identity.owner_annotations();
    let policy = match policy {
        DeletionPolicy::Delete => labels::DELETION_POLICY_DELETE,
        DeletionPolicy::Retain => labels::DELETION_POLICY_RETAIN,
    };
    // Always set: an apply does not remove an annotation that the namespace was created with.
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

/// Builds the Service through which the ingress and the operator reach the API server, and agents
/// the konnectivity-server if there is one.
///
/// The Service publishes addresses that are not ready, so that connections are set up while the API
/// server starts. It selects the one pod with this ordinal. Its clients retry in any case while
/// that pod does not listen.
pub fn build_service(identity: &Identity, konnectivity: bool, number: i32) -> Service {
    let mut ports = vec![build_port(API_PORT_NAME, API_PORT)];
    ports.extend(konnectivity.then(|| build_port(KONNECTIVITY_PORT_NAME, KONNECTIVITY_PORT)));
    let mut pods = selector(identity);
    pods.insert(POD_NAME.to_owned(), control_plane::pod_name(number));
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

/// Builds the PodDisruptionBudget that makes evictions wait. A pod that is not ready may be evicted
/// at any time.
pub fn build_budget(identity: &Identity) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: identity.hosted_meta(NAME, component::CONTROL_PLANE),
        spec: Some(PodDisruptionBudgetSpec {
            // Zero even while a standby pod is ready: callers must reach that pod first.
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

/// Builds the ConfigMap with the files of kube-apiserver that are not secret.
pub fn build_api_server_files(blueprint: &Blueprint<'_>) -> ConfigMap {
    let authentication = authentication::to_file(&blueprint.spec.extra_args.api_server);
    let mut files = BTreeMap::from([(paths::AUTHENTICATION_FILE.to_owned(), authentication)]);
    if blueprint.spec.konnectivity.is_enabled() {
        files.insert(paths::EGRESS_FILE.to_owned(), konnectivity::to_egress_file());
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

/// The part of the ingress configuration that a tenant decides.
#[derive(Clone, Debug, Default)]
pub struct IngressIntent {
    /// Host names beside the public one.
    pub names: Vec<String>,
    /// Source ranges that may reach the cluster; `None` allows every address.
    pub sources: Option<Vec<Cidr>>,
    /// Whether konnectivity agents are admitted.
    pub konnectivity: bool,
    /// The ingress message for callers while no API is available.
    pub asleep: Option<Asleep>,
}

impl IngressIntent {
    /// The part that a spec decides, for a Cluster that does not sleep. An invalid range admits no
    /// address.
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

/// Builds the ingress configuration.
pub fn build_ingress(identity: &Identity, asked: IngressIntent, trust: &Trust) -> ConfigMap {
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

/// Builds the ConfigMap with the ingress configuration.
pub fn build_ingress_map(identity: &Identity, config: &IngressConfig) -> ConfigMap {
    let text = serde_json::to_string(config).expect("fields are strings and lists");
    ConfigMap {
        metadata: identity.hosted_meta(INGRESS_CONFIG_MAP, component::INGRESS),
        data: Some([(CONFIG_KEY.to_owned(), text)].into()),
        ..ConfigMap::default()
    }
}
