//! metrics-server, in the form of its own release, for `kubectl top` and horizontal autoscaling.
//!
//! kube-apiserver reaches it as an aggregated API, through konnectivity. It connects to kubelets
//! directly, and verifies them with the cluster's kubelet CA. No other component in the cluster has
//! that CA certificate.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, HTTPGetAction, PodSpec, Probe, ResourceRequirements,
    SeccompProfile, SecurityContext, Service, ServicePort, ServiceSpec, Toleration, Volume, VolumeMount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, RoleBinding};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec, ServiceReference};
use kube::api::ObjectMeta;

use crate::addons::facts::Facts;
use crate::addons::images;
use crate::addons::kube_system::{
    NAMESPACE, build_account, build_account_binding, build_files, build_metadata, build_mount, build_subject,
    build_template, build_toleration, build_volume, to_labels, to_map, to_selector,
};
use crate::addons::part::{Parts, digest};
use crate::model::pod_security::build_security;
use crate::model::rbac::{build_role, build_role_ref, build_rule};

const NAME: &str = "metrics-server";
const ROLE: &str = "system:metrics-server";
const FILES: &str = "/etc/metrics-server";
const KUBELET_CA: &str = "kubelet-ca.crt";
const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";
const PORT: i32 = 10250;
/// Directory of its self-signed certificate.
const SCRATCH: &str = "/tmp";

pub(super) fn build(facts: &Facts<'_>, parts: &mut Parts) {
    let files = BTreeMap::from([(KUBELET_CA.to_owned(), facts.kubelet_ca.to_owned())]);
    let files_digest = digest(&files);
    parts.add(&build_account(NAME));
    parts.add(&build_reader());
    parts.add(&build_role(ROLE, build_rules()));
    parts.add(&build_account_binding(ROLE, ROLE, NAME));
    parts.add(&build_account_binding(
        "metrics-server:system:auth-delegator",
        "system:auth-delegator",
        NAME,
    ));
    parts.add(&build_authentication());
    parts.add(&build_files(NAME, files));
    parts.add(&build_service());
    parts.add(&build_deployment(facts, files_digest));
    // Last, since the API server uses it from then on.
    parts.add(&build_api());
}

/// Aggregated rules for users who may view, edit or administer a namespace.
fn build_reader() -> ClusterRole {
    let aggregated = ["admin", "edit", "view"].map(|role| {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{role}");
        (label, "true".to_owned())
    });
    let rules = vec![build_rule(&[GROUP], &["pods", "nodes"], &["get", "list", "watch"])];
    let mut role = build_role("system:aggregated-metrics-reader", rules);
    role.metadata.labels = Some(aggregated.into());
    role
}

fn build_rules() -> Vec<PolicyRule> {
    vec![
        build_rule(&[""], &["nodes/metrics"], &["get"]),
        build_rule(&[""], &["pods", "nodes"], &["get", "list", "watch"]),
    ]
}

/// Allows it to read how the API server authenticates as a proxy.
fn build_authentication() -> RoleBinding {
    RoleBinding {
        metadata: build_metadata("metrics-server-auth-reader", BTreeMap::new()),
        role_ref: build_role_ref("Role", "extension-apiserver-authentication-reader"),
        subjects: Some(vec![build_subject(NAME)]),
    }
}

fn build_service() -> Service {
    Service {
        metadata: build_metadata(NAME, to_labels(NAME)),
        spec: Some(ServiceSpec {
            ports: Some(vec![ServicePort {
                name: Some("https".into()),
                app_protocol: Some("https".into()),
                port: 443,
                target_port: Some(IntOrString::Int(PORT)),
                protocol: Some("TCP".into()),
                ..ServicePort::default()
            }]),
            selector: Some(to_labels(NAME)),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn build_deployment(facts: &Facts<'_>, files_digest: String) -> Deployment {
    Deployment {
        metadata: build_metadata(NAME, to_labels(NAME)),
        spec: Some(DeploymentSpec {
            selector: to_selector(NAME),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_unavailable: Some(IntOrString::Int(0)),
                    ..RollingUpdateDeployment::default()
                }),
            }),
            // metrics-server reads the CA only once.
            template: build_template(
                NAME,
                Some(files_digest),
                PodSpec {
                    service_account_name: Some(NAME.into()),
                    priority_class_name: Some("system-cluster-critical".into()),
                    node_selector: Some(to_map(&[("kubernetes.io/os", "linux")])),
                    // While its API has no Pod, no namespace can be deleted.
                    tolerations: Some(vec![Toleration {
                        effect: Some("NoSchedule".into()),
                        ..build_toleration(None)
                    }]),
                    containers: vec![build_container(
                        images::to_metrics_server(facts),
                        &facts.config.image_pull_policy,
                    )],
                    volumes: Some(vec![
                        build_volume(NAME, None),
                        Volume {
                            name: "scratch".into(),
                            empty_dir: Some(EmptyDirVolumeSource::default()),
                            ..Volume::default()
                        },
                    ]),
                    ..PodSpec::default()
                },
            ),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn build_container(image: String, pull_policy: &str) -> Container {
    let probe = |path: &str| Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(PORT),
            scheme: Some("HTTPS".into()),
            ..HTTPGetAction::default()
        }),
        ..Probe::default()
    };
    let quantities = [("cpu", "100m"), ("memory", "200Mi")].map(|(name, value)| (name.into(), Quantity(value.into())));
    Container {
        name: NAME.into(),
        image: Some(image),
        image_pull_policy: Some(pull_policy.into()),
        args: Some(vec![
            format!("--cert-dir={SCRATCH}"),
            format!("--secure-port={PORT}"),
            "--kubelet-preferred-address-types=InternalIP".into(),
            "--kubelet-use-node-status-port".into(),
            format!("--kubelet-certificate-authority={FILES}/{KUBELET_CA}"),
            "--metric-resolution=15s".into(),
        ]),
        ports: Some(vec![ContainerPort {
            name: Some("https".into()),
            container_port: PORT,
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        resources: Some(ResourceRequirements {
            requests: Some(quantities.into()),
            ..ResourceRequirements::default()
        }),
        liveness_probe: Some(probe("/livez")),
        readiness_probe: Some(probe("/readyz")),
        security_context: Some(SecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(1000),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                localhost_profile: None,
            }),
            ..build_security()
        }),
        volume_mounts: Some(vec![
            build_mount(NAME, FILES),
            VolumeMount {
                name: "scratch".into(),
                mount_path: SCRATCH.into(),
                ..VolumeMount::default()
            },
        ]),
        ..Container::default()
    }
}

fn build_api() -> APIService {
    APIService {
        metadata: ObjectMeta {
            name: Some(format!("{VERSION}.{GROUP}")),
            ..ObjectMeta::default()
        },
        spec: Some(APIServiceSpec {
            group: Some(GROUP.into()),
            version: Some(VERSION.into()),
            service: Some(ServiceReference {
                name: Some(NAME.into()),
                namespace: Some(NAMESPACE.into()),
                ..ServiceReference::default()
            }),
            // metrics-server has a self-signed certificate. The API server authenticates with a
            // client certificate, and requests nothing that workers may not know.
            insecure_skip_tls_verify: Some(true),
            group_priority_minimum: 100,
            version_priority: 100,
            ..APIServiceSpec::default()
        }),
        status: None,
    }
}
