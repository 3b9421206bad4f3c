//! Selects the cluster of a request whose TLS ended at Envoy: by its token, and by nothing else in
//! it. Pure.
//!
//! The decision is made for each request and not for a connection. Many pods' requests may share a
//! connection, and the next may carry another token.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use k8s_openapi::jiff::Timestamp;
use yoke_api::ingress::Asleep;
use yoke_api::names::is_within;

use crate::model::route::Route;
use crate::snapshot::resource::resource_name;
use crate::snapshot::{Entry, Snapshot};
use crate::token;
use crate::token::{TokenError, Verified};

/// Issuers are URLs of this scheme with the clusters' public names.
const ISSUER_SCHEME: &str = "https://";
const BEARER: &str = "bearer";
/// `Retry-After` in seconds for short causes: Kubernetes clients retry by themselves, ten times.
pub(crate) const SOON: i32 = 1;
/// `Retry-After` in seconds for causes that may persist.
pub(crate) const LATER: i32 = 10;
/// Message for a client whose user agent does not wake the cluster.
pub(crate) const IGNORED: &str =
    "the cluster is asleep, and does not wake for this client: its user agent is in spec.sleep.ignoreUserAgents";

/// The parts of a request that the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header `authorization`; several are joined by commas.
    pub authorization: Option<&'a str>,
    /// `:authority`, or the header `host`.
    pub authority: &'a str,
    /// The client's address.
    pub source: Option<IpAddr>,
    /// The header `user-agent`, as Envoy reports it.
    pub agent: &'a [u8],
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The host's objects have not been listed yet.
    NotSynced,
    /// The request has no bearer token.
    NoToken,
    /// The token is not valid.
    Token(TokenError),
    /// The cluster does not allow the source address.
    SourceNotAllowed,
    /// The request's authority is the name of another cluster.
    Misdirected,
    /// The cluster has no ready control plane.
    NoEndpoints,
    /// The cluster sleeps, or is waking.
    Asleep,
    /// The cluster sleeps, and no request wakes it.
    Held,
    /// The cluster sleeps, and the caller is a node, a controller or a component of the cluster,
    /// which do not wake it.
    Unneeded,
    /// The cluster sleeps, and the client's user agent does not wake it.
    Ignored,
    /// The cluster does not finish waking.
    Stuck,
    /// The cluster's request rate is exceeded.
    Rate,
}

impl Refusal {
    /// The value of the metric label `verdict`, also used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSynced => "not_synced",
            Self::NoToken => "no_token",
            Self::Token(error) => error.as_str(),
            Self::SourceNotAllowed => "source_not_allowed",
            Self::Misdirected => "misdirected",
            Self::NoEndpoints => "no_endpoints",
            Self::Asleep => "asleep",
            Self::Held => "held",
            Self::Unneeded => "unneeded",
            Self::Ignored => "ignored",
            Self::Stuck => "stuck",
            Self::Rate => "request_rate",
        }
    }

    /// The answer as a Kubernetes `Status`. It does not say why a token is not valid.
    pub fn to_status(self) -> Status {
        let (code, reason, message) = match self {
            Self::NoToken | Self::Token(_) => (401, "Unauthorized", "Unauthorized"),
            Self::SourceNotAllowed => (
                403,
                "Forbidden",
                "the cluster is not to be reached from this address (spec.endpoint.allowedCIDRs)",
            ),
            Self::Misdirected => (
                421,
                "MisdirectedRequest",
                "the host name belongs to another cluster; open a connection to it",
            ),
            Self::Rate => (
                429,
                "TooManyRequests",
                "the cluster's requests through the ingress come too fast",
            ),
            Self::Asleep => (503, "ServiceUnavailable", "the cluster is asleep, or is being woken"),
            Self::Held => (403, "Forbidden", "the cluster is asleep, and no request wakes it"),
            Self::Unneeded => (
                503,
                "ServiceUnavailable",
                "the cluster is asleep, and does not wake for its nodes and controllers",
            ),
            Self::Ignored => (503, "ServiceUnavailable", IGNORED),
            Self::Stuck => (503, "ServiceUnavailable", "the cluster does not wake"),
            Self::NotSynced | Self::NoEndpoints => (503, "ServiceUnavailable", "the control plane is not reachable"),
        };
        let seconds = match self {
            // Retrying does not help.
            Self::Stuck => None,
            Self::Unneeded | Self::Ignored => Some(LATER),
            _ => Some(SOON),
        };
        let details = seconds
            .filter(|_| matches!(code, 429 | 503))
            .map(|seconds| StatusDetails {
                retry_after_seconds: Some(seconds),
                ..StatusDetails::default()
            });
        Status {
            code: Some(code),
            details,
            message: Some(message.to_owned()),
            reason: Some(reason.to_owned()),
            status: Some("Failure".to_owned()),
            ..Status::default()
        }
    }
}

/// The cluster that issued the request's token.
pub fn find(snapshot: &Snapshot, request: Request<'_>, now: Timestamp) -> Result<Verified<Arc<Entry>>, Refusal> {
    let token = request.authorization.and_then(bearer_token).ok_or(Refusal::NoToken)?;
    let find = |issuer: &str| {
        let name = issuer.strip_prefix(ISSUER_SCHEME)?;
        let entry = snapshot.get(&resource_name(name))?;
        // Extra names of a cluster are not issuers.
        (entry.route.public_name == name).then(|| Arc::clone(entry))
    };
    token::verify(token, now, find, |entry| &entry.route.tokens).map_err(Refusal::Token)
}

/// Whether a request may go to the cluster that issued its token.
pub fn check(snapshot: &Snapshot, entry: &Entry, request: Request<'_>) -> Result<(), Refusal> {
    if !entry.route.allows(request.source) {
        return Err(Refusal::SourceNotAllowed);
    }
    if is_foreign(snapshot, &entry.route, request.authority) {
        return Err(Refusal::Misdirected);
    }
    match entry.route.asleep.as_ref().map(|asleep| &asleep.told) {
        Some(Asleep::Held { .. }) => Err(Refusal::Held),
        Some(Asleep::Waking { problem: Some(_), .. }) => Err(Refusal::Stuck),
        Some(Asleep::OnConnect { .. } | Asleep::Waking { problem: None, .. }) => Err(Refusal::Asleep),
        None if !entry.reachable => Err(Refusal::NoEndpoints),
        None => Ok(()),
    }
}

/// The token, if the header is exactly the scheme, one space and the token. kube-apiserver ignores
/// what follows a second space; the header must not be read differently here and there.
pub(crate) fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
}

/// Whether a host name belongs to another cluster. A client may have meant that one and reused a
/// connection.
pub(crate) fn is_foreign(snapshot: &Snapshot, route: &Route, authority: &str) -> bool {
    let host = authority.split(':').next().unwrap_or_default();
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    match snapshot.get(&resource_name(&host)) {
        Some(owner) => owner.route.namespace != route.namespace,
        // A name under the base domain without an owner may have belonged to another cluster.
        None => {
            let base = route.public_name.split_once('.').map(|(_, base)| base);
            base.is_some_and(|base| is_within(&host, base))
        }
    }
}

#[cfg(test)]
mod tests;
