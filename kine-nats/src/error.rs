//! Errors of requests, with etcd's texts: clients distinguish errors by their text.

use tonic::{Code, Status};

/// The error that answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The requested revision is below the compact revision.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The requested revision does not exist yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// The request has no key.
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
    /// The transaction has too many operations.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOps,
    /// The transaction writes a key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
    /// The sort order or target does not exist.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A stream cannot sort by anything but the key.
    #[error("RangeStream does not support custom sort orders")]
    StreamOrder,
    /// A stream cannot filter by revision.
    #[error("RangeStream does not support revision filters")]
    StreamFilter,
    /// The request exceeds 1.5 MiB.
    #[error("etcdserver: request is too large")]
    TooLarge,
    /// The request deletes more keys than the writer removes in one step. etcd has no such limit.
    #[error("kine-nats: too many keys to delete in one request: delete them in parts of at most 100000")]
    TooManyDeletes,
    /// The quota is used up.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// The lease does not exist.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease with this number exists.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// The lease would last longer than etcd allows.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// The outcome of the request is unknown, or it did not start in time.
    #[error("etcdserver: request timed out")]
    Timeout,
    /// This process is not the writer, or does not know whether it still is.
    #[error("etcdserver: no leader")]
    NoLeader,
    /// Another process became the writer during a request that changes nothing.
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    /// The writer failed during the request; whether it was executed is unknown.
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    LeaderFailed,
    /// The target took too long to become the writer, or a third process did.
    #[error("etcdserver: request timed out, leader transfer took too long")]
    LeaderNotMoved,
    /// Only the writer answers this request.
    #[error("etcdserver: not leader")]
    NotLeader,
    /// The process that is to become the writer is unknown.
    #[error("etcdserver: bad leader transferee")]
    BadTransferee,
    /// The process is stopping.
    #[error("etcdserver: server stopped")]
    Stopped,
    /// Too many requests are waiting.
    #[error("etcdserver: too many requests")]
    TooManyRequests,
}

impl RpcError {
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

    /// The error with this text.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|error| error.to_string() == text)
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

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Self {
        Status::new(error.code(), error.to_string())
    }
}
