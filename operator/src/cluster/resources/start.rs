//! One start of a control plane.

use crate::model::lost_pod::LostPod;

/// The part of a control plane that follows from observed objects, not from the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Incarnation of this start; the store fences lower ones.
    pub incarnation: u64,
    /// Digest of the files that are read only once.
    pub digest: String,
    /// 0 while asleep, 2 with a standby pod, else 1.
    pub replicas: i32,
    /// Ordinal of the serving pod; a standby pod has the next one.
    pub first: i32,
    /// Whether NATS has the stream for every other snapshot: the store would wait for a missing
    /// one.
    pub has_spare: bool,
    /// Whether there is a konnectivity-server: its container would wait for a missing Secret.
    pub has_konnectivity: bool,
    /// The pod that this one replaces, if that was lost with its node.
    pub lost: Option<LostPod>,
}
