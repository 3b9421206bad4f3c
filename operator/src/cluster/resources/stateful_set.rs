//! Builds the StatefulSet of a control plane: one pod of four containers, or five with a
//! konnectivity-server. No volume outlives the pod.

use data_encoding::HEXLOWER;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetOrdinals, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, ExecAction,
    HTTPGetAction, HostAlias, Lifecycle, LifecycleHandler, PodDNSConfig, PodDNSConfigOption, PodSecurityContext,
    PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;
use sha2::{Digest as _, Sha256};
use yoke_api::labels::{self, component};
use yoke_api::names::{API_PORT, API_PORT_NAME};

use crate::cluster::resources::arguments::{self, CONFIG, LAUNCH_DIR, PKI, SOCKET_DIR, STORE_PORT};
use crate::cluster::resources::objects::{API_SERVER_FILES, selector};
use crate::cluster::resources::{Blueprint, affinity, konnectivity, secrets};
use crate::host_nodes::loss::LostPod;
use crate::model::control_plane::NAME;
use crate::model::pod_security::build_security;
use crate::model::quantity;

/// Port name that the chart's PodMonitor selects.
const STORE_PORT_NAME: &str = "store-metrics";
const CONTROLLER_MANAGER_PORT: u16 = 10257;
const SCHEDULER_PORT: u16 = 10259;
/// How long a pod that is being deleted still serves, unless it is released: as long as a standby
/// pod takes to become ready.
pub(crate) const LINGER_SECONDS: i64 = 20;
/// How long a stopping store still serves, unless it is unused before: the API server exits after
/// its own wait.
const SERVE_SECONDS: i64 = LINGER_SECONDS + 5;
/// The store writes a snapshot and a resign record after that, well within this time.
const GRACE_SECONDS: i64 = SERVE_SECONDS + 10;
/// Grace period of a container that failed its liveness probe: its hook does not wait then.
const SILENT_SECONDS: i64 = 5;
/// Mode of files that a group may read, which is the pod's own.
pub(crate) const SECRET_MODE: i32 = 0o440;
/// Checks of a starting kube-apiserver that its probes skip. They create objects that exist since
/// the cluster's first start, which the condition `Ready` reports. An API server answers correctly
/// before it has checked each of them. Measured: they take 1.1 s of the 2.3 s from its start.
const NOT_AWAITED: [&str; 2] = ["rbac/bootstrap-roles", "scheduling/bootstrap-system-priority-classes"];
/// Annotation with the container whose logs `kubectl logs` shows by default:
/// <https://kubernetes.io/docs/reference/labels-annotations-taints/#kubectl-kubernetes-io-default-container>.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
const SOCKET: &str = "socket";
const LAUNCH: &str = "launch";
/// Address without a DNS server, so that a lookup fails at once.
const NO_DNS: &str = "127.0.0.1";
/// `GOGC` of a component. Go's default of 100 takes 37 MiB more at rest, where there is little to
/// collect.
const COLLECTOR: &str = "30";
/// `GOGC` of kube-apiserver, whose start others wait for. At 30 it spends two fifths of its start
/// on collection. At 50 it takes 13 MiB more at rest.
const API_SERVER_COLLECTOR: &str = "40";
/// `GOMAXPROCS` of a component whose class has no CPU limit, from which Go would take it. By
/// default Go has memory for each core of the node, and wakes threads on them.
const CORES: &str = "2";

/// The part of a control plane that follows from observed objects, not from the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Incarnation of this start; the store fences lower ones.
    pub incarnation: u64,
    /// Digest of the files that are read only once.
    pub digest: String,
    /// 0 while asleep, 2 with a standby pod, else 1.
    pub replicas: i32,
    /// Ordinal of the serving pod; a standby pod has the next one.
    pub first: i32,
    /// Whether NATS has the stream for every other snapshot: the store would wait for a missing
    /// one.
    pub has_spare: bool,
    /// Whether there is a konnectivity-server: its container would wait for a missing Secret.
    pub has_konnectivity: bool,
    /// The pod that this one replaces, if that was lost with its node.
    pub lost: Option<LostPod>,
}

