//! Selects the cluster of a request whose TLS ended at Envoy: by its token, and by nothing else in
//! it. Pure.
//!
//! The decision is made for each request and not for a connection. Many pods' requests may share a
//! connection, and the next may carry another token.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use yoke_api::ingress::Asleep;
use yoke_api::names::is_within;

use super::token;
use super::token::Verified;
use super::verdict::RequestRefusal;
use crate::model::route::Route;
use crate::snapshot::resource::resource_name;
use crate::snapshot::{Entry, Snapshot};

/// Issuers are URLs of this scheme with the clusters' public names.
const ISSUER_SCHEME: &str = "https://";
const BEARER: &str = "bearer";
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

/// The cluster that issued the request's token.
pub fn find_cluster_by_token(
    snapshot: &Snapshot,
    request: Request<'_>,
    now: Timestamp,
) -> Result<Verified<Arc<Entry>>, RequestRefusal> {
    let token = request
        .authorization
        .and_then(bearer_token)
        .ok_or(RequestRefusal::NoToken)?;
    let find = |issuer: &str| {
        let name = issuer.strip_prefix(ISSUER_SCHEME)?;
        let entry = snapshot.get(&resource_name(name))?;
        // Extra names of a cluster are not issuers.
        (entry.route.public_name == name).then(|| Arc::clone(entry))
    };
    token::verify(token, now, find, |entry| &entry.route.tokens).map_err(RequestRefusal::Token)
}

/// Whether a request may go to the cluster that issued its token.
pub fn check(snapshot: &Snapshot, entry: &Entry, request: Request<'_>) -> Result<(), RequestRefusal> {
    if !entry.route.allows(request.source) {
        return Err(RequestRefusal::SourceNotAllowed);
    }
    if is_name_of_other_cluster(snapshot, &entry.route, request.authority) {
        return Err(RequestRefusal::Misdirected);
    }
    match entry.route.asleep.as_ref().map(|asleep| &asleep.state) {
        Some(Asleep::Held { .. }) => Err(RequestRefusal::Held),
        Some(Asleep::Waking { problem: Some(_), .. }) => Err(RequestRefusal::Stuck),
        Some(Asleep::OnConnect { .. } | Asleep::Waking { problem: None, .. }) => Err(RequestRefusal::Asleep),
        None if !entry.reachable => Err(RequestRefusal::NoEndpoints),
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
pub(crate) fn is_name_of_other_cluster(snapshot: &Snapshot, route: &Route, authority: &str) -> bool {
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
