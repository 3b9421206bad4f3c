//! Why a certificate is refused. Pure.

/// Reason why a request is not signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// The PKCS#10 request cannot be parsed, or requests more than names.
    #[error("The request is no PKCS#10 with a subject and alternative names of type DNS and IP address alone.")]
    RequestInvalid,
    /// The subject is not that of a node.
    #[error("The subject is not common name system:node:<name> and organization system:nodes, and nothing else.")]
    SubjectInvalid,
    /// The subject is not that of a user.
    #[error("The subject is not one common name, organizations if wanted, and nothing else.")]
    UserInvalid,
    /// The name of the user or group is reserved.
    #[error("The common name or an organization begins with system: or yoke:, which are not signed for users.")]
    NameReserved,
    /// The usages are not those of this signer.
    #[error("The usages are not those of this signer: digital signature, key encipherment if wanted, and its own.")]
    UsagesInvalid,
    /// The requester is not the node.
    #[error(
        "The requester is neither the node of the common name nor somebody with a bootstrap token for a client certificate."
    )]
    RequesterInvalid,
    /// A client certificate may not have alternative names.
    #[error("A client certificate has no alternative names.")]
    NamesNotAllowed,
    /// The alternative names are not those of the node.
    #[error("The alternative names are none, or not all among the addresses of the Node.")]
    NamesNotOfNode,
    /// The node of a serving certificate does not exist.
    #[error("There is no Node of this name.")]
    NodeMissing,
    /// A bootstrap token is only valid for new nodes.
    #[error("There is a Node of this name already; a bootstrap token is for new ones.")]
    NodeExists,
    /// The bootstrap token belongs to no JoinToken, or to one that has expired.
    #[error("The bootstrap token is of no JoinToken of this Cluster that holds.")]
    TokenUnknown,
    /// The JoinToken has no uses left.
    #[error("The JoinToken has been used as often as it may.")]
    TokenUsedUp,
    /// The remaining lifetime of the CA is below the minimum of a certificate.
    #[error("The cluster's CA ends too soon to sign by it.")]
    AuthorityEnds,
    /// The CA has stricter checks, or changes the request.
    #[error("The cluster's CA does not sign the request as it is.")]
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
