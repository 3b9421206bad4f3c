//! Problems with host objects, which [`crate::routing`] logs. Pure.

use super::observation::ObjectKey;

/// A problem that the host's owner can fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The object.
    pub object: ObjectKey,
    /// The problem with it.
    pub problem: Problem,
}

/// A problem with one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The ConfigMap is invalid, so its cluster is not routed. The text is the chain of causes.
    Config(String),
    /// The EndpointSlice is invalid, so its addresses are not used. The text is the chain of
    /// causes.
    Slice(String),
    /// The ingress certificate is invalid, so Envoy continues with its previous one. The text is
    /// the chain of causes.
    Certificate(String),
    /// The form of an extra name is invalid, so the name is ignored.
    Name(String),
    /// The name belongs to an older cluster.
    NameTaken {
        /// The name.
        name: String,
        /// Control-plane namespace of the cluster that owns the name.
        by: String,
    },
}
