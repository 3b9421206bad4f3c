//! Answers without what two servers cannot have in common.

use tonic::{Code, Response, Status};
use yoke_kine_nats::proto::etcdserverpb as pb;

/// What a client is told: an answer, or an error with its text, by which clients know errors.
pub(super) type Told<T> = Result<T, (Code, String)>;

/// An answer with a header.
pub(super) trait Answer: PartialEq + std::fmt::Debug {
    fn header(&mut self) -> &mut Option<pb::ResponseHeader>;

    /// The header's revision only. The numbers of cluster and member name the server; its term counts elections, and our
    /// epochs.
    fn plain(mut self) -> Self
    where
        Self: Sized,
    {
        if let Some(header) = self.header() {
            *header = pb::ResponseHeader {
                revision: header.revision,
                ..Default::default()
            };
        }
        self
    }

    fn revision(&mut self) -> i64 {
        self.header().as_ref().map_or(0, |header| header.revision)
    }
}

macro_rules! answers {
    ($($name:ident)*) => {$(
        impl Answer for pb::$name {
            fn header(&mut self) -> &mut Option<pb::ResponseHeader> {
                &mut self.header
            }
        }
    )*};
}

answers! {
    RangeResponse PutResponse DeleteRangeResponse TxnResponse CompactionResponse
    LeaseGrantResponse LeaseRevokeResponse LeaseKeepAliveResponse LeaseTimeToLiveResponse LeaseLeasesResponse
    WatchResponse
}

pub(super) fn told<T: Answer>(result: Result<Response<T>, Status>) -> Told<T> {
    match result {
        Ok(answer) => Ok(answer.into_inner().plain()),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

/// What etcd 3.7 tells of a range in parts, where 3.6 told so of it as a whole.
pub(super) fn streamed(request: &pb::RangeRequest, whole: &Told<pb::RangeResponse>) -> Told<pb::RangeResponse> {
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    let refused = |what: &str| Err((Code::Unimplemented, format!("RangeStream does not support {what}")));
    match (whole, request.sort_order, request.sort_target) {
        (Err((Code::InvalidArgument, _)), ..) => whole.clone(),
        (_, 1, 1..) | (_, 2, _) => refused("custom sort orders"),
        _ if filters != [0; 4] => refused("revision filters"),
        _ => whole.clone(),
    }
}

/// Seconds in which a run is done.
const RUN: u64 = 90;

/// Evens out what is left of two leases that began within moments, and begin anew with a new writer as with a new leader
/// of etcd's; and the order of keys, which etcd has from a map.
pub(super) fn even_out([one, other]: &mut [Told<pb::LeaseTimeToLiveResponse>; 2]) {
    if let (Ok(one), Ok(other)) = (one, other) {
        if one.ttl > 0 && one.ttl.abs_diff(other.ttl) < RUN {
            one.ttl = other.ttl;
        }
        one.keys.sort();
        other.keys.sort();
    }
}
