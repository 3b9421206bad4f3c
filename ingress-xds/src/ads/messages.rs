//! Requests and responses of a delta-xDS stream, as [`super::Stream`] takes and returns them. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::route::Route;
use crate::snapshot::resource::{Resource, ResourceKind};

/// Maximum number of names that one client may subscribe to. Envoy subscribes to the resources that
/// it was sent, so a client of ours never exceeds it.
pub(super) const MAX_NAMES: usize = 500_000;

/// A client's request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The resource type.
    pub kind: ResourceKind,
    /// Nonce of the response that this request acknowledges or refuses; empty if none.
    pub nonce: String,
    /// Envoy's reason for refusing that response; `None` if it was accepted.
    pub error: Option<String>,
    /// Names to subscribe to.
    pub subscribe: Vec<String>,
    /// Names to unsubscribe from.
    pub unsubscribe: Vec<String>,
    /// Versions that the client has, by name; only in the first request of a type.
    pub client_versions: BTreeMap<String, String>,
}

/// A response to the client.
#[derive(Clone, Debug)]
pub struct Response {
    /// The resource type.
    pub kind: ResourceKind,
    /// Identifies this response in the client's acknowledgment.
    pub nonce: String,
    /// Resources to add or replace.
    pub resources: Vec<(Arc<str>, Resource)>,
    /// Resources to remove.
    pub removed: Vec<String>,
}

/// A response that the client refused.
#[derive(Clone, Debug)]
pub struct RefusedResponse {
    /// The resource type.
    pub kind: ResourceKind,
    /// The cluster of the refused resources; `None` for base resources, or if the response only
    /// removed.
    pub route: Option<Arc<Route>>,
    /// Names and versions in the response.
    pub resources: Vec<(Arc<str>, Arc<str>)>,
    /// The client's reason.
    pub reason: String,
}

/// The client violates the protocol; the stream is to be closed.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The client subscribes to more names than any Envoy would.
    #[error("the client subscribes to more than {MAX_NAMES} names")]
    TooManyNames,
}
