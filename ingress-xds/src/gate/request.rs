//! Where a request goes that was taken out of TLS here: by its token, and by nothing else in it. Pure.
//!
//! Decided for each request, not for a connection: many pods' requests may share one, and the next may have another token.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use k8s_openapi::jiff::Timestamp;
use yoke_api::ingress::Asleep;
use yoke_api::names::is_within;

use crate::model::Route;
use crate::snapshot::{Entry, Snapshot, resource_name};
use crate::token;
use crate::token::{TokenError, Verified};

/// Issuers are the clusters' public names as addresses.
const ISSUER_SCHEME: &str = "https://";
const BEARER: &str = "bearer";
/// Seconds after which a client may ask again: clients of Kubernetes do so by themselves, ten times.
pub(crate) const SOON: i32 = 1;
/// The same of who waits for something that may last.
pub(crate) const LATER: i32 = 10;
/// What a client is told that wakes nothing.
pub(crate) const IGNORED: &str =
    "the cluster is asleep, and does not wake for this client: its user agent is in spec.sleep.ignoreUserAgents";

/// What is looked at of a request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The header `authorization`; several are joined by commas.
    pub authorization: Option<&'a str>,
    /// `:authority`, or the header `host`.
    pub authority: &'a str,
    /// The client's address.
    pub source: Option<IpAddr>,
    /// The header `user-agent`, as Envoy tells it.
    pub agent: &'a [u8],
}

/// Why a request goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The host has not been read yet.
    NotSynced,
    /// It has no bearer token.
    NoToken,
    /// Its token is not believed.
    Token(TokenError),
    /// The cluster is not to be reached from the source.
    SourceNotAllowed,
    /// It asks for the name of another cluster.
    Misdirected,
    /// The cluster has no ready control plane.
    NoEndpoints,
    /// The cluster sleeps, or is being woken.
    Asleep,
    /// The cluster sleeps, and no request wakes it.
    Held,
    /// The cluster sleeps, and this caller's needs do not wake it.
    Unneeded,
    /// The cluster sleeps, and this client does not wake it.
    Ignored,
    /// The cluster is being woken, and that does not come to an end.
    Stuck,
    /// The cluster's requests come too fast.
    Rate,
}

impl Refusal {
    /// The reason as a word for logs and metrics.
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

    /// The answer as Kubernetes gives it. Who has no valid token is not told what is wrong with it.
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
            // To repeat the request does not help.
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

/// The cluster whose token a request has.
pub fn find(snapshot: &Snapshot, request: Request<'_>, now: Timestamp) -> Result<Verified<Arc<Entry>>, Refusal> {
    let token = request.authorization.and_then(bearer_token).ok_or(Refusal::NoToken)?;
    let find = |issuer: &str| {
        let name = issuer.strip_prefix(ISSUER_SCHEME)?;
        let entry = snapshot.get(&resource_name(name))?;
        // A cluster's further names are no issuers.
        (entry.route.public_name == name).then(|| Arc::clone(entry))
    };
    token::verify(token, now, find, |entry| &entry.route.tokens).map_err(Refusal::Token)
}

/// Whether a request may go to the cluster whose token it has.
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

/// The token, if the header is exactly the scheme, one space and the token. kube-apiserver overlooks what follows a second
/// space; nothing may be read differently there than here.
pub(crate) fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case(BEARER).then_some(token)
}

/// Whether a host name is that of another cluster. A client may have meant another one and reused a connection.
pub(crate) fn is_foreign(snapshot: &Snapshot, route: &Route, authority: &str) -> bool {
    let host = authority.split(':').next().unwrap_or_default();
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    match snapshot.get(&resource_name(&host)) {
        Some(owner) => owner.route.namespace != route.namespace,
        // Nobody's name under the base domain was somebody's, or will be.
        None => {
            let base = route.public_name.split_once('.').map(|(_, base)| base);
            base.is_some_and(|base| is_within(&host, base))
        }
    }
}

#[cfg(test)]
mod tests;
