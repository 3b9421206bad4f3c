//! Decides whether a CertificateSigningRequest may be signed. Pure: all inputs are arguments.
//!
//! Any user with the permission to create requests in a tenant's cluster writes their content. The
//! tenant may approve any request, so the approval of a kubelet's request means nothing here. Only
//! two kinds of certificates are signed:
//!
//! - the client or serving certificate of one Node;
//! - the client certificate of a user that the tenant approved. No other component knows this user.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::Node;
use kube::api::ObjectMeta;
use yoke_pki::ParsedRequest;
use yoke_pki::request::{SIZE_MAX, Use};

use crate::csr_signer::refusal::Refusal;

/// Signer of kubelets' client certificates.
pub(crate) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of kubelets' serving certificates.
pub(crate) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Signer of client certificates of users.
pub(crate) const USER_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Prefixes of user and group names to which Kubernetes or Yoke gives a meaning. A tenant cannot
/// approve them.
const RESERVED: [&str; 2] = ["system:", "yoke:"];
/// Group of all nodes.
const NODES: &str = "system:nodes";
/// Prefix of a node's user name.
const NODE_PREFIX: &str = "system:node:";
/// Group of all clients that authenticate with a bootstrap token.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// Prefix of the user name of a client that authenticates with a bootstrap token.
const BOOTSTRAP_PREFIX: &str = "system:bootstrap:";
/// Maximum length of the name of a Node or a request.
const NAME_MAX: usize = 253;
/// Maximum length of a requester's name in bytes. A longer name matches nothing.
const USER_MAX: usize = 1024;
/// Maximum number of usages of a request (the known ones), and of bytes of one usage ("digital
/// signature").
const USAGES_MAX: usize = 3;
const USAGE_MAX: usize = 17;
/// Maximum length of a request's UID: those of Kubernetes have 36 bytes.
const UID_MAX: usize = 64;

/// Content of a valid request.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateRequestFacts {
    /// Purpose of the certificate.
    pub purpose: Use,
    /// Subject: the name of a Node or of a user.
    pub name: String,
    /// The requester.
    pub requester: Requester,
    /// The PKCS#10 request.
    pub request: ParsedRequest,
    /// Requested lifetime in seconds, if any.
    pub seconds: Option<i32>,
    /// Whether the request is approved.
    pub is_approved: bool,
    /// Whether the usages include key encipherment.
    pub enciphers: bool,
}

impl CertificateRequestFacts {
    /// Label of the certificate's purpose, for metrics.
    pub(crate) const fn purpose_label(&self) -> &'static str {
        match (&self.requester, self.purpose) {
            (Requester::Approved, _) => "user",
            (_, Use::Client) => "client",
            (_, Use::Server) => "server",
        }
    }
}

/// The requester of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The node itself, authenticated with its current certificate.
    Node,
    /// A client that authenticated with the bootstrap token of this ID.
    Bootstrap(String),
    /// Any requester, for a user certificate that the tenant approved.
    Approved,
}

/// Returns whether a request needs an answer: it is for one of our signers, has no answer, and has
/// the approval that it needs.
pub fn is_open(csr: &CertificateSigningRequest) -> bool {
    let status = csr.status.clone().unwrap_or_default();
    let is_answered = status.certificate.is_some_and(|certificate| !certificate.0.is_empty());
    let is_over = has(csr, "Denied") || has(csr, "Failed");
    let is_ready = match purpose_of(csr) {
        // The tenant's controller manager approves requests of kubelets; the tenant approves those
        // of users.
        Some(Use::Client) => has(csr, "Approved"),
        Some(Use::Server) => true,
        None => false,
    };
    is_ready && !is_answered && !is_over && csr.metadata.deletion_timestamp.is_none()
}

