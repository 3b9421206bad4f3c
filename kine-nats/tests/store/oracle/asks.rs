//! Random queries of tools and monitoring: Status, Hash and HashKV, alarms, members, Defragment.
//!
//! No alarm is raised by request: kine-nats rejects that, because its alarms follow from its state.

use super::plain::bare;
use super::requests::Place;
use super::{Oracle, everything};
use crate::harness::{Client, decode, eventually};
use futures::future::join_all;
use pb::alarm_request::AlarmAction;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Code;
use yoke_kine_nats::proto::etcdserverpb as pb;

/// One query.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    Status,
    Hash,
    HashKv(i64),
    Alarm(pb::AlarmRequest),
    Members(pb::MemberListRequest),
    Defragment,
}

/// Generates the same queries from the same seed, independently of the requests between them.
pub(super) struct Asks(StdRng);

impl Asks {
    pub(super) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(!seed))
    }

    /// A query, now and then. They are rare because a process delays after each hash.
    pub(super) fn next(&mut self, place: Place) -> Option<Ask> {
        let Self(random) = self;
        Some(match random.random_range(0..200) {
            0..6 => Ask::Status,
            6 => Ask::Hash,
            7..10 => Ask::HashKv(match random.random_range(0..8) {
                0 => place.revision + 1,
                1 => (place.compacted - 1).max(0),
                2 => 0,
                _ => random.random_range(place.compacted.max(1)..=place.revision),
            }),
            10..16 => Ask::Alarm(pb::AlarmRequest {
                action: [AlarmAction::Get, AlarmAction::Deactivate][random.random_range(0..2)].into(),
                member_id: 0,
                alarm: random.random_range(0..3),
            }),
            16..20 => Ask::Members(pb::MemberListRequest {
                linearizable: random.random(),
            }),
            20..22 => Ask::Defragment,
            _ => return None,
        })
    }
}

impl Oracle {
    /// Queries all and compares the parts that can be equal.
    pub(super) async fn maintain(&mut self, what: String, ask: Ask) {
        self.what = what;
        self.catch_up().await;
        match ask {
            Ask::Status => self.status().await,
            Ask::Hash => self.hash().await,
            Ask::HashKv(revision) => self.hash_kv(revision).await,
            Ask::Alarm(request) => {
                self.read(async |mut client| client.maintenance.alarm(request).await)
                    .await
                    .expect("nothing is refused");
            }
            Ask::Members(request) => self.members(request).await,
            Ask::Defragment => {
                let (mut etcd, mut ours) = self
                    .ask(async |mut client| client.maintenance.defragment(pb::DefragmentRequest {}).await)
                    .await;
                // etcd's response is empty.
                bare(&mut etcd, &mut ours);
                self.compare((etcd, ours)).expect("nothing is refused");
            }
        }
    }

    /// A status without the parts that differ: sizes and record counts depend on the
    /// implementation, elections and epochs differ, and any version is valid. These parts are
    /// checked before.
    fn plain_status(&self, member: u64, status: &mut pb::StatusResponse) {
        let what = &self.what;
        let version: Vec<u64> = status.version.split('.').map(|part| part.parse().unwrap()).collect();
        assert!(matches!(version[..], [3, _, _]), "{what}: {status:?}");
        assert!(
            (1..=status.db_size).contains(&status.db_size_in_use),
            "{what}: {status:?}"
        );
        assert!(status.db_size <= status.db_size_quota, "{what}: {status:?}");
        assert!(
            status.raft_term > 0 && (1..=status.raft_index).contains(&status.raft_applied_index),
            "{what}: {status:?}"
        );
        assert_eq!(status.leader, member, "{what}: the leader");
        *status = pb::StatusResponse {
            header: status.header.take(),
            storage_version: std::mem::take(&mut status.storage_version),
            is_learner: status.is_learner,
            errors: std::mem::take(&mut status.errors),
            ..Default::default()
        };
    }

    async fn status(&mut self) {
        let leader = member(&self.ours[0]).await.1;
        let etcd = member(&self.etcd).await.0;
        let (mut theirs, mut ours) = self
            .ask(async |mut client| client.maintenance.status(pb::StatusRequest {}).await)
            .await;
        self.plain_status(etcd, theirs.as_mut().unwrap());
        for status in ours.iter_mut().flatten() {
            self.plain_status(leader, status);
        }
        self.compare((theirs, ours));
    }

    /// The members have only their form in common: ours are its processes. etcd's header has no
    /// revision here.
    async fn members(&mut self, request: pb::MemberListRequest) {
        let theirs = member_list(&self.etcd, request).await;
        assert_eq!(theirs.len(), 1, "{}: {theirs:?}", self.what);
        let all = join_all(self.ours.iter().map(member)).await;
        let all: BTreeSet<_> = all.into_iter().map(|(id, _)| id).collect();
        for client in &self.ours {
            eventually("each process to list all processes, and no other", || async {
                let listed = member_list(client, request).await;
                for member in &listed {
                    assert_eq!(form(&theirs[0]), form(member), "{}: {member:?}", self.what);
                }
                let ids: BTreeSet<_> = listed.iter().map(|member| member.id).collect();
                (ids == all).then_some(())
            })
            .await;
        }
    }