/// Builds the StatefulSet.
pub fn build_stateful_set(blueprint: &Blueprint<'_>, start: &Start) -> StatefulSet {
    let identity = blueprint.identity;
    StatefulSet {
        metadata: identity.hosted_meta(NAME, component::CONTROL_PLANE),
        spec: Some(StatefulSetSpec {
            replicas: Some(start.replicas),
            ordinals: (start.first > 0).then_some(StatefulSetOrdinals {
                start: Some(start.first),
            }),
            selector: LabelSelector {
                match_labels: Some(selector(identity)),
                ..LabelSelector::default()
            },
            service_name: Some(identity.cluster.clone()),
            pod_management_policy: Some("Parallel".into()),
            revision_history_limit: Some(2),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: None,
            }),
            template: build_template(blueprint, start),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// Builds a strategic merge patch that restarts a control plane with the same spec, for a file that
/// it reads only once. The patch sets only changed fields, and is refused if the StatefulSet has
/// changed.
pub fn build_restart(set: &StatefulSet, incarnation: u64, digest: &str, lost: Option<&LostPod>) -> StatefulSet {
    let annotations = [
        (labels::INCARNATION, incarnation.to_string()),
        (labels::CONFIG_DIGEST, digest.to_owned()),
    ];
    let mut annotations = annotations.map(|(key, value)| (key.to_owned(), value)).into();
    affinity::annotate(&mut annotations, lost);
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let containers = pod.into_iter().flat_map(|pod| &pod.containers);
    let renumbered = containers.filter_map(|container| {
        let mut arguments = container.args.clone()?;
        arguments::renumber_store(&mut arguments, incarnation);
        (container.args.as_ref() != Some(&arguments)).then(|| Container {
            name: container.name.clone(),
            args: Some(arguments),
            ..Container::default()
        })
    });
    StatefulSet {
        metadata: ObjectMeta {
            resource_version: set.metadata.resource_version.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(StatefulSetSpec {
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                }),
                spec: Some(PodSpec {
                    affinity: affinity::build_affinity(lost),
                    containers: renumbered.collect(),
                    ..PodSpec::default()
                }),
            },
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// The digest of the files that a control plane has read once.
pub fn read_digest(set: &StatefulSet) -> Option<&String> {
    let meta = set.spec.as_ref()?.template.metadata.as_ref()?;
    meta.annotations.as_ref()?.get(labels::CONFIG_DIGEST)
}

/// Whether its store uses the stream for every other snapshot.
pub fn uses_spare(set: &StatefulSet) -> bool {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
    containers.any(has_spare)
}

fn has_spare(container: &Container) -> bool {
    container.args.iter().flatten().any(|given| given == arguments::SPARE)
}

/// Whether there is a konnectivity-server.
pub fn has_konnectivity(set: &StatefulSet) -> bool {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
    containers.any(|container| container.name == konnectivity::NAME)
}

/// Removes from a cached StatefulSet everything of its pod template that this module does not read.
/// There may be thousands, of 60 KiB each.
pub fn keep_facts(set: &mut StatefulSet) {
    let Some(pod) = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) else {
        return;
    };
    let kept = pod.containers.drain(..).filter_map(|container| {
        let spare = has_spare(&container).then(|| vec![arguments::SPARE.to_owned()]);
        (spare.is_some() || container.name == konnectivity::NAME).then_some(Container {
            name: container.name,
            args: spare,
            ..Container::default()
        })
    });
    *pod = PodSpec {
        containers: kept.collect(),
        affinity: pod.affinity.take(),
        dns_config: pod.dns_config.take(),
        ..PodSpec::default()
    };
}

/// Digest of the pod template without the incarnation.
pub fn template_digest(blueprint: &Blueprint<'_>, start: &Start) -> String {
    let start = Start {
        incarnation: 0,
        ..start.clone()
    };
    let template = serde_json::to_vec(&build_template(blueprint, &start)).expect("keys are strings only");
    HEXLOWER.encode(&Sha256::digest(&template)[..16])
}

fn build_template(blueprint: &Blueprint<'_>, start: &Start) -> PodTemplateSpec {
    let annotations = [
        (labels::INCARNATION, start.incarnation.to_string()),
        (labels::CONFIG_DIGEST, start.digest.clone()),
        (labels::VERSION, blueprint.accepted.version.to_string()),
        (DEFAULT_CONTAINER, "kube-apiserver".to_owned()),
    ];
    let mut annotations = annotations.map(|(key, value)| (key.to_owned(), value)).into();
    affinity::annotate(&mut annotations, start.lost.as_ref());
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(blueprint.identity.labels(component::CONTROL_PLANE)),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        }),
        spec: Some(build_pod(blueprint, start)),
    }
}

