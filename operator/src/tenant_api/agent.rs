//! konnectivity agents in a tenant's cluster: who they are, and the DaemonSet that brings one to each worker. Pure.
//!
//! An agent is on its worker's own network, so that it needs nothing but the kubelet, and tells by which address it is found: the
//! konnectivity-server sends what is for a node to the agent on it. It dials the ingress by a name that need not resolve.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, EnvVar, EnvVarSource, HTTPGetAction, HostAlias, KeyToPath, ObjectFieldSelector,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ProjectedVolumeSource, SeccompProfile, ServiceAccount,
    ServiceAccountTokenProjection, Toleration, Volume, VolumeMount, VolumeProjection,
};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use yoke_api::names::PublicName;
use yoke_pki::plan::KONNECTIVITY_USER;

use super::base::to_user;
use crate::config::Config;
use crate::rbac::build_binding;
use crate::security::build_security;

/// Namespace of the agents.
pub const NAMESPACE: &str = "kube-system";
/// Name of their ServiceAccount and DaemonSet.
pub const NAME: &str = "konnectivity-agent";
/// Audience of their tokens, which no API server accepts.
pub const AUDIENCE: &str = "system:konnectivity-server";

/// Of no machine in particular: agents run as nobody.
const USER: i64 = 65532;
const HEALTH_PORT: u16 = 8093;
/// Where the token and the CA are.
const FILES: &str = "/var/run/konnectivity";

/// What a cluster with agents has for them.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentObjects {
    /// Lets the konnectivity-server ask whose a token is.
    pub binding: ClusterRoleBinding,
    /// Who the agents are.
    pub account: ServiceAccount,
    /// The agents.
    pub agents: DaemonSet,
}

/// Builds [`AgentObjects`] for the cluster of that name.
pub fn build_agent(public_name: &PublicName, config: &Config) -> AgentObjects {
    AgentObjects {
        binding: build_binding(
            "yoke:konnectivity-server",
            to_user(KONNECTIVITY_USER),
            "system:auth-delegator",
        ),
        account: ServiceAccount {
            metadata: build_metadata(),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        },
        agents: build_agents(public_name, config),
    }
}

fn build_metadata() -> ObjectMeta {
    ObjectMeta {
        name: Some(NAME.into()),
        namespace: Some(NAMESPACE.into()),
        labels: Some(labels()),
        ..ObjectMeta::default()
    }
}

fn labels() -> BTreeMap<String, String> {
    [("k8s-app".to_owned(), NAME.to_owned())].into()
}

fn build_agents(public_name: &PublicName, config: &Config) -> DaemonSet {
    DaemonSet {
        metadata: build_metadata(),
        spec: Some(DaemonSetSpec {
            selector: LabelSelector {
                match_labels: Some(labels()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels()),
                    ..ObjectMeta::default()
                }),
                spec: Some(build_pod(public_name, config)),
            },
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateDaemonSet {
                    max_unavailable: Some(IntOrString::String("10%".into())),
                    ..RollingUpdateDaemonSet::default()
                }),
            }),
            ..DaemonSetSpec::default()
        }),
        status: None,
    }
}

fn build_pod(public_name: &PublicName, config: &Config) -> PodSpec {
    // An ingress that has a name instead of an address is found by DNS, and so must this name be.
    let address: Option<IpAddr> = config.ingress.address.parse().ok();
    let alias = address.map(|address| HostAlias {
        ip: address.to_string(),
        hostnames: Some(vec![public_name.konnectivity()]),
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
        tolerations: Some(vec![Toleration {
            operator: Some("Exists".into()),
            ..Toleration::default()
        }]),
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
        containers: vec![build_container(public_name, config)],
        volumes: Some(vec![build_files()]),
        ..PodSpec::default()
    }
}

fn build_container(public_name: &PublicName, config: &Config) -> Container {
    Container {
        name: NAME.into(),
        image: Some(config.konnectivity_agent_image.clone()),
        image_pull_policy: Some(config.image_pull_policy.clone()),
        args: Some(vec![
            format!("--proxy-server-host={}", public_name.konnectivity()),
            format!("--proxy-server-port={}", config.ingress.port),
            format!("--ca-cert={FILES}/ca.crt"),
            format!("--service-account-token-path={FILES}/token"),
            "--agent-identifiers=host=$(HOST_IP)".into(),
            format!("--health-server-port={HEALTH_PORT}"),
            "--health-server-host=127.0.0.1".into(),
            // A NAT may forget a connection that is silent for longer.
            "--keepalive-time=1m".into(),
        ]),
        env: Some(vec![EnvVar {
            name: "HOST_IP".into(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".into()),
                    field_path: "status.hostIP".into(),
                }),
                ..EnvVarSource::default()
            }),
        }]),
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
        volume_mounts: Some(vec![VolumeMount {
            name: "files".into(),
            mount_path: FILES.into(),
            read_only: Some(true),
            ..VolumeMount::default()
        }]),
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::object::is_so;
    use super::*;

    fn config(change: impl FnOnce(&mut Config)) -> Config {
        let mut config = Config::parse(include_str!("../../testdata/config.yaml")).unwrap();
        change(&mut config);
        config
    }

    fn name() -> PublicName {
        let id: yoke_api::ClusterId = "bcdfghjk24".parse().unwrap();
        id.public_name("demo", "yoke.test")
    }

    #[test]
    fn objects_are_as_written_down() {
        let objects = build_agent(&name(), &config(|_| {}));
        let documents = [
            serde_saphyr::to_string(&objects.binding),
            serde_saphyr::to_string(&objects.account),
            serde_saphyr::to_string(&objects.agents),
        ];
        let text = documents.map(Result::unwrap).join("---\n");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/agent.yaml");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, expected, "{}; UPDATE=1 writes it anew", path.display());
    }

    #[test]
    fn an_ingress_without_an_address_is_found_by_dns() {
        let objects = build_agent(
            &name(),
            &config(|config| config.ingress.address = "in.example.org".into()),
        );
        let pod = objects.agents.spec.unwrap().template.spec.unwrap();
        assert_eq!(pod.host_aliases, None);
    }

    /// What a server adds to a DaemonSet is no reason to write it again and again.
    #[test]
    fn agents_are_recognised_among_what_a_server_adds() {
        let wanted = build_agent(&name(), &config(|_| {})).agents;
        let mut found = wanted.clone();
        found.metadata.generation = Some(1);
        let spec = found.spec.as_mut().unwrap();
        spec.revision_history_limit = Some(10);
        let pod = spec.template.spec.as_mut().unwrap();
        pod.scheduler_name = Some("default-scheduler".into());
        pod.containers[0].termination_message_path = Some("/dev/termination-log".into());
        let volume = pod.volumes.as_mut().unwrap()[0].projected.as_mut().unwrap();
        volume.default_mode = Some(0o644);
        let token = volume.sources.as_mut().unwrap()[0].service_account_token.as_mut();
        token.unwrap().expiration_seconds = Some(3600);
        assert!(is_so(&wanted, &found));
        found.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("other".into());
        assert!(!is_so(&wanted, &found));
    }
}
