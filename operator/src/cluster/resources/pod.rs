//! Builds the pod of a control plane: its containers, its volumes and its DNS configuration.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, EmptyDirVolumeSource, HostAlias, PodDNSConfig, PodDNSConfigOption, PodSecurityContext,
    PodSpec, SeccompProfile, SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::components::{
    LAUNCH, SOCKET, build_api_server, build_controller_manager, build_scheduler, build_store,
};
use crate::cluster::resources::container::SECRET_MODE;
use crate::cluster::resources::hooks::GRACE_SECONDS;
use crate::cluster::resources::names::{self, API_SERVER_FILES};
use crate::cluster::resources::start::Start;
use crate::cluster::resources::{affinity, konnectivity};

/// Address without a DNS server, so that a lookup fails at once.
pub(crate) const NO_DNS: &str = "127.0.0.1";

/// Builds the pod.
pub(crate) fn build_pod(blueprint: &Blueprint<'_>, start: &Start) -> PodSpec {
    let (config, class) = (blueprint.config, blueprint.accepted.class);
    let alias = |(name, ip): (&String, &std::net::IpAddr)| HostAlias {
        ip: ip.to_string(),
        hostnames: Some(vec![name.clone()]),
    };
    let (dns_policy, dns_config) = build_dns(blueprint);
    // The kubelet starts the containers in this order.
    let mut containers = vec![
        build_store(blueprint, start),
        build_api_server(blueprint, start),
        build_controller_manager(blueprint),
        build_scheduler(blueprint),
    ];
    let mut volumes = build_volumes();
    if start.has_konnectivity {
        containers.push(konnectivity::build_server(blueprint));
        volumes.extend(konnectivity::build_volumes());
    }
    let aliases: Vec<_> = config.nats.host_aliases.iter().map(alias).collect();
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        node_selector: Some(class.node_selector.clone()).filter(|selector| !selector.is_empty()),
        tolerations: Some(class.tolerations.clone()).filter(|tolerations| !tolerations.is_empty()),
        priority_class_name: class.priority_class_name.clone(),
        affinity: affinity::build_affinity(start.lost.as_ref()),
        dns_policy: Some(dns_policy.into()),
        dns_config: Some(dns_config),
        host_aliases: Some(aliases).filter(|aliases| !aliases.is_empty()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(config.run_as_user),
            run_as_group: Some(config.run_as_user),
            fs_group: Some(config.run_as_user),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".into(),
                localhost_profile: None,
            }),
            ..PodSecurityContext::default()
        }),
        containers,
        volumes: Some(volumes),
        ..PodSpec::default()
    }
}

/// DNS configuration: a DNS server only for the name of an OIDC provider.
fn build_dns(blueprint: &Blueprint<'_>) -> (&'static str, PodDNSConfig) {
    let servers = |servers: Vec<String>| PodDNSConfig {
        nameservers: Some(servers),
        ..PodDNSConfig::default()
    };
    let given = &blueprint.config.oidc.nameservers;
    match (blueprint.has_provider(), given.is_empty()) {
        (false, _) => ("None", servers(vec![NO_DNS.into()])),
        (true, false) => ("None", servers(given.iter().map(ToString::to_string).collect())),
        // A provider's name is fully qualified, so the resolver must try it as it is first.
        (true, true) => {
            let option = PodDNSConfigOption {
                name: Some("ndots".into()),
                value: Some("1".into()),
            };
            let config = PodDNSConfig {
                options: Some(vec![option]),
                ..PodDNSConfig::default()
            };
            ("ClusterFirst", config)
        }
    }
}

fn build_volumes() -> Vec<Volume> {
    let secrets = [
        names::API_SERVER,
        names::CONTROLLER_MANAGER,
        names::SCHEDULER,
        names::STORE,
    ];
    let mut volumes: Vec<_> = secrets
        .into_iter()
        .map(|name| Volume {
            name: name.into(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(name.into()),
                default_mode: Some(SECRET_MODE),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        })
        .collect();
    volumes.push(Volume {
        name: "files".into(),
        config_map: Some(ConfigMapVolumeSource {
            name: API_SERVER_FILES.into(),
            default_mode: Some(SECRET_MODE),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: SOCKET.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".into()),
            size_limit: Some(Quantity("1Mi".into())),
        }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: LAUNCH.into(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: None,
            size_limit: Some(Quantity("16Mi".into())),
        }),
        ..Volume::default()
    });
    volumes
}
