//! The part that all containers of a control plane have in common.

use k8s_openapi::api::core::v1::{Container, EnvVar, ResourceRequirements, VolumeMount};

use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::hooks::build_linger;
use crate::model::pod_security::build_security;
use crate::model::quantity;

/// Mode of files that a group may read, which is the pod's own.
pub(crate) const SECRET_MODE: i32 = 0o440;
/// `GOGC` of a component. Go's default of 100 takes 37 MiB more at rest, where there is little to
/// collect.
const COLLECTOR: &str = "30";
/// `GOGC` of kube-apiserver, whose start others wait for. At 30 it spends two fifths of its start
/// on collection. At 50 it takes 13 MiB more at rest.
pub(crate) const API_SERVER_COLLECTOR: &str = "40";
/// `GOMAXPROCS` of a component whose class has no CPU limit, from which Go would take it. By
/// default Go has memory for each core of the node, and wakes threads on them.
const CORES: &str = "2";

/// Builds a container without image, arguments and mounts.
pub(crate) fn build_container(blueprint: &Blueprint<'_>, resources: Option<ResourceRequirements>) -> Container {
    build_collected(blueprint, resources, COLLECTOR)
}

/// Builds a container with this `GOGC`.
pub(crate) fn build_collected(
    blueprint: &Blueprint<'_>,
    resources: Option<ResourceRequirements>,
    collector: &str,
) -> Container {
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

fn build_variable(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    }
}

/// Builds the mount of a volume.
pub(crate) fn build_mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}
