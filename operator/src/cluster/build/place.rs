//! Where a control plane had better not be: on machines that were lost, of which the host's scheduler does not know yet.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    Affinity, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm,
};
use yoke_api::labels;

use crate::loss::Lost;

/// The field of a Node that a pod may be kept from.
const NAME: &str = "metadata.name";
/// As much as one wish can weigh. It is none that must be granted: a host whose only machine comes back takes the pod.
const WEIGHT: i32 = 100;

/// What a template notes of the pod in whose place its own comes, so that it is another template.
pub(super) fn annotate(annotations: &mut BTreeMap<String, String>, lost: Option<&Lost>) {
    if let Some(lost) = lost {
        annotations.insert(labels::LOST_POD.to_owned(), lost.pod.clone());
    }
}

/// The wish to be elsewhere.
pub(super) fn build_affinity(lost: Option<&Lost>) -> Option<Affinity> {
    let other = |machine: &String| NodeSelectorRequirement {
        key: NAME.into(),
        operator: "NotIn".into(),
        values: Some(vec![machine.clone()]),
    };
    let fields = lost?.machines.iter().map(other).collect();
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

/// What a template says of it.
pub fn read_lost(set: &StatefulSet) -> Option<Lost> {
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
    let machines = fields.flat_map(|field| field.values.iter().flatten());
    Some(Lost {
        pod: pod.clone(),
        machines: machines.cloned().collect(),
    })
}
