//! Why a certificate is refused. Pure.

/// Reason why a request is not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// The PKCS#10 request cannot be parsed, or requests more than names.
    #[error("The request must be PKCS#10 with a subject, and alternative names only of types DNS and IP address.")]
    RequestInvalid,
    /// The subject is not that of a node.
    #[error("The subject must be exactly common name system:node:<name> and organization system:nodes.")]
    SubjectInvalid,
    /// The subject is not that of a user.
    #[error("The subject must have exactly one common name, and otherwise only organizations.")]
    UserInvalid,
    /// The name of the user or group is reserved.
    #[error("The common name and organizations of a user must not start with system: or yoke:.")]
    NameReserved,
    /// The usages are not those of this signer.
    #[error(
        "The usages must be those of this signer: digital signature, optionally key encipherment, and client \
         auth or server auth."
    )]
    UsagesInvalid,
    /// The requester is not the node.
    #[error(
        "The requester must be the node in the common name, or a client with a bootstrap token that requests \
         a client certificate."
    )]
    RequesterInvalid,
    /// A client certificate may not have alternative names.
    #[error("A client certificate must not have alternative names.")]
    NamesNotAllowed,
    /// The alternative names are not those of the node.
    #[error("The alternative names must not be empty, and must all be addresses of the Node.")]
    NamesNotOfNode,
    /// The node of a serving certificate does not exist.
    #[error("No Node with this name exists.")]
    NodeMissing,
    /// A bootstrap token is only valid for new nodes.
    #[error(
        "A Node with this name exists. A bootstrap token is only for new Nodes: delete the Node, or use \
         another name."
    )]
    NodeExists,
    /// The bootstrap token belongs to no JoinToken, or to one that has expired.
    #[error("The bootstrap token belongs to no valid JoinToken of this Cluster. Create a new JoinToken.")]
    TokenUnknown,
    /// The JoinToken has no uses left.
    #[error("The JoinToken has no uses left (spec.maxUses). Create a new JoinToken.")]
    TokenUsedUp,
    /// The remaining lifetime of the CA is below the minimum of a certificate.
    #[error("The cluster's CA expires too soon to sign a certificate.")]
    AuthorityEnds,
    /// The CA has stricter checks, or changes the request.
    #[error("cert-manager did not issue the certificate as requested.")]
    NotIssued,
}

impl Refusal {
    /// Reason of the condition `Failed`, and label of a metric.
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
