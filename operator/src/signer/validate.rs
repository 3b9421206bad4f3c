//! Whether a CertificateSigningRequest may be signed. Pure: what is there comes in.
//!
//! Whoever may make requests in a tenant's cluster writes them, and the tenant approves what it likes: of a kubelet's request an
//! approval says nothing here. What is signed is fixed: one Node's client certificate or its serving certificate; and, where the
//! tenant approved it, the client certificate of a user of its own, of whom nothing else knows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::Node;
use kube::api::ObjectMeta;
use yoke_pki::ParsedRequest;
use yoke_pki::request::{SIZE_MAX, Use};

/// Signer of kubelets' client certificates.
pub(super) const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Signer of kubelets' serving certificates.
pub(super) const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
/// Signer of client certificates of users.
pub(super) const USER_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// What names of users and groups begin with that Kubernetes, or Yoke, gives a meaning: a tenant approves none of them.
const RESERVED: [&str; 2] = ["system:", "yoke:"];
/// Group of all nodes.
const NODES: &str = "system:nodes";
/// What a node's user name begins with.
const NODE_PREFIX: &str = "system:node:";
/// Group of all who show a bootstrap token.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// What the user name begins with of who shows a bootstrap token.
const BOOTSTRAP_PREFIX: &str = "system:bootstrap:";
/// The longest name of a Node or a request.
const NAME_MAX: usize = 253;
/// Bytes of a requester's name that are looked at: a longer one is nobody's.
const USER_MAX: usize = 1024;
/// Usages of a request, and bytes of one: those that are known, and "digital signature".
const USAGES_MAX: usize = 3;
const USAGE_MAX: usize = 17;
/// The longest UID of a request: Kubernetes' own have 36 bytes.
const UID_MAX: usize = 64;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What it is for.
    pub purpose: Use,
    /// Whose it will be: a Node's name, or a user's.
    pub name: String,
    /// Who asks.
    pub requester: Requester,
    /// What is to be signed.
    pub request: ParsedRequest,
    /// For how many seconds, if somebody said so.
    pub seconds: Option<i32>,
    /// Whether somebody approved it.
    pub is_approved: bool,
    /// Whether the key is also to encrypt keys.
    pub enciphers: bool,
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The node itself, with the certificate that it has.
    Node,
    /// Somebody with the bootstrap token of this id.
    Bootstrap(String),
    /// Whoever it was, for a user: the tenant approved it.
    Approved,
}

/// Why a request is not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// What is to be signed cannot be read, or asks for more than names.
    #[error("The request is no PKCS#10 with a subject and alternative names of type DNS and IP address alone.")]
    RequestInvalid,
    /// The subject is not a node's.
    #[error("The subject is not common name system:node:<name> and organization system:nodes, and nothing else.")]
    SubjectInvalid,
    /// The subject is not a user's.
    #[error("The subject is not one common name, organizations if wanted, and nothing else.")]
    UserInvalid,
    /// The name of a user or group that is not the tenant's to give.
    #[error("The common name or an organization begins with system: or yoke:, which are not signed for users.")]
    NameReserved,
    /// Not the usages of this signer.
    #[error("The usages are not those of this signer: digital signature, key encipherment if wanted, and its own.")]
    UsagesInvalid,
    /// Who asks is not the node.
    #[error(
        "The requester is neither the node of the common name nor somebody with a bootstrap token for a client certificate."
    )]
    RequesterInvalid,
    /// A client certificate has no names.
    #[error("A client certificate has no alternative names.")]
    NamesNotAllowed,
    /// Names that are not the node's.
    #[error("The alternative names are none, or not all among the addresses of the Node.")]
    NamesNotOfNode,
    /// The node of a serving certificate is not there.
    #[error("There is no Node of this name.")]
    NodeMissing,
    /// A bootstrap token is for new nodes.
    #[error("There is a Node of this name already; a bootstrap token is for new ones.")]
    NodeExists,
    /// The bootstrap token is no JoinToken's, or that one is over.
    #[error("The bootstrap token is of no JoinToken of this Cluster that holds.")]
    TokenUnknown,
    /// All uses are taken.
    #[error("The JoinToken has been used as often as it may.")]
    TokenUsedUp,
    /// It cannot last as long as the shortest certificate.
    #[error("The cluster's CA ends too soon to sign by it.")]
    AuthorityEnds,
    /// The CA's own checks are stricter, or it changes what it is asked for.
    #[error("The cluster's CA does not sign the request as it is.")]
    NotIssued,
}

impl Refusal {
    /// The reason of the condition `Failed`, and the label of a metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RequestInvalid => "RequestInvalid",
            Self::SubjectInvalid => "SubjectInvalid",
            Self::UserInvalid => "UserInvalid",
            Self::NameReserved => "NameReserved",
            Self::UsagesInvalid => "UsagesInvalid",
            Self::RequesterInvalid => "RequesterInvalid",
            Self::NamesNotAllowed => "NamesNotAllowed",
            Self::NamesNotOfNode => "NamesNotOfNode",
            Self::NodeMissing => "NodeMissing",
            Self::NodeExists => "NodeExists",
            Self::TokenUnknown => "TokenUnknown",
            Self::TokenUsedUp => "TokenUsedUp",
            Self::AuthorityEnds => "AuthorityEnds",
            Self::NotIssued => "NotIssued",
        }
    }
}

