//! Errors of a request to a cluster's own API.

use std::time::Duration;

use kube::config::KubeconfigError;

/// Reason why a cluster's API did not answer.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// The kubeconfig is invalid.
    #[error("using the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// The kubeconfig does not refer to the Cluster's endpoint.
    #[error("the kubeconfig has another server than the Cluster's endpoint")]
    WrongServer,
    /// The client cannot be built.
    #[error("building a client")]
    Client(#[source] kube::Error),
    /// The request failed.
    #[error("sending the request")]
    Send(#[source] kube::Error),
    /// The API refused the request.
    #[error("the API answered with status {0}")]
    Status(u16),
    /// The answer is incomplete or too long.
    #[error("reading the answer")]
    Read(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The answer is not a table.
    #[error("parsing the answer")]
    Parse(#[from] serde_json::Error),
    /// The request cannot be built.
    #[error("building the request")]
    Request(#[from] http::Error),
    /// The API did not answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}
