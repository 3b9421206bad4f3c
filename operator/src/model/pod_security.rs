//! Security settings of every container that the operator creates, on the host and in tenants'
//! clusters.

use k8s_openapi::api::core::v1::{Capabilities, SecurityContext};

/// No privileges, no privilege escalation, and a read-only root filesystem.
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
