//! Admission policy for kubelets, which may delete their own Node: they must not shed taints and
//! labels that way. Pure.
//!
//! A kubelet re-creates a deleted Node as it likes: without its taints, and without labels under
//! `node-restriction.kubernetes.io/`. Administrators use both to keep workloads away from a Node.
//! The admission plugin NodeRestriction denies kubelets changes of those, and access to other
//! Nodes. It covers neither the deletion of the own Node, nor the range of its Pods.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation,
    Variable,
};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use yoke_api::labels::JOINED_TAINTS;

use crate::tenant_client::groups::NODES_GROUP;

const NAME: &str = "leaving-nodes.yoke.drzzl.io";
/// Taints that controllers of Kubernetes set and remove, by the Node's state. The kubelet itself
/// may cordon its Node. `out-of-service` is missing here, since people set it.
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

/// Returns whether a Node has taints or labels that a re-created Node would not have. The taint
/// `besides` does not count.
pub(crate) fn is_marked(node: &Node, besides: &str) -> bool {
    let recorded = node.annotations().get(JOINED_TAINTS).map_or("", String::as_str);
    let spec = node.spec.as_ref();
    let mut taints = spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default().iter();
    let is_other = |taint: &Taint| {
        let value = taint.value.as_deref().filter(|value| !value.is_empty());
        let value = value.map(|value| format!("={value}")).unwrap_or_default();
        let text = format!("{}{value}:{}", taint.key, taint.effect);
        let is_state = STATE_TAINTS.contains(&taint.key.as_str());
        !is_state && text != besides && !recorded.split(',').any(|taint| taint == text)
    };
    taints.any(is_other) || node.labels().keys().any(|key| is_restricted(key))
}

/// Returns whether kubelets may not set a label with this key.
pub(crate) fn is_restricted(key: &str) -> bool {
    key.starts_with(RESTRICTED) || key.contains(&format!(".{RESTRICTED}"))
}

/// Builds the policy and its binding.
pub(crate) fn build_policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
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
                    &format!(
                        "request.operation == 'CREATE' ? '' : {}",
                        recorded_taints_of("oldObject")
                    ),
                ),
                build_variable(
                    "claimed",
                    &format!(
                        "request.operation == 'DELETE' ? variables.noted : {}",
                        recorded_taints_of("object")
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

/// Matches all writes that create, change or delete a Node. A write of the status can change
/// annotations too.
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
            "a kubelet may not delete its Node while the Node has a taint of another client: delete the Node as \
             an administrator, or remove the taint",
        ),
        validation(
            "request.operation != 'DELETE' || !has(oldObject.metadata.labels) || \
             !oldObject.metadata.labels.exists(key, key.startsWith('node-restriction.kubernetes.io/') || \
             key.contains('.node-restriction.kubernetes.io/'))"
                .into(),
            "a kubelet may not delete its Node while the Node has a label of node-restriction.kubernetes.io: \
             delete the Node as an administrator, or remove the label",
        ),
        validation(
            "variables.claimed == variables.noted".into(),
            "a kubelet may not change the record of its Node's taints from the JoinToken",
        ),
        // A kubelet can delete some objects. As an owner, such an object would take the Node with
        // it.
        validation(
            is_unchanged("metadata", "ownerReferences"),
            "a kubelet may not set owner references of its Node",
        ),
        // Other workers send traffic for these Pods there. The first entry always equals `podCIDR`:
        // the API server validates that.
        validation(
            is_unchanged("spec", "podCIDRs"),
            "a kubelet may not set podCIDRs of its Node: kube-controller-manager assigns them",
        ),
    ]
}

/// Expression: the list is empty in a new Node, and unchanged in an existing one.
fn is_unchanged(part: &str, list: &str) -> String {
    let list = |object: &str| {
        let part = format!("{object}.{part}");
        format!("(has({part}) && has({part}.{list}) ? {part}.{list} : [])")
    };
    let (new, old) = (list("object"), list("oldObject"));
    format!("request.operation == 'DELETE' || {new} == (request.operation == 'CREATE' ? [] : {old})")
}

/// Expression: the taints that the operator recorded on an object.
fn recorded_taints_of(object: &str) -> String {
    let annotations = format!("{object}.metadata.annotations");
    format!("has({annotations}) && '{JOINED_TAINTS}' in {annotations} ? {annotations}['{JOINED_TAINTS}'] : ''")
}

fn build_variable(name: &str, expression: &str) -> Variable {
    Variable {
        name: name.into(),
        expression: expression.into(),
    }
}
