//! What holds for every container that the operator makes, on the host and in tenants' clusters.

use k8s_openapi::api::core::v1::{Capabilities, SecurityContext};

/// No privileges, now or later, and no file of the image changes.
pub(crate) fn build_security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}