    /// etcd hashes the pages of its file, leases included; ours are equal at a revision.
    async fn hash(&mut self) {
        let (mut etcd, mut ours) = self
            .ask(async |mut client| client.maintenance.hash(pb::HashRequest {}).await)
            .await;
        for answer in ours.iter_mut().flatten() {
            self.remember(self.place.revision, answer.hash);
        }
        for answer in std::iter::once(&mut etcd).chain(&mut ours).flatten() {
            answer.hash = 0;
        }
        self.compare((etcd, ours)).expect("nothing is refused");
    }

    /// A revision has the same hash in all of ours, at any time. etcd's number is different, and
    /// depends on more than the revision: it covers the changes between the compaction and that
    /// time.
    async fn hash_kv(&mut self, revision: i64) {
        let request = pb::HashKvRequest { revision };
        let (mut etcd, mut ours) = self
            .ask(async |mut client| client.maintenance.hash_kv(request).await)
            .await;
        for answer in ours.iter_mut().flatten() {
            self.remember(answer.hash_revision, answer.hash);
        }
        // etcd caches the hashes that it made at compactions, each with the compaction before it.
        // It returns the hash of a compaction to 0 for the newest revision.
        let compacted = self.place.compacted;
        match &mut etcd {
            Ok(kept) if kept.hash_revision == 0 => etcd.clone_from(&ours[0]),
            Ok(kept) if revision > 0 && revision == compacted => {
                kept.compact_revision = kept.compact_revision.max(compacted)
            }
            Ok(_) if (1..compacted).contains(&revision) => etcd = Err(compacted_error()),
            _ => {}
        }
        for answer in std::iter::once(&mut etcd).chain(&mut ours).flatten() {
            answer.hash = 0;
        }
        self.compare((etcd, ours));
    }

    fn remember(&mut self, revision: i64, hash: u32) {
        let known = *self.hashes.entry(revision).or_insert(hash);
        assert_eq!(known, hash, "{}: the hash of revision {revision}", self.what);
    }

    /// Hashes the readable revision again whose hash is oldest.
    pub(super) async fn hash_again(&mut self, when: &str) {
        let Place { revision, compacted } = self.place;
        let oldest = self.hashes.range(compacted..).next();
        let revision = oldest.map_or(revision, |(oldest, _)| *oldest);
        self.maintain(format!("{when}, the hash of {revision}"), Ask::HashKv(revision))
            .await;
    }

    /// Compares the hashes of two etcds; one started from a snapshot of ours.
    ///
    /// etcd's history numbers the operations of a transaction. Ours knows their order only until
    /// they are compacted. The numbers may differ if a compaction removed some operations of a
    /// transaction. Only this hash shows the difference.
    pub(super) async fn compare_moved(&mut self, when: &str) {
        let Place { revision, compacted } = self.place;
        let mut operations = BTreeMap::new();
        for event in self.watches.history() {
            *operations.entry(event.kv.as_ref().unwrap().mod_revision).or_insert(0) += 1;
        }
        let left = self.etcd.kv.range(everything(compacted)).await.unwrap().into_inner();
        let alone = |kv: &bytes::Bytes| operations[&decode(kv).mod_revision] == 1;
        if compacted > 0 && !left.kvs.iter().all(alone) {
            println!("{when}: the compacted revision {compacted} is left of transactions, its hash is not compared");
            return;
        }
        for at in compacted + 1..=revision {
            self.what = format!("{when}, etcd's hash of revision {at}");
            let request = pb::HashKvRequest { revision: at };
            self.read(async |mut client| client.maintenance.hash_kv(request).await)
                .await
                .unwrap();
        }
        println!("{when}: the hashes after {compacted} to {revision} are equal");
    }
}

fn compacted_error() -> (Code, String) {
    let why = "etcdserver: mvcc: required revision has been compacted";
    (Code::OutOfRange, why.to_owned())
}

/// A process, and the one that it regards as the leader.
async fn member(client: &Client) -> (u64, u64) {
    let mut client = client.clone();
    let status = client.maintenance.status(pb::StatusRequest {}).await.unwrap();
    let status = status.into_inner();
    (status.header.unwrap().member_id, status.leader)
}

async fn member_list(client: &Client, request: pb::MemberListRequest) -> Vec<pb::Member> {
    let listed = client.clone().cluster.member_list(request).await.unwrap();
    listed.into_inner().members
}

/// The fields of every member.
fn form(member: &pb::Member) -> [bool; 4] {
    let pb::Member {
        name,
        peer_ur_ls: peer,
        client_ur_ls: client,
        is_learner,
        ..
    } = member;
    [!name.is_empty(), !peer.is_empty(), !client.is_empty(), *is_learner]
}
