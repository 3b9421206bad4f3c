//! Builds a node affinity against lost nodes, whose loss the host's scheduler does not know yet.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm,
};
use yoke_api::labels;

use crate::model::lost_pod::LostPod;

/// The field of a Node that the affinity matches.
const NAME: &str = "metadata.name";
/// The highest weight of a preference. It is not a requirement: a host whose only node recovers
/// still runs the pod.
const WEIGHT: i32 = 100;

/// Annotates a template with the lost pod that its pod replaces, so that the template differs.
pub(crate) fn annotate(annotations: &mut BTreeMap<String, String>, lost: Option<&LostPod>) {
    if let Some(lost) = lost {
        annotations.insert(labels::LOST_POD.to_owned(), lost.pod.clone());
    }
}

/// The preference for other nodes than the lost ones.
pub(crate) fn build_affinity(lost: Option<&LostPod>) -> Option<Affinity> {
    let other = |node: &String| NodeSelectorRequirement {
        key: NAME.into(),
        operator: "NotIn".into(),
        values: Some(vec![node.clone()]),
    };
    let fields = lost?.nodes.iter().map(other).collect();
    let term = PreferredSchedulingTerm {
        weight: WEIGHT,
        preference: NodeSelectorTerm {
            match_fields: Some(fields),
            match_expressions: None,
        },
    };
    Some(Affinity {
        node_affinity: Some(NodeAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![term]),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    })
}

/// Reads the lost pod and its nodes from the template of a StatefulSet.
pub fn read_lost(set: &StatefulSet) -> Option<LostPod> {
    let template = &set.spec.as_ref()?.template;
    let pod = template
        .metadata
        .as_ref()?
        .annotations
        .as_ref()?
        .get(labels::LOST_POD)?;
    let affinity = template.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = affinity.preferred_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = terms
        .iter()
        .flat_map(|term| term.preference.match_fields.iter().flatten());
    let nodes = fields.flat_map(|field| field.values.iter().flatten());
    Some(LostPod {
        pod: pod.clone(),
        nodes: nodes.cloned().collect(),
    })
}
