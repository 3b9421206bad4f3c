//! Random requests of all kinds, most of them valid.

use bytes::Bytes;
use pb::compare::TargetUnion;
use pb::request_op::Request;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use yoke_kine_nats::proto::etcdserverpb as pb;

/// Few keys, so that requests collide: prefixes of each other, the smallest and the largest.
pub(super) const KEYS: [&[u8]; 9] = [b"a", b"aa", b"b", b"b/1", b"b/2", b"b/3", b"c", b"\0", b"\xff"];
/// Ends of ranges: none, everything, and positions between and on keys.
const ENDS: [&[u8]; 8] = [b"", b"", b"\0", b"b", b"b0", b"c", b"a\0", b"\xff\xff"];
/// Leases that are granted, and one that never is.
pub(super) const LEASES: [i64; 5] = [1, 2, 3, 1 << 62, 99];
const VALUES: [&[u8]; 4] = [b"", b"1", b"2", b"some longer value"];
pub(super) const STREAMS: usize = 3;
/// The stream of watches that start at future revisions; etcd sends no progress on it as long as
/// one of these exists.
const LATER: usize = STREAMS - 1;

/// One request to both servers.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Range(pb::RangeRequest),
    Put(pb::PutRequest),
    DeleteRange(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Compact(pb::CompactionRequest),
    Grant(pb::LeaseGrantRequest),
    Revoke(pb::LeaseRevokeRequest),
    KeepAlive(pb::LeaseKeepAliveRequest),
    TimeToLive(pb::LeaseTimeToLiveRequest),
    Leases,
    Watch(usize, pb::WatchCreateRequest),
    Cancel(usize, i64),
    Progress(usize),
}

/// Positions of the servers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) revision: i64,
    pub(super) compacted: i64,
}

/// Generates the same requests from the same seed, as long as the responses are the same.
pub(super) struct Requests {
    random: StdRng,
    /// Values so large that responses are split.
    large: bool,
}

impl Requests {
    pub(super) fn new(seed: u64) -> Self {
        let large = seed % 8 == 7;
        let random = StdRng::seed_from_u64(seed);
        Self { random, large }
    }

    pub(super) fn next(&mut self, place: Place) -> Step {
        match self.random.random_range(0..100) {
            // Larger than a request may be, but small enough for gRPC.
            0 if self.large => Step::Put(pb::PutRequest {
                key: self.key(),
                value: vec![b'v'; 1_600_000].into(),
                ..Default::default()
            }),
            0..24 => Step::Put(self.put()),
            24..44 => Step::Range(self.range(place)),
            44..52 => Step::DeleteRange(self.delete()),
            52..70 => Step::Txn(self.txn(place, 2)),
            70..73 => Step::Compact(pb::CompactionRequest {
                revision: self.revision(place),
                physical: self.random.random(),
            }),
            73..77 => Step::Grant(pb::LeaseGrantRequest {
                ttl: self.pick([1000, 2000, 600, 0, -1, 9_000_000_000, 9_000_000_001, i64::MAX]),
                id: self.pick([1, 2, 3, 1 << 62, -5]),
            }),
            77..79 => Step::Revoke(pb::LeaseRevokeRequest { id: self.lease() }),
            79..81 => Step::KeepAlive(pb::LeaseKeepAliveRequest { id: self.lease() }),
            81..84 => Step::TimeToLive(pb::LeaseTimeToLiveRequest {
                id: self.lease(),
                keys: self.random.random(),
            }),
            84 => Step::Leases,
            85..93 => {
                let asked = self.watch(place);
                let stream = self.random.random_range(0..LATER);
                let later = asked.start_revision > place.revision;
                Step::Watch(if later { LATER } else { stream }, asked)
            }
            93..97 => Step::Cancel(self.stream(), self.random.random_range(0..5)),
            _ => Step::Progress(self.stream()),
        }
    }

    fn pick<T: Copy, const N: usize>(&mut self, from: [T; N]) -> T {
        from[self.random.random_range(0..N)]
    }

