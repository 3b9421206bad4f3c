//! What keeps a kubelet that may delete its own Node from shedding what others gave it. Pure.
//!
//! A Node that is deleted is made anew by its kubelet, as the kubelet likes: without the taints, and without the labels under
//! `node-restriction.kubernetes.io/`, by which the cluster's administrators keep workloads from it. The admission plugin
//! NodeRestriction lets no kubelet change those, nor touch another Node than its own; it says nothing of an own Node's deletion, nor
//! of the range of its Pods.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
    Variable,
};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use yoke_api::labels::JOINED_TAINTS;

use super::base::NODES_GROUP;

const NAME: &str = "leaving-nodes.yoke.drzzl.io";
/// Taints that controllers of Kubernetes set, and take away, by the Node's state; the kubelet itself may cordon its Node.
/// `out-of-service` is not among them: people set it.
const STATE_TAINTS: [&str; 9] = [
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
];
const RESTRICTED: &str = "node-restriction.kubernetes.io/";

/// Whether others gave a Node what its kubelet would shed if it were made anew, but for this taint.
pub(crate) fn is_marked(node: &Node, besides: &str) -> bool {
    let noted = node.annotations().get(JOINED_TAINTS).map_or("", String::as_str);
    let spec = node.spec.as_ref();
    let mut taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default().iter();
    let is_others = |taint: &Taint| {
        let value = taint.value.as_deref().filter(|value| !value.is_empty());
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        let text = format!("{}{value}:{}", taint.key, taint.effect);
        let is_state = STATE_TAINTS.contains(&taint.key.as_str());
        !is_state && text != besides && !noted.split(',').any(|noted| noted == text)
    };
    taints.any(is_others) || node.labels().keys().any(|key| is_restricted(key))
}

/// Whether no kubelet sets a label of this key.
pub(super) fn is_restricted(key: &str) -> bool {
    key.starts_with(RESTRICTED) || key.contains(&format!(".{RESTRICTED}"))
}

/// The policy, and what puts it into force.
pub(super) fn build_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let named = || ObjectMeta {
        name: Some(NAME.into()),
        ..ObjectMeta::default()
    };
    let policy = ValidatingAdmissionPolicy {
        metadata: named(),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".into()),
            match_constraints: Some(build_constraints()),
            match_conditions: Some(vec![MatchCondition {
                name: "of-a-node".into(),
                expression: format!("'{NODES_GROUP}' in request.userInfo.groups"),
            }]),
            variables: Some(vec![
                build_variable(
                    "noted",
                    &format!("request.operation == 'CREATE' ? '' : {}", noted_of("oldObject")),
                ),
                build_variable(
                    "claimed",
                    &format!(
                        "request.operation == 'DELETE' ? variables.noted : {}",
                        noted_of("object")
                    ),
                ),
            ]),
            validations: Some(build_validations()),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    };
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: named(),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(NAME.into()),
            validation_actions: Some(vec!["Deny".into()]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    (policy, binding)
}

/// All writes by which a Node is made, changed or deleted: a status can be written with other annotations.
fn build_constraints() -> MatchResources {
    let texts = |texts: &[&str]| Some(texts.iter().map(|text| (*text).to_owned()).collect());
    MatchResources {
        resource_rules: Some(vec![NamedRuleWithOperations {
            api_groups: texts(&[""]),
            api_versions: texts(&["v1"]),
            operations: texts(&["CREATE", "UPDATE", "DELETE"]),
            resources: texts(&["nodes", "nodes/status"]),
            ..NamedRuleWithOperations::default()
        }]),
        ..MatchResources::default()
    }
}

fn build_validations() -> Vec<Validation> {
    let validation = |expression: String, message: &str| Validation {
        expression,
        message: Some(message.into()),
        reason: Some("Forbidden".into()),
        ..Validation::default()
    };
    let state = STATE_TAINTS.map(|key| format!("'{key}'")).join(", ");
    let text = "taint.key + (has(taint.value) && taint.value != '' ? '=' + taint.value : '') + ':' + taint.effect";
    vec![
        validation(
            format!(
                "request.operation != 'DELETE' || !has(oldObject.spec) || !has(oldObject.spec.taints) || \
                 oldObject.spec.taints.all(taint, taint.key in [{state}] || {text} in variables.noted.split(','))"
            ),
            "a kubelet may not delete its Node while it has a taint that somebody else gave it: delete it yourself, or remove the taint",
        ),
        validation(
            "request.operation != 'DELETE' || !has(oldObject.metadata.labels) || \
             !oldObject.metadata.labels.exists(key, key.startsWith('node-restriction.kubernetes.io/') || \
             key.contains('.node-restriction.kubernetes.io/'))"
                .into(),
            "a kubelet may not delete its Node while it has a label of node-restriction.kubernetes.io: delete it yourself, or remove the label",
        ),
        validation(
            "variables.claimed == variables.noted".into(),
            "no kubelet says which taints its Node was given when it joined",
        ),
        // What the kubelet can delete would take the Node with it.
        validation(
            is_unchanged("metadata", "ownerReferences"),
            "a kubelet may not give its Node an owner",
        ),
        // Other workers send there what is for these Pods. The first of them is `podCIDR`, for every Node that is judged.
        validation(
            is_unchanged("spec", "podCIDRs"),
            "no kubelet says which addresses the Pods of its Node have: kube-controller-manager does",
        ),
    ]
}

/// A list that is empty in a new Node, and in each other as it was.
fn is_unchanged(part: &str, list: &str) -> String {
    let list = |object: &str| {
        let part = format!("{object}.{part}");
        format!("(has({part}) && has({part}.{list}) ? {part}.{list} : [])")
    };
    let (new, old) = (list("object"), list("oldObject"));
    format!("request.operation == 'DELETE' || {new} == (request.operation == 'CREATE' ? [] : {old})")
}

/// What the operator noted on an object.
fn noted_of(object: &str) -> String {
    let annotations = format!("{object}.metadata.annotations");
    format!("has({annotations}) && '{JOINED_TAINTS}' in {annotations} ? {annotations}['{JOINED_TAINTS}'] : ''")
}

fn build_variable(name: &str, expression: &str) -> Variable {
    Variable {
        name: name.into(),
        expression: expression.into(),
    }
}
