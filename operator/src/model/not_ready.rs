//! Why a Cluster is not ready.

use yoke_api::Reason;

/// Why a Cluster is not ready for its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// Reason of the condition.
    pub reason: Reason,
    /// The missing part, in lower case and without a full stop.
    pub message: String,
}

impl NotReady {
    /// The API server does not answer, or its objects are not complete.
    pub fn api_server(message: impl Into<String>) -> Self {
        Self {
            reason: Reason::APIServerNotReady,
            message: message.into(),
        }
    }
}
