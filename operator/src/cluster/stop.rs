//! Why a reconcile of a Cluster ends before it reports.

use crate::error::ReconcileError;

/// Why a reconcile ends before it reports.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The Cluster object is gone, or was changed in the meantime.
    Changed,
    /// The Cluster has no identity yet. The next watch event reconciles it again.
    NoIdentity,
    /// The Cluster object itself cannot be read or written.
    Failed(ReconcileError),
}

impl From<ReconcileError> for Stop {
    fn from(error: ReconcileError) -> Self {
        Self::Failed(error)
    }
}
