//! Normalizes responses: removes the parts that differ between two servers.

use tonic::{Code, Response, Status};
use yoke_kine_nats::proto::etcdserverpb as pb;

/// A response, or an error with its text. Clients distinguish errors by the text.
pub(super) type Told<T> = Result<T, (Code, String)>;

/// A response with a header.
pub(super) trait Answer: PartialEq + std::fmt::Debug {
    fn header(&mut self) -> &mut Option<pb::ResponseHeader>;

    /// Retains only the revision of the header. The ids of cluster and member identify the server;
    /// the term counts elections, or our epochs.
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
    StatusResponse HashResponse HashKvResponse AlarmResponse DefragmentResponse MemberListResponse
}

pub(super) fn told<T: Answer>(result: Result<Response<T>, Status>) -> Told<T> {
    match result {
        Ok(answer) => Ok(answer.into_inner().plain()),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

/// The error that etcd 3.7 returns for a range in parts, where 3.6 returned this one for a complete
/// range.
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

/// Tolerance in seconds of the remaining time of a lease, although both count the same time:
/// requests reach the two servers one after the other.
const LATE: i64 = 10;
/// Seconds that etcd adds to every lease when a leader starts: its election timeout.
const PROLONGED: i64 = 1;

/// Normalizes the remaining time of leases within limits. It is never less than in etcd. It may be
/// more only by the time that etcd itself adds after a change of leader, because the new leader
/// knows the length of a lease but not its start. etcd returns the keys in map order.
pub(super) fn even_out(
    what: &str,
    etcd: &mut Told<pb::LeaseTimeToLiveResponse>,
    ours: &mut [Told<pb::LeaseTimeToLiveResponse>],
    renewed: bool,
) {
    let Ok(etcd) = etcd else { return };
    etcd.keys.sort();
    for ours in ours.iter_mut().flatten() {
        ours.keys.sort();
        let most = if renewed {
            etcd.granted_ttl + PROLONGED
        } else {
            etcd.ttl + LATE
        };
        if etcd.ttl > 0 {
            let may_be = etcd.ttl - LATE..=most;
            assert!(
                may_be.contains(&ours.ttl),
                "{what}: {} is left, not {may_be:?}",
                ours.ttl
            );
            ours.ttl = etcd.ttl;
        }
    }
}

/// Sorts leases by id: the order of expiry changes once they have restarted.
pub(super) fn in_order(etcd: &mut Told<pb::LeaseLeasesResponse>, ours: &mut [Told<pb::LeaseLeasesResponse>]) {
    for answer in std::iter::once(etcd).chain(ours).flatten() {
        answer.leases.sort_by_key(|lease| lease.id);
    }
}

/// Removes the headers.
pub(super) fn bare<T: Answer>(etcd: &mut Told<T>, ours: &mut [Told<T>]) {
    for answer in std::iter::once(etcd).chain(ours).flatten() {
        *answer.header() = None;
    }
}
