//! Reads facts from the pod template of an existing StatefulSet, and trims a cached one to them.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Container, PodSpec};
use yoke_api::labels;

use crate::cluster::resources::pod::NO_DNS;
use crate::cluster::resources::{arguments, konnectivity};

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

/// Whether a control plane has a DNS server, and so an OIDC provider.
pub fn has_dns(set: &StatefulSet) -> bool {
    let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let servers = pod.and_then(|pod| pod.dns_config.as_ref()?.nameservers.as_deref());
    pod.is_some() && servers.is_none_or(|servers| *servers != [NO_DNS])
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