fn build_pod(blueprint: &Blueprint<'_>, start: &Start) -> PodSpec {
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

/// Whether a control plane has a DNS server, and so an OIDC provider.
pub fn has_dns(set: &StatefulSet) -> bool {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let servers = pod.and_then(|pod| pod.dns_config.as_ref()?.nameservers.as_deref());
    pod.is_some() && servers.is_none_or(|servers| *servers != [NO_DNS])
}

/// Builds the container of kine-nats, which starts before the API server and stops after it.
///
/// Start: the API server need not wait until the store is ready. The store listens at once and
/// delays requests, which the API server tolerates for 30 s. But the API server must wait for the
/// launcher: the kubelet starts the next container when the postStart hook of the previous one has
/// returned. Without that hook the other components would fail and restart.
///
/// Stop: the preStop hook returns when the API server has exited.
///
/// A native sidecar would have the same order but take longer: the kubelet notices only at its next
/// sync, up to a second later, that it has started.
fn build_store(blueprint: &Blueprint<'_>, start: &Start) -> Container {
    Container {
        name: "kine-nats".into(),
        image: Some(blueprint.config.kine_nats_image.clone()),
        args: Some(arguments::store(blueprint, start)),
        env: None,
        ports: Some(vec![ContainerPort {
            name: Some(STORE_PORT_NAME.into()),
            container_port: STORE_PORT.into(),
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        lifecycle: Some(Lifecycle {
            post_start: Some(LifecycleHandler {
                exec: Some(ExecAction {
                    command: Some(arguments::install_launch()),
                }),
                ..LifecycleHandler::default()
            }),
            ..build_hold(format!("/unused?seconds={SERVE_SECONDS}"))
        }),
        liveness_probe: Some(build_liveness("/livez", STORE_PORT, "HTTP")),
        volume_mounts: Some(vec![
            build_mount(secrets::STORE, arguments::STORE, true),
            build_mount(SOCKET, SOCKET_DIR, false),
            build_mount(LAUNCH, LAUNCH_DIR, false),
        ]),
        ..build_container(blueprint, blueprint.accepted.class.resources.store.clone())
    }
}

/// Turns a health path of an API server into the path that checks whether it serves a cluster that
/// had an API before.
pub fn to_serving(path: &str) -> String {
    let excluded = NOT_AWAITED.map(|hook| format!("exclude=poststarthook/{hook}"));
    format!("{path}?{}", excluded.join("&"))
}

fn build_api_server(blueprint: &Blueprint<'_>, start: &Start) -> Container {
    let alive = || build_liveness(&to_serving("/livez"), API_PORT, "HTTPS");
    let resources = blueprint.accepted.class.resources.api_server.clone();
    let base = build_collected(blueprint, resources, API_SERVER_COLLECTOR);
    let mut mounts = vec![
        build_mount(secrets::API_SERVER, PKI, true),
        build_mount("files", CONFIG, true),
        build_mount(SOCKET, SOCKET_DIR, false),
        build_mount(LAUNCH, LAUNCH_DIR, true),
    ];
    if start.has_konnectivity {
        mounts.push(build_mount(konnectivity::SOCKET, konnectivity::SOCKET_DIR, false));
    }
    Container {
        name: "kube-apiserver".into(),
        image: Some(blueprint.accepted.catalogue.images.api_server.clone()),
        command: Some(arguments::api_server(blueprint, start)),
        ports: Some(vec![ContainerPort {
            name: Some(API_PORT_NAME.into()),
            container_port: API_PORT.into(),
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        }]),
        startup_probe: Some(Probe {
            period_seconds: Some(1),
            failure_threshold: Some(180),
            ..alive()
        }),
        liveness_probe: Some(build_patient(alive())),
        readiness_probe: Some(Probe {
            period_seconds: Some(5),
            timeout_seconds: Some(5),
            ..build_probe(&to_serving("/readyz"), API_PORT, "HTTPS")
        }),
        security_context: Some(SecurityContext {
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                // The binary in the upstream image has this as a file capability, and does not
                // start without it.
                add: Some(vec!["NET_BIND_SERVICE".into()]),
            }),
            ..build_security()
        }),
        volume_mounts: Some(mounts),
        ..base
    }
}

fn build_controller_manager(blueprint: &Blueprint<'_>) -> Container {
    let class = blueprint.accepted.class;
    Container {
        name: "kube-controller-manager".into(),
        image: Some(blueprint.accepted.catalogue.images.controller_manager.clone()),
        command: Some(arguments::controller_manager(blueprint)),
        liveness_probe: Some(build_client_probe(CONTROLLER_MANAGER_PORT)),
        volume_mounts: Some(vec![
            build_mount(secrets::CONTROLLER_MANAGER, PKI, true),
            build_mount(LAUNCH, LAUNCH_DIR, true),
        ]),
        ..build_container(blueprint, class.resources.controller_manager.clone())
    }
}

fn build_scheduler(blueprint: &Blueprint<'_>) -> Container {
    let class = blueprint.accepted.class;
    Container {
        name: "kube-scheduler".into(),
        image: Some(blueprint.accepted.catalogue.images.scheduler.clone()),
        command: Some(arguments::scheduler(blueprint)),
        liveness_probe: Some(build_client_probe(SCHEDULER_PORT)),
        volume_mounts: Some(vec![
            build_mount(secrets::SCHEDULER, PKI, true),
            build_mount(LAUNCH, LAUNCH_DIR, true),
        ]),
        ..build_container(blueprint, class.resources.scheduler.clone())
    }
}

pub(crate) fn build_container(blueprint: &Blueprint<'_>, resources: Option<ResourceRequirements>) -> Container {
    build_collected(blueprint, resources, COLLECTOR)
}

fn build_collected(blueprint: &Blueprint<'_>, resources: Option<ResourceRequirements>, collector: &str) -> Container {
    let limit = |name| {
        resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref()?.get(name))
    };
    let memory = limit("memory").and_then(|limit| quantity::to_bytes(limit).ok());
    let mut variables = vec![build_variable("GOGC", collector.into())];
    if limit("cpu").is_none() {
        variables.push(build_variable("GOMAXPROCS", CORES.into()));
    }
    // Makes the garbage collector work harder before the kernel kills the process.
    variables.extend(memory.map(|bytes| build_variable("GOMEMLIMIT", (bytes / 10 * 9).to_string())));
    Container {
        image_pull_policy: Some(blueprint.config.image_pull_policy.clone()),
        env: Some(variables),
        lifecycle: Some(build_linger()),
        resources,
        security_context: Some(build_security()),
        ..Container::default()
    }
}

/// A preStop hook with which a component still serves until its store is released: another pod may
/// take over. It returns at once if no store answers. Every component waits, as a pod with one
/// terminated container is not ready.
fn build_linger() -> Lifecycle {
    build_hold(format!("/released?seconds={LINGER_SECONDS}"))
}

/// A preStop hook that returns when the store of the pod answers.
///
/// The kubelet waits for the answer for as long as the grace period:
/// <https://kubernetes.io/docs/concepts/containers/container-lifecycle-hooks/#hook-handler-execution>.
fn build_hold(path: String) -> Lifecycle {
    let asked = HTTPGetAction {
        path: Some(path),
        port: IntOrString::Int(STORE_PORT.into()),
        scheme: Some("HTTP".into()),
        ..HTTPGetAction::default()
    };
    Lifecycle {
        pre_stop: Some(LifecycleHandler {
            http_get: Some(asked),
            ..LifecycleHandler::default()
        }),
        ..Lifecycle::default()
    }
}

fn build_variable(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    }
}