    /// Returns true once in this many times.
    fn rarely(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    fn stream(&mut self) -> usize {
        self.random.random_range(0..STREAMS)
    }

    fn lease(&mut self) -> i64 {
        self.pick(LEASES)
    }

    fn key(&mut self) -> Bytes {
        if self.rarely(60) {
            return Bytes::new();
        }
        Bytes::from_static(self.pick(KEYS))
    }

    fn end(&mut self) -> Bytes {
        Bytes::from_static(self.pick(ENDS))
    }

    fn value(&mut self) -> Bytes {
        if self.large && self.rarely(3) {
            return vec![b'v'; 120_000].into();
        }
        Bytes::from_static(self.pick(VALUES))
    }

    /// The current revision, an earlier one, or one that cannot be read.
    fn revision(&mut self, place: Place) -> i64 {
        match self.random.random_range(0..12) {
            0..4 => 0,
            4 => place.revision + 1,
            5 => place.compacted,
            6 => place.compacted - 1,
            7 => -1,
            _ => self.random.random_range(place.compacted.max(1)..=place.revision),
        }
    }

    /// A bound of a filter; mostly none.
    fn bound(&mut self, place: Place) -> i64 {
        if self.rarely(8) {
            self.random.random_range(-1..=place.revision + 1)
        } else {
            0
        }
    }

    fn range(&mut self, place: Place) -> pb::RangeRequest {
        pb::RangeRequest {
            key: self.key(),
            range_end: self.end(),
            limit: self.pick([0, 0, 0, 1, 2, 3, 100, -1]),
            revision: self.revision(place),
            sort_order: self.pick([0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, -1]),
            sort_target: self.pick([0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]),
            serializable: self.random.random(),
            keys_only: self.rarely(4),
            count_only: self.rarely(6),
            min_mod_revision: self.bound(place),
            max_mod_revision: self.bound(place),
            min_create_revision: self.bound(place),
            max_create_revision: self.bound(place),
        }
    }

    fn put(&mut self) -> pb::PutRequest {
        let (ignore_value, ignore_lease) = (self.rarely(8), self.rarely(8));
        let value = self.value();
        let lease = if self.rarely(3) { self.lease() } else { 0 };
        pb::PutRequest {
            key: self.key(),
            value: if ignore_value && !self.rarely(4) {
                Bytes::new()
            } else {
                value
            },
            lease: if ignore_lease && !self.rarely(4) { 0 } else { lease },
            prev_kv: self.random.random(),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> pb::DeleteRangeRequest {
        pb::DeleteRangeRequest {
            key: self.key(),
            range_end: self.end(),
            prev_kv: self.random.random(),
        }
    }

    /// etcd does not notice a transaction that puts a key into a range that it deletes to the end
    /// of all keys. It crashes if the put keeps the key's lease: "unexpected error during txn". We
    /// reject such a transaction.
    fn bounded_delete(&mut self) -> pb::DeleteRangeRequest {
        let mut request = self.delete();
        if request.range_end.as_ref() == [0] {
            request.range_end = Bytes::from_static(b"\xff\xff");
        }
        request
    }

    fn compare(&mut self, place: Place) -> pb::Compare {
        let number = match self.random.random_range(0..4) {
            0 => 0,
            1 => self.random.random_range(0..4),
            2 => self.lease(),
            _ => self.random.random_range(0..=place.revision + 1),
        };
        let value = self.value();
        let (target, union) = match self.random.random_range(0..5) {
            0 => (0, TargetUnion::Version(number)),
            1 => (1, TargetUnion::CreateRevision(number)),
            2 => (2, TargetUnion::ModRevision(number)),
            3 => (3, TargetUnion::Value(value)),
            _ => (4, TargetUnion::Lease(number)),
        };
        pb::Compare {
            result: self.pick([0, 0, 1, 1, 2, 2, 3, 3, 4]),
            // One that does not fit its value, and one that does not exist.
            target: if self.rarely(20) {
                self.pick([0, 1, 2, 4, 5])
            } else {
                target
            },
            key: self.key(),
            range_end: if self.rarely(3) { self.end() } else { Bytes::new() },
            target_union: if self.rarely(30) { None } else { Some(union) },
        }
    }

    fn txn(&mut self, place: Place, depth: u32) -> pb::TxnRequest {
        let compares = self.pick([0, 1, 1, 2, 3]);
        pb::TxnRequest {
            compare: (0..compares).map(|_| self.compare(place)).collect(),
            success: self.operations(place, depth),
            failure: self.operations(place, depth),
        }
    }

    fn operations(&mut self, place: Place, depth: u32) -> Vec<pb::RequestOp> {
        let count = self.pick([0, 1, 1, 2, 2, 3]);
        let mut operation = || {
            let request = match self.random.random_range(0..10) {
                0..5 => Request::RequestPut(self.put()),
                5..7 => Request::RequestRange(self.range(place)),
                7 => Request::RequestDeleteRange(self.bounded_delete()),
                _ if depth == 0 => Request::RequestDeleteRange(self.bounded_delete()),
                _ => Request::RequestTxn(self.txn(place, depth - 1)),
            };
            let request = Some(request).filter(|_| !self.rarely(100));
            pb::RequestOp { request }
        };
        (0..count).map(|_| operation()).collect()
    }

    fn watch(&mut self, place: Place) -> pb::WatchCreateRequest {
        let filters = self.pick([&[][..], &[], &[], &[0], &[1], &[0, 1], &[7]]);
        pb::WatchCreateRequest {
            key: self.key(),
            range_end: self.end(),
            start_revision: match self.random.random_range(0..10) {
                0 => place.revision + 3,
                _ => self.revision(place),
            },
            progress_notify: self.random.random(),
            filters: filters.to_vec(),
            prev_kv: self.random.random(),
            watch_id: self.pick([0, 0, 0, 1, 2, 3, 7]),
            fragment: self.random.random(),
        }
    }
}
