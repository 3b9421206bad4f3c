//! Builds the containers of the store and of Kubernetes' components.

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, ExecAction, Lifecycle, LifecycleHandler, Probe, SecurityContext,
};
use yoke_api::names::{API_PORT, API_PORT_NAME};

use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::container::{API_SERVER_COLLECTOR, build_collected, build_container, build_mount};
use crate::cluster::resources::hooks::{SERVE_SECONDS, build_hold};
use crate::cluster::resources::paths::{self, CONFIG, LAUNCH_DIR, PKI, SOCKET_DIR};
use crate::cluster::resources::ports::{CONTROLLER_MANAGER_PORT, SCHEDULER_PORT, STORE_PORT};
use crate::cluster::resources::probes::{build_client_probe, build_liveness, build_patient, build_probe, to_serving};
use crate::cluster::resources::start::Start;
use crate::cluster::resources::{arguments, konnectivity, names};
use crate::model::pod_security::build_security;

/// Port name that the chart's PodMonitor selects.
const STORE_PORT_NAME: &str = "store-metrics";
/// Volume of the store's socket.
pub(crate) const SOCKET: &str = "socket";
/// Volume of the launcher.
pub(crate) const LAUNCH: &str = "launch";

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
pub(crate) fn build_store(blueprint: &Blueprint<'_>, start: &Start) -> Container {
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
            build_mount(names::STORE, paths::STORE, true),
            build_mount(SOCKET, SOCKET_DIR, false),
            build_mount(LAUNCH, LAUNCH_DIR, false),
        ]),
        ..build_container(blueprint, blueprint.accepted.class.resources.store.clone())
    }
}

/// Builds the container of kube-apiserver.
pub(crate) fn build_api_server(blueprint: &Blueprint<'_>, start: &Start) -> Container {
    let alive = || build_liveness(&to_serving("/livez"), API_PORT, "HTTPS");
    let resources = blueprint.accepted.class.resources.api_server.clone();
    let base = build_collected(blueprint, resources, API_SERVER_COLLECTOR);
    let mut mounts = vec![
        build_mount(names::API_SERVER, PKI, true),
        build_mount("files", CONFIG, true),
        build_mount(SOCKET, SOCKET_DIR, false),
        build_mount(LAUNCH, LAUNCH_DIR, true),
    ];
    if start.has_konnectivity {
        mounts.push(build_mount(konnectivity::SOCKET, paths::KONNECTIVITY_SOCKET_DIR, false));
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

/// Builds the container of kube-controller-manager.
pub(crate) fn build_controller_manager(blueprint: &Blueprint<'_>) -> Container {
    let class = blueprint.accepted.class;
    Container {
        name: "kube-controller-manager".into(),
        image: Some(blueprint.accepted.catalogue.images.controller_manager.clone()),
        command: Some(arguments::controller_manager(blueprint)),
        liveness_probe: Some(build_client_probe(CONTROLLER_MANAGER_PORT)),
        volume_mounts: Some(vec![
            build_mount(names::CONTROLLER_MANAGER, PKI, true),
            build_mount(LAUNCH, LAUNCH_DIR, true),
        ]),
        ..build_container(blueprint, class.resources.controller_manager.clone())
    }
}

/// Builds the container of kube-scheduler.
pub(crate) fn build_scheduler(blueprint: &Blueprint<'_>) -> Container {
    let class = blueprint.accepted.class;
    Container {
        name: "kube-scheduler".into(),
        image: Some(blueprint.accepted.catalogue.images.scheduler.clone()),
        command: Some(arguments::scheduler(blueprint)),
        liveness_probe: Some(build_client_probe(SCHEDULER_PORT)),
        volume_mounts: Some(vec![
            build_mount(names::SCHEDULER, PKI, true),
            build_mount(LAUNCH, LAUNCH_DIR, true),
        ]),
        ..build_container(blueprint, class.resources.scheduler.clone())
    }
}
