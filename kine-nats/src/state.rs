//! The content of a store, and how the log's operations change it. The writer changes it during
//! evaluation; a reader of the log applies the same changes with [`State::apply`].

use crate::codec::Operation;
use crate::lease::Leases;
use crate::mvcc::{Item, Mvcc};
use bytes::Bytes;
use std::time::Duration;

/// An operation that does not fit the state.
#[derive(Debug, thiserror::Error)]
#[error("apply an operation at revision {revision} to a store at revision {head}")]
pub(crate) struct ApplyError {
    revision: i64,
    head: i64,
}

/// Keys and leases.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) mvcc: Mvcc,
    pub(crate) leases: Leases,
    /// The compact revision once everything in flight is stored.
    pub(crate) compacting: i64,
}

impl State {
    pub(crate) fn new(mvcc: Mvcc) -> Self {
        let compacting = mvcc.compacted();
        Self {
            mvcc,
            leases: Leases::default(),
            compacting,
        }
    }

    /// Quota bytes of keys, history and leases.
    pub(crate) fn bytes(&self) -> u64 {
        self.mvcc.bytes() + self.leases.bytes()
    }

    /// Writes a key at the head.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> (Item, Option<Item>) {
        let (item, previous) = self.mvcc.put(key, value, lease);
        self.leases
            .attach(key, previous.as_ref().map_or(0, |item| item.lease), lease);
        (item, previous)
    }

    /// Deletes a key at the head.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Option<(Item, Item)> {
        let (item, previous) = self.mvcc.delete(key)?;
        self.leases.attach(key, previous.lease, 0);
        Some((item, previous))
    }

    /// The keys of a range that are live at the head.
    pub(crate) fn keys(&self, start: &[u8], end: &[u8]) -> Vec<Bytes> {
        let mut keys = Vec::new();
        self.mvcc.visit(start, end, self.mvcc.head(), |item| {
            keys.push(Bytes::copy_from_slice(item.key()));
            true
        });
        keys
    }

    /// Ends a lease and deletes its keys at the head. If there are keys, the head must have been
    /// advanced.
    pub(crate) fn revoke(&mut self, id: i64) {
        if let Some(lease) = self.leases.revoke(id) {
            for key in &lease.keys {
                self.mvcc.delete(key);
            }
        }
    }

    /// Applies an operation of a record.
    pub(crate) fn apply(&mut self, operation: &Operation, now: Duration) -> Result<(), ApplyError> {
        match operation {
            Operation::Change(item) => {
                self.step(item.modified)?;
                let (lease, previous) = (item.lease, self.mvcc.replay(item.clone()));
                self.leases
                    .attach(item.key(), previous.map_or(0, |item| item.lease), lease);
            }
            Operation::DeleteRange { revision, start, end } => {
                let keys = self.keys(start, end);
                self.step(*revision)?;
                for key in keys {
                    self.delete(&key);
                }
            }
            Operation::Grant { id, ttl } => self.leases.grant(*id, *ttl, now),
            Operation::Revoke { id, revision } => {
                if *revision > 0 {
                    self.step(*revision)?;
                }
                self.revoke(*id);
            }
            Operation::Compact { revision } => {
                let (revision, head) = (*revision, self.mvcc.head());
                if revision > head {
                    return Err(ApplyError { revision, head });
                }
                self.mvcc.compact(revision);
                self.compacting = self.mvcc.compacted();
            }
            Operation::Epoch { .. } | Operation::Resign => {}
        }
        Ok(())
    }

    fn step(&mut self, revision: i64) -> Result<(), ApplyError> {
        let head = self.mvcc.head();
        if revision != head && revision != head + 1 {
            return Err(ApplyError { revision, head });
        }
        self.mvcc.set_head(revision);
        Ok(())
    }
}