/// Removes what is not read from a request. `None` if its name or UID cannot come from an API
/// server.
pub fn trim(mut csr: CertificateSigningRequest) -> Option<CertificateSigningRequest> {
    let metadata = std::mem::take(&mut csr.metadata);
    let is_within = |text: &String, most| !text.is_empty() && text.len() <= most;
    csr.metadata = ObjectMeta {
        name: Some(metadata.name.filter(|name| is_within(name, NAME_MAX))?),
        uid: Some(metadata.uid.filter(|uid| is_within(uid, UID_MAX))?),
        ..ObjectMeta::default()
    };
    let is_approved = has(&csr, "Approved");
    let spec = &mut csr.spec;
    (spec.extra, spec.uid) = (None, None);
    let cut = |text: &String, most| text[..text.floor_char_boundary(most)].to_owned();
    spec.username = spec.username.as_ref().map(|user| cut(user, USER_MAX));
    let groups = spec.groups.as_deref().unwrap_or_default();
    let known = [BOOTSTRAPPERS, NODES].map(ToOwned::to_owned).into_iter();
    spec.groups = Some(known.filter(|group| groups.contains(group)).collect());
    // One entry more than the maximum stays, and one byte more of each, so that the request is
    // still refused.
    let usages = spec.usages.as_deref().unwrap_or_default();
    spec.usages = Some(
        usages
            .iter()
            .take(USAGES_MAX + 1)
            .map(|usage| cut(usage, USAGE_MAX + 1))
            .collect(),
    );
    spec.request.0.truncate(SIZE_MAX + 1);
    spec.request.0.shrink_to_fit();
    csr.status = is_approved.then(|| CertificateSigningRequestStatus {
        conditions: Some(vec![CertificateSigningRequestCondition {
            type_: "Approved".into(),
            ..CertificateSigningRequestCondition::default()
        }]),
        ..CertificateSigningRequestStatus::default()
    });
    Some(csr)
}

/// Validates a request on its own, without its Node.
pub fn validate(csr: &CertificateSigningRequest) -> Result<CertificateRequestFacts, Refusal> {
    let spec = &csr.spec;
    let purpose = purpose_of(csr).ok_or(Refusal::UsagesInvalid)?;
    let request = ParsedRequest::from_pem(&spec.request.0).map_err(|_| Refusal::RequestInvalid)?;
    let is_user = spec.signer_name == USER_SIGNER;
    let enciphers = check_usages(purpose, is_user, spec.usages.as_deref().unwrap_or_default())?;
    let (name, requester) = match is_user {
        true => (find_user(&request)?, Requester::Approved),
        false => find_node(csr, purpose, &request)?,
    };
    let has_names = !request.dns_names.is_empty() || !request.ip_addresses.is_empty();
    match purpose {
        Use::Client if has_names => return Err(Refusal::NamesNotAllowed),
        Use::Server if !has_names || !request_is_plain(&request) => return Err(Refusal::NamesNotOfNode),
        _ => {}
    }
    Ok(CertificateRequestFacts {
        purpose,
        name,
        requester,
        request,
        seconds: spec.expiration_seconds,
        is_approved: has(csr, "Approved"),
        enciphers,
    })
}

/// Returns the node of a request, and its requester.
fn find_node(
    csr: &CertificateSigningRequest,
    purpose: Use,
    request: &ParsedRequest,
) -> Result<(String, Requester), Refusal> {
    let subject = &request.subject;
    let common_name = subject.common_name.as_deref().unwrap_or_default();
    let node = common_name.strip_prefix(NODE_PREFIX).filter(|node| is_node_name(node));
    let node = node.ok_or(Refusal::SubjectInvalid)?.to_owned();
    if subject.organizations != [NODES] || request.subject_parts != 2 {
        return Err(Refusal::SubjectInvalid);
    }
    let groups = csr.spec.groups.as_deref().unwrap_or_default();
    let is_in = |group: &str| groups.iter().any(|each| each == group);
    let user = csr.spec.username.as_deref().unwrap_or_default();
    match user.strip_prefix(BOOTSTRAP_PREFIX) {
        Some(id) if purpose == Use::Client && is_in(BOOTSTRAPPERS) => Ok((node, Requester::Bootstrap(id.to_owned()))),
        None if user == common_name && is_in(NODES) => Ok((node, Requester::Node)),
        _ => Err(Refusal::RequesterInvalid),
    }
}

