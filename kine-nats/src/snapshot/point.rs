//! The position and content that a snapshot describes.

use crate::log::fencing::FencingState;
use crate::state::State;
use std::sync::{PoisonError, RwLock};

/// The position and content that a snapshot describes.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotPoint {
    pub(crate) fencing: FencingState,
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    /// Number and seconds of each lease.
    pub(crate) leases: Vec<(i64, i64)>,
}

impl SnapshotPoint {
    /// Copies the position and the revisions of the acknowledged state, and `leases`.
    pub(crate) fn new(state: &RwLock<State>, fencing: FencingState, leases: Vec<(i64, i64)>) -> Self {
        let state = state.read().unwrap_or_else(PoisonError::into_inner);
        Self {
            fencing,
            revision: state.mvcc.visible(),
            compacted: state.mvcc.compacted(),
            leases,
        }
    }
}
