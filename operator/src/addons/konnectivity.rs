//! konnectivity's agents: one on each worker, by which the control plane reaches what is there.
//!
//! An agent is on its worker's own network, so that it needs nothing but the kubelet, and tells by which address it is found: the
//! konnectivity-server sends what is for a node to the agent on it. It dials the ingress by a name that need not resolve.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, HTTPGetAction, HostAlias, KeyToPath, PodSecurityContext, PodSpec, Probe,
    ProjectedVolumeSource, SeccompProfile, ServiceAccount, ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use yoke_pki::plan::KONNECTIVITY_USER;

use super::kube_system::{
    DaemonPods, build_daemon_set, build_metadata, build_mount, build_toleration, build_variable, to_labels,
};
use super::{Facts, Parts};
use crate::rbac::{build_binding, to_user};
use crate::security::build_security;

/// Name of their ServiceAccount and DaemonSet.
pub(crate) const NAME: &str = "konnectivity-agent";
/// Audience of their tokens, which no API server accepts.
pub(crate) const AUDIENCE: &str = "system:konnectivity-server";

/// Of no machine in particular: agents run as nobody.
const USER: i64 = 65532;
const HEALTH_PORT: u16 = 8093;
/// Where the token and the CA are.
const FILES: &str = "/var/run/konnectivity";

pub(super) fn build(facts: &Facts<'_>, parts: &mut Parts) {
    parts.add(&ServiceAccount {
        metadata: build_metadata(NAME, to_labels(NAME)),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    });
    // Lets the konnectivity-server ask whose a token is.
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
    // An ingress that has a name instead of an address is found by DNS, and so must this name be.
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
        // Also to a node that is not ready: it may be what is asked why.
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
            // A NAT may forget a connection that is silent for longer.
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

/// A token for the konnectivity-server alone, and by what that is recognised.
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