/// Returns the user of a request. Further parts of a subject have a meaning to some servers, but
/// not here.
fn find_user(request: &ParsedRequest) -> Result<String, Refusal> {
    let subject = &request.subject;
    let name = subject.common_name.clone().ok_or(Refusal::UserInvalid)?;
    let all = || subject.organizations.iter().chain([&name]);
    let is_complete = request.subject_parts == 1 + subject.organizations.len();
    if !is_complete || all().any(|name| name.is_empty() || name.len() > NAME_MAX) {
        return Err(Refusal::UserInvalid);
    }
    if all().any(|name| RESERVED.iter().any(|reserved| name.starts_with(reserved))) {
        return Err(Refusal::NameReserved);
    }
    Ok(name)
}

/// Validates a request against the Node with this name, if there is one.
pub fn validate_node(facts: &CertificateRequestFacts, node: Option<&Node>) -> Result<(), Refusal> {
    match (facts.purpose, &facts.requester, node) {
        (Use::Client, Requester::Bootstrap(_), Some(_)) => Err(Refusal::NodeExists),
        (Use::Client, ..) => Ok(()),
        (Use::Server, _, None) => Err(Refusal::NodeMissing),
        (Use::Server, _, Some(node)) if has_all_names(node, &facts.request) => Ok(()),
        (Use::Server, ..) => Err(Refusal::NamesNotOfNode),
    }
}

fn purpose_of(csr: &CertificateSigningRequest) -> Option<Use> {
    match csr.spec.signer_name.as_str() {
        CLIENT_SIGNER | USER_SIGNER => Some(Use::Client),
        SERVING_SIGNER => Some(Use::Server),
        _ => None,
    }
}

fn has(csr: &CertificateSigningRequest, type_: &str) -> bool {
    let conditions = csr.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == type_)
}

/// Returns whether key encipherment is requested, if the usages are those of the signer. Requests
/// for users may omit "digital signature", as in Kubernetes.
fn check_usages(purpose: Use, is_user: bool, usages: &[String]) -> Result<bool, Refusal> {
    let own = match purpose {
        Use::Client => "client auth",
        Use::Server => "server auth",
    };
    let (signs, enciphers) = ("digital signature", "key encipherment");
    let requested: BTreeSet<_> = usages.iter().map(String::as_str).collect();
    let is_known =
        requested.len() == usages.len() && requested.iter().all(|each| [own, signs, enciphers].contains(each));
    if is_known && requested.contains(own) && (is_user || requested.contains(signs)) {
        Ok(requested.contains(enciphers))
    } else {
        Err(Refusal::UsagesInvalid)
    }
}

/// Returns whether a text is a valid name of a Node: a DNS subdomain (RFC 1123).
fn is_node_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(yoke_api::names::is_label)
}

/// Returns whether every TLS client reads the names in the same way. The Node itself reports its
/// names, so they are not trusted.
fn request_is_plain(request: &ParsedRequest) -> bool {
    let is_mapped = |address: &IpAddr| matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    request.dns_names.iter().all(|name| is_node_name(name)) && !request.ip_addresses.iter().any(is_mapped)
}

fn has_all_names(node: &Node, request: &ParsedRequest) -> bool {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_deref());
    let of = |types: &[&str]| {
        let addresses = addresses.unwrap_or_default().iter();
        let all = addresses.filter(|each| types.contains(&each.type_.as_str()));
        all.map(|each| each.address.as_str()).collect::<Vec<_>>()
    };
    let names = of(&["Hostname", "InternalDNS", "ExternalDNS"]);
    // A node's hostname may be an IP address.
    let ips = of(&["Hostname", "InternalIP", "ExternalIP"]);
    let ips: Vec<IpAddr> = ips.into_iter().filter_map(|text| text.parse().ok()).collect();
    request.dns_names.iter().all(|name| names.contains(&name.as_str()))
        && request.ip_addresses.iter().all(|address| ips.contains(address))
}

#[cfg(test)]
mod tests;
