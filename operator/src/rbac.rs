//! Who may do what in tenants' clusters.

use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleRef, Subject};
use kube::api::ObjectMeta;

/// Gives a ClusterRole to a subject.
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

/// What a binding gives: a ClusterRole, or a Role beside it.
pub(crate) fn build_role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".into(),
        kind: kind.into(),
        name: name.into(),
    }
}
