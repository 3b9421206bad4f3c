//! Builds the StatefulSet of a control plane: one pod of four containers, or five with a
//! konnectivity-server. No volume outlives the pod.

pub(crate) use crate::cluster::resources::hooks::LINGER_SECONDS;
pub use crate::cluster::resources::probes::to_serving;
pub use crate::cluster::resources::start::Start;
pub use crate::cluster::resources::template_facts::{has_dns, has_konnectivity, keep_facts, read_digest, uses_spare};

use data_encoding::HEXLOWER;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetOrdinals, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::ObjectMeta;
use sha2::{Digest as _, Sha256};
use yoke_api::labels::{self, component};

use crate::cluster::resources::blueprint::Blueprint;
use crate::cluster::resources::names::selector;
use crate::cluster::resources::pod::build_pod;
use crate::cluster::resources::{affinity, arguments};
use crate::model::control_plane::NAME;
use crate::model::lost_pod::LostPod;

/// Annotation with the container whose logs `kubectl logs` shows by default:
/// <https://kubernetes.io/docs/reference/labels-annotations-taints/#kubectl-kubernetes-io-default-container>.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

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
