//! Verdicts about connections and requests: the reasons of a refusal, and the answer to a refused
//! request. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};

use super::status_response::{IGNORED, LATER, SOON};
use super::token::TokenError;

/// The verdict for allowed connections and requests, in logs and metrics.
pub const ALLOWED: &str = "allowed";

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionRefusal {
    /// The host's objects have not been listed yet.
    NotSynced,
    /// The client sent no SNI name.
    NoName,
    /// The name belongs to no cluster.
    Unknown,
    /// The cluster does not allow the source address.
    SourceNotAllowed,
    /// The cluster has no ready control plane.
    NoEndpoints,
    /// The source opens connections too fast.
    SourceRate,
    /// The source has too many connections open.
    SourceConnections,
    /// Connections to the name are opened too fast.
    NameRate,
}

impl ConnectionRefusal {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::NotSynced,
        Self::NoName,
        Self::Unknown,
        Self::SourceNotAllowed,
        Self::NoEndpoints,
        Self::SourceRate,
        Self::SourceConnections,
        Self::NameRate,
    ];

    /// The value of the metric label `verdict`, also used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSynced => "not_synced",
            Self::NoName => "no_name",
            Self::Unknown => "unknown_name",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::NoEndpoints => "no_endpoints",
            Self::SourceRate => "source_rate",
            Self::SourceConnections => "source_connections",
            Self::NameRate => "name_rate",
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
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

impl RequestRefusal {
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

    /// HTTP status code, reason and message of the answer. They do not say why a token is not valid.
    const fn to_answer(self) -> (i32, &'static str, &'static str) {
        match self {
            Self::NoToken | Self::Token(_) => (401, "Unauthorized", "Unauthorized"),
            Self::SourceNotAllowed => (
                403,
                "Forbidden",
                "the cluster does not allow this source address; its owner can add it to spec.endpoint.allowedCIDRs",
            ),
            Self::Misdirected => (
                421,
                "MisdirectedRequest",
                "the host name of the request belongs to another cluster; open a new connection to that name",
            ),
            Self::Rate => (
                429,
                "TooManyRequests",
                "too many requests to the cluster through the ingress; retry later",
            ),
            Self::Asleep => (
                503,
                "ServiceUnavailable",
                "the cluster is asleep or waking; retry later",
            ),
            Self::Held => (
                403,
                "Forbidden",
                "the cluster is asleep, and requests do not wake it; its owner can wake it",
            ),
            Self::Unneeded => (
                503,
                "ServiceUnavailable",
                "the cluster is asleep, and does not wake for its nodes and controllers; it wakes when a user connects",
            ),
            Self::Ignored => (503, "ServiceUnavailable", IGNORED),
            Self::Stuck => (
                503,
                "ServiceUnavailable",
                "the cluster does not finish waking; the conditions of its Cluster object say why",
            ),
            Self::NotSynced | Self::NoEndpoints => (503, "ServiceUnavailable", "the control plane is not reachable"),
        }
    }

    /// The answer as a Kubernetes `Status`. It does not say why a token is not valid.
    pub fn to_status(self) -> Status {
        let (code, reason, message) = self.to_answer();
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
