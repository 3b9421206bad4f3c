//! Why a request is not done, in etcd's words: clients tell errors apart by the text.

use tonic::{Code, Status};

/// A request that is answered with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The revision asked for is below the compact revision.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision asked for has not happened.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// A request without a key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` on a key that does not exist.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// `ignore_value` together with a value.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// `ignore_lease` together with a lease.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// More operations than a transaction may have.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// One transaction writes a key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// An order that does not exist.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A stream of another order than that of the keys.
    #[error("RangeStream does not support custom sort orders")]
    StreamOrder,
    /// A stream of the keys of some revisions only.
    #[error("RangeStream does not support revision filters")]
    StreamFilter,
    /// The request is larger than 1.5 MiB.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// One request deletes more keys than the writer removes at a time. etcd knows no such limit.
    #[error("kine-nats: too many keys to delete in one request: delete them in parts of at most 100000")]
    TooManyDeletes,
    /// The quota is used up.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// No such lease.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease of this number exists.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// The lease would last longer than etcd allows.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// What became of the request is not known, or it was not begun in time.
    #[error("etcdserver: request timed out")]
    Timeout,
    /// This process is not the writer, or does not know whether it still is.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// Another process became the writer while the request, which changes nothing, was under way.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    /// The writer went while the request was under way: whether it was done is not known.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    LeaderFailed,
    /// Another process took too long to become the writer, or yet another one did.
    #[error("etcdserver: request timed out, leader transfer took too long")]
    LeaderNotMoved,
    /// Only the writer can be asked for this.
    #[error("etcdserver: not leader")]
    NotLeader,
    /// The process that is to become the writer is not known.
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    /// The process is stopping.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// Too many requests are waiting.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
}

impl Refusal {
    const ALL: [Self; 26] = [
        Self::Compacted,
        Self::FutureRevision,
        Self::EmptyKey,
        Self::KeyNotFound,
        Self::ValueProvided,
        Self::LeaseProvided,
        Self::TooManyOps,
        Self::DuplicateKey,
        Self::InvalidSortOption,
        Self::StreamOrder,
        Self::StreamFilter,
        Self::TooLarge,
        Self::TooManyDeletes,
        Self::NoSpace,
        Self::LeaseNotFound,
        Self::LeaseExists,
        Self::LeaseTtlTooLarge,
        Self::Timeout,
        Self::NoLeader,
        Self::LeaderChanged,
        Self::LeaderFailed,
        Self::LeaderNotMoved,
        Self::NotLeader,
        Self::BadTransferee,
        Self::Stopped,
        Self::TooManyRequests,
    ];

    /// The refusal that has a text.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.to_string() == text)
    }

    /// The gRPC code that etcd sends with the text.
    pub fn code(self) -> Code {
        match self {
            Self::Compacted | Self::FutureRevision | Self::LeaseTtlTooLarge => Code::OutOfRange,
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOps
            | Self::DuplicateKey
            | Self::InvalidSortOption
            | Self::TooLarge
            | Self::TooManyDeletes => Code::InvalidArgument,
            Self::StreamOrder | Self::StreamFilter => Code::Unimplemented,
            Self::NoSpace | Self::TooManyRequests => Code::ResourceExhausted,
            Self::LeaseNotFound => Code::NotFound,
            Self::LeaseExists | Self::NotLeader | Self::BadTransferee => Code::FailedPrecondition,
            Self::Timeout
            | Self::NoLeader
            | Self::LeaderChanged
            | Self::LeaderFailed
            | Self::LeaderNotMoved
            | Self::Stopped => Code::Unavailable,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        Status::new(refusal.code(), refusal.to_string())
    }
}
