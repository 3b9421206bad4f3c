//! Requests that go through the writer, and their answers.

use crate::proto::etcdserverpb as pb;
use prost::Message;

/// A request that goes through the writer.
#[derive(Debug)]
pub(crate) enum Command {
    Put(pb::PutRequest),
    DeleteRange(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(i64),
    Grant {
        id: i64,
        ttl: i64,
    },
    Revoke(i64),
    KeepAlive(i64),
    /// Goes through the writer so that the answer shows only what is stored.
    TimeToLive {
        id: i64,
        keys: bool,
    },
    Leases,
    /// Requests the end of the store. It goes through the writer so that the answer covers
    /// everything that was stored before.
    Barrier,
}

impl Command {
    /// Whether the request may be executed twice: it changes nothing that a client can see.
    pub(crate) fn is_repeatable(&self) -> bool {
        matches!(
            self,
            Self::KeepAlive(_) | Self::TimeToLive { .. } | Self::Leases | Self::Barrier
        )
    }

    /// Approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Put(request) => request.encoded_len(),
            Self::DeleteRange(request) => request.encoded_len(),
            Self::Txn(request) => request.encoded_len(),
            _ => 0,
        }
    }
}

/// The answer to a command; its headers hold only the revision.
#[derive(Debug)]
pub(crate) enum Answer {
    Put(pb::PutResponse),
    DeleteRange(pb::DeleteRangeResponse),
    Txn(pb::TxnResponse),
    Compact(pb::CompactionResponse),
    Grant(pb::LeaseGrantResponse),
    Revoke(pb::LeaseRevokeResponse),
    KeepAlive(pb::LeaseKeepAliveResponse),
    TimeToLive(pb::LeaseTimeToLiveResponse),
    Leases(pb::LeaseLeasesResponse),
    Barrier { revision: i64, compacted: i64 },
}