/// Whether anything is to be done for a request: it is for a signer of ours, has no answer, and has the approval that it needs.
pub fn is_open(csr: &CertificateSigningRequest) -> bool {
    let status = csr.status.clone().unwrap_or_default();
    let is_answered = status.certificate.is_some_and(|certificate| !certificate.0.is_empty());
    let is_over = has(csr, "Denied") || has(csr, "Failed");
    let is_ready = match purpose_of(csr) {
        // The tenant's controller manager approves those of kubelets, and the tenant those of users.
        Some(Use::Client) => has(csr, "Approved"),
        Some(Use::Server) => true,
        None => false,
    };
    is_ready && !is_answered && !is_over && csr.metadata.deletion_timestamp.is_none()
}

/// A request with no more of it than is looked at; `None` if its name and UID are not such as an API server gives.
pub fn trim(mut csr: CertificateSigningRequest) -> Option<CertificateSigningRequest> {
    let given = std::mem::take(&mut csr.metadata);
    let is_within = |text: &String, most| !text.is_empty() && text.len() <= most;
    csr.metadata = ObjectMeta {
        name: Some(given.name.filter(|name| is_within(name, NAME_MAX))?),
        uid: Some(given.uid.filter(|uid| is_within(uid, UID_MAX))?),
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
    // More, and longer ones, are refused, and are so by one more.
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

/// What a request asks for, as far as it says itself.
pub fn validate(csr: &CertificateSigningRequest) -> Result<Asked, Refusal> {
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
    Ok(Asked {
        purpose,
        name,
        requester,
        request,
        seconds: spec.expiration_seconds,
        is_approved: has(csr, "Approved"),
        enciphers,
    })
}

/// The node of a request, and who asks for its certificate.
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

/// The user of a request. What is in a subject beside names and groups has a meaning to some servers, and none here.
fn find_user(request: &ParsedRequest) -> Result<String, Refusal> {
    let subject = &request.subject;
    let name = subject.common_name.clone().ok_or(Refusal::UserInvalid)?;
    let all = || subject.organizations.iter().chain([&name]);
    let is_whole = request.subject_parts == 1 + subject.organizations.len();
    if !is_whole || all().any(|name| name.is_empty() || name.len() > NAME_MAX) {
        return Err(Refusal::UserInvalid);
    }
    if all().any(|name| RESERVED.iter().any(|reserved| name.starts_with(reserved))) {
        return Err(Refusal::NameReserved);
    }
    Ok(name)
}

/// Whether what is asked for goes with the Node of that name, if there is one.
pub fn validate_node(asked: &Asked, node: Option<&Node>) -> Result<(), Refusal> {
    match (asked.purpose, &asked.requester, node) {
        (Use::Client, Requester::Bootstrap(_), Some(_)) => Err(Refusal::NodeExists),
        (Use::Client, ..) => Ok(()),
        (Use::Server, _, None) => Err(Refusal::NodeMissing),
        (Use::Server, _, Some(node)) if has_all_names(node, &asked.request) => Ok(()),
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

/// Whether the key is also to encrypt keys, if the usages are those of the signer. People who ask for users leave out that they
/// sign, as Kubernetes lets them.
fn check_usages(purpose: Use, is_user: bool, usages: &[String]) -> Result<bool, Refusal> {
    let own = match purpose {
        Use::Client => "client auth",
        Use::Server => "server auth",
    };
    let (signs, enciphers) = ("digital signature", "key encipherment");
    let given: BTreeSet<_> = usages.iter().map(String::as_str).collect();
    let is_known = given.len() == usages.len() && given.iter().all(|each| [own, signs, enciphers].contains(each));
    if is_known && given.contains(own) && (is_user || given.contains(signs)) {
        Ok(given.contains(enciphers))
    } else {
        Err(Refusal::UsagesInvalid)
    }
}

/// Whether a text is a name that a Node can have: a DNS subdomain (RFC 1123).
fn is_node_name(text: &str) -> bool {
    text.len() <= NAME_MAX && text.split('.').all(yoke_api::names::is_label)
}

/// Whether the names are such as every TLS client reads alike: a Node says of itself what it is called.
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
    // A host may be called by its address.
    let ips = of(&["Hostname", "InternalIP", "ExternalIP"]);
    let ips: Vec<IpAddr> = ips.into_iter().filter_map(|text| text.parse().ok()).collect();
    request.dns_names.iter().all(|name| names.contains(&name.as_str()))
        && request.ip_addresses.iter().all(|address| ips.contains(address))
}

#[cfg(test)]
mod tests;
