//! konnectivity agents: one per worker, through which the control plane reaches the worker.
//!
//! An agent uses its worker's host network, so that it depends only on the kubelet. It announces
//! its node's address, and konnectivity-server sends traffic for a node through the agent on it.
//! The agent dials the ingress by a name that need not resolve in DNS.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, HTTPGetAction, HostAlias, KeyToPath, PodSecurityContext, PodSpec, Probe,
    ProjectedVolumeSource, SeccompProfile, ServiceAccount, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use yoke_pki::plan::KONNECTIVITY_USER;

use crate::addons::facts::Facts;
use crate::addons::kube_system::{
    DaemonPods, build_daemon_set, build_metadata, build_mount, build_toleration, build_variable, to_labels,
};
use crate::addons::part::Parts;
use crate::model::pod_security::build_security;
use crate::model::rbac::{build_binding, to_user};

/// Name of their ServiceAccount and DaemonSet.
pub(crate) const NAME: &str = "konnectivity-agent";
/// Audience of their tokens, which no API server accepts.
pub(crate) const AUDIENCE: &str = "system:konnectivity-server";

/// An unprivileged user ID without an owner on the node.
const USER: i64 = 65532;
const HEALTH_PORT: u16 = 8093;
/// Path of the token and the CA.
const FILES: &str = "/var/run/konnectivity";

pub(super) fn build(facts: &Facts<'_>, parts: &mut Parts) {
    parts.add(&ServiceAccount {
        metadata: build_metadata(NAME, to_labels(NAME)),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    });
    // Allows konnectivity-server to review tokens.
    parts.add(&build_binding(
        "yoke:konnectivity-server",
        to_user(KONNECTIVITY_USER),
        "system:auth-delegator",
    ));
    parts.add(&build_daemon_set(DaemonPods {
        name: NAME,
        app: NAME,
        files_digest: None,
        pod: build_pod(facts),
        update: DaemonPods::tenth(),
    }));
}

fn build_pod(facts: &Facts<'_>) -> PodSpec {
    // If the ingress has a name instead of an address, it is found through DNS, and this name must
    // be too.
    let address: Option<IpAddr> = facts.config.ingress.address.parse().ok();
    let alias = address.map(|address| HostAlias {
        ip: address.to_string(),
        hostnames: Some(vec![facts.public_name.konnectivity()]),
    });
    PodSpec {
        service_account_name: Some(NAME.into()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        host_network: Some(true),
        host_aliases: alias.map(|alias| vec![alias]),
        dns_policy: Some("Default".into()),
        priority_class_name: Some("system-node-critical".into()),
        // Also on a node that is not ready: the agent may be needed to find out why.
        tolerations: Some(vec![build_toleration(None)]),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        containers: vec![build_container(facts)],
        volumes: Some(vec![build_files()]),
        ..PodSpec::default()
    }
}

fn build_container(facts: &Facts<'_>) -> Container {
    let config = facts.config;
    Container {
        name: NAME.into(),
        image: Some(config.konnectivity_agent_image.clone()),
        image_pull_policy: Some(config.image_pull_policy.clone()),
        args: Some(vec![
            format!("--proxy-server-host={}", facts.public_name.konnectivity()),
            format!("--proxy-server-port={}", config.ingress.port),
            format!("--ca-cert={FILES}/ca.crt"),
            format!("--service-account-token-path={FILES}/token"),
            "--agent-identifiers=host=$(HOST_IP)".into(),
            format!("--health-server-port={HEALTH_PORT}"),
            "--health-server-host=127.0.0.1".into(),
            // A NAT may drop a connection that is idle for longer.
            "--keepalive-time=1m".into(),
        ]),
        env: Some(vec![build_variable("HOST_IP", "status.hostIP")]),
        liveness_probe: Some(Probe {
            http_get: Some(HTTPGetAction {
                host: Some("127.0.0.1".into()),
                path: Some("/healthz".into()),
                port: IntOrString::Int(HEALTH_PORT.into()),
                ..HTTPGetAction::default()
            }),
            initial_delay_seconds: Some(15),
            timeout_seconds: Some(15),
            ..Probe::default()
        }),
        security_context: Some(build_security()),
        volume_mounts: Some(vec![build_mount("files", FILES)]),
        ..Container::default()
    }
}

/// A token that is valid only for konnectivity-server, and the CA to verify it.
fn build_files() -> Volume {
    let token = VolumeProjection {
        service_account_token: Some(ServiceAccountTokenProjection {
            audience: Some(AUDIENCE.into()),
            path: "token".into(),
            ..ServiceAccountTokenProjection::default()
        }),
        ..VolumeProjection::default()
    };
    let root = VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name: "kube-root-ca.crt".into(),
            items: Some(vec![KeyToPath {
                key: "ca.crt".into(),
                path: "ca.crt".into(),
                mode: None,
            }]),
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    };
    Volume {
        name: "files".into(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(vec![token, root]),
            ..ProjectedVolumeSource::default()
        }),
        ..Volume::default()
    }
}
