//! Exports a store as the database file of an etcd 3.6, for `etcdctl snapshot save`. etcd's own
//! tools verify and restore it, and an etcd serves it with the same keys, revisions and leases.
//!
//! ```text
//! store ─► collect (keys at a revision, leases) ─► buckets (etcd's schema) ─► bbolt (pages) ─► grpc: pieces, SHA-256
//! ```
//!
//! The file leaves out:
//! - alarms: here they follow from the state, and in an etcd they would stay until they are
//!   disarmed;
//! - users and roles: a store has none.
//!
//! `etcdutl snapshot restore` replaces the members in the file by others.
//!
//! The schema is that of <https://github.com/etcd-io/etcd/tree/v3.6.8/server/storage/schema>.

pub(crate) mod bbolt;
pub(crate) mod collect;
pub(crate) mod content;

use crate::limits::STORAGE_VERSION;
use crate::mvcc::Item;
use crate::store::peers::Member;
use bbolt::{Bucket, Entry, Key};
use bytes::Bytes;
use content::{BackupContent, Version};
use prost::Message;
use serde::Serialize;

#[derive(Clone, PartialEq, Eq, Message)]
struct Lease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

#[derive(Debug, Serialize)]
struct MemberRecord {
    id: u64,
    #[serde(rename = "peerURLs")]
    peer_urls: Vec<String>,
    name: String,
    #[serde(rename = "clientURLs")]
    client_urls: Vec<String>,
}

#[derive(Debug, Serialize)]
struct ConfState {
    voters: Vec<u64>,
    auto_leave: bool,
}

/// Builds all buckets that an etcd 3.6 has.
pub(crate) fn buckets(parts: BackupContent) -> Vec<Bucket> {
    let meta = meta(&parts);
    let leases = parts.leases.into_iter().map(|(id, ttl)| Entry {
        key: Key::new(&id.to_be_bytes()),
        value: Lease { id, ttl }.encode_to_vec().into(),
    });
    let cluster = vec![entry(b"clusterVersion", STORAGE_VERSION)];
    let members = parts.members.into_iter().map(to_member);
    vec![
        Bucket::new("alarm", Vec::new()),
        Bucket::new("auth", Vec::new()),
        Bucket::new("authRoles", Vec::new()),
        Bucket::new("authUsers", Vec::new()),
        Bucket::new("cluster", cluster),
        Bucket::new("key", to_entries(parts.base, parts.history)),
        Bucket::new("lease", leases.collect()),
        Bucket::new("members", members.collect()),
        Bucket::new("members_removed", Vec::new()),
        Bucket::new("meta", meta),
    ]
}

fn meta(parts: &BackupContent) -> Vec<Entry> {
    let voters = parts.members.iter().map(|member| member.id).collect();
    let conf_state = to_json(&ConfState {
        voters,
        auto_leave: false,
    });
    let mut meta = vec![
        entry(b"confState", conf_state),
        entry(b"consistent_index", parts.sequence.to_be_bytes().to_vec()),
        entry(b"storageVersion", STORAGE_VERSION),
        entry(b"term", parts.epoch.to_be_bytes().to_vec()),
    ];
    // etcd's compact revision is -1 before any compaction, and a compaction at 0 is possible.
    if parts.compacted >= 0 {
        let revision = revision_bytes(parts.compacted, 0).to_vec();
        meta.push(entry(b"finishedCompactRev", revision.clone()));
        meta.push(entry(b"scheduledCompactRev", revision));
    }
    meta
}

/// Sorts the versions under etcd's keys: the revision, and a number within the revision.
fn to_entries(mut base: Vec<Version>, history: Vec<Version>) -> Vec<Entry> {
    base.sort_unstable_by_key(|version| version.revision);
    let (mut last, mut sub) = (0, 0);
    let versions = base.into_iter().chain(history).map(|version| {
        sub = if version.revision == last { sub + 1 } else { 0 };
        last = version.revision;
        to_entry(version, sub)
    });
    versions.collect()
}

fn to_entry(version: Version, sub: i64) -> Entry {
    let Version { revision, delete, kv } = version;
    let key_bytes = revision_bytes(revision, sub);
    if delete {
        let mut marked = [0; 18];
        marked[..17].copy_from_slice(&key_bytes);
        marked[17] = b't';
        // etcd stores only the key of a deleted version.
        let value = Item::tombstone(crate::mvcc::key_of(&kv), 0).kv;
        let key = Key::new(&marked);
        Entry { key, value }
    } else {
        let key = Key::new(&key_bytes);
        Entry { key, value: kv }
    }
}

fn revision_bytes(main: i64, sub: i64) -> [u8; 17] {
    let mut bytes = [b'_'; 17];
    bytes[..8].copy_from_slice(&main.to_be_bytes());
    bytes[9..].copy_from_slice(&sub.to_be_bytes());
    bytes
}

fn to_member(member: Member) -> Entry {
    let Member {
        id, name, client_urls, ..
    } = member;
    let mut key = [0; 16];
    key.copy_from_slice(format!("{id:016x}").as_bytes());
    let record = MemberRecord {
        id,
        peer_urls: client_urls.clone(),
        name,
        client_urls,
    };
    entry(&key, to_json(&record))
}

fn entry<const N: usize>(key: &[u8; N], value: impl Into<Bytes>) -> Entry {
    Entry {
        key: Key::new(key),
        value: value.into(),
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers, texts and lists have a form in JSON")
}

#[cfg(test)]
mod tests;