fn build_probe(path: &str, port: u16, scheme: &str) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(port.into()),
            scheme: Some(scheme.into()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(10),
        timeout_seconds: Some(5),
        failure_threshold: Some(3),
        ..Probe::default()
    }
}

/// A liveness probe, after whose failure the kubelet restarts the container.
pub(crate) fn build_liveness(path: &str, port: u16, scheme: &str) -> Probe {
    Probe {
        termination_grace_period_seconds: Some(SILENT_SECONDS),
        ..build_probe(path, port, scheme)
    }
}

/// A liveness probe for a component that may have to wait first: for the API server of its pod, and
/// in a standby pod for the takeover.
fn build_client_probe(port: u16) -> Probe {
    Probe {
        initial_delay_seconds: Some(180),
        ..build_patient(build_liveness("/healthz", port, "HTTPS"))
    }
}

/// A probe for a component that may be slow for as long as kubeadm allows, 80 s. It runs less
/// often, as each run opens a TLS connection.
fn build_patient(probe: Probe) -> Probe {
    Probe {
        period_seconds: Some(20),
        timeout_seconds: Some(15),
        failure_threshold: Some(4),
        ..probe
    }
}

pub(crate) fn build_mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn build_volumes() -> Vec<Volume> {
    let secrets = [
        secrets::API_SERVER,
        secrets::CONTROLLER_MANAGER,
        secrets::SCHEDULER,
        secrets::STORE,
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
