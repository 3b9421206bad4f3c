//! Builds RBAC objects, for the host and for tenants' clusters.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube::api::ObjectMeta;

/// A ClusterRole with these rules.
pub(crate) fn build_role(name: &str, rules: Vec<PolicyRule>) -> ClusterRole {
    ClusterRole {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        rules: Some(rules),
        ..ClusterRole::default()
    }
}

/// A rule that allows the verbs on all objects of these resources in these API groups.
pub(crate) fn build_rule(groups: &[&str], resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(owned(groups)),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

/// Binds a ClusterRole to a subject.
pub(crate) fn build_binding(name: &str, subject: Subject, role: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        role_ref: build_role_ref("ClusterRole", role),
        subjects: Some(vec![subject]),
    }
}

/// The reference of a binding to a ClusterRole, or to a Role in the same namespace.
pub(crate) fn build_role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".into(),
        kind: kind.into(),
        name: name.into(),
    }
}

/// The subject of a group.
pub(crate) fn to_group(name: &str) -> Subject {
    to_subject("Group", name)
}

/// The subject of a user.
pub(crate) fn to_user(name: &str) -> Subject {
    to_subject("User", name)
}

fn to_subject(kind: &str, name: &str) -> Subject {
    Subject {
        api_group: Some("rbac.authorization.k8s.io".into()),
        kind: kind.into(),
        name: name.into(),
        namespace: None,
    }
}
