//! Reads the content of a backup from a store, in pieces. The versions are shared with the store
//! and not copied. Versions that the store drops meanwhile stay in memory until the backup is sent.

use crate::backup::content::{BackupContent, Version};
use crate::error::RpcError;
use crate::limits::REQUEST_LIMIT;
use crate::mvcc::Pin;
use crate::state::State;
use crate::store::Store;
use bytes::Bytes;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};

/// Keys and changes that are visited while the store is locked.
const PAGE: usize = 2048;

/// Collects the current content, as soon as it is stored. The history is not trimmed meanwhile.
pub(crate) async fn collect(store: &Store) -> Result<BackupContent, RpcError> {
    let pin = PinnedStore::new(&store.read());
    // Leases have no history. They belong to the head, which a record in flight may have made.
    pin.wait_until_stored(store).await?;
    let base = pin.collect_base(store).await?;
    let history = pin.collect_history(store).await?;
    Ok(BackupContent {
        base,
        history,
        revision: pin.revision,
        compacted: pin.compacted,
        leases: pin.leases,
        sequence: store.sequence(),
        epoch: store.epoch(),
        members: Vec::new(),
    })
}

struct PinnedStore {
    pin: Pin,
    revision: i64,
    compacted: i64,
    leases: Vec<(i64, i64)>,
}

impl PinnedStore {
    fn new(state: &State) -> Self {
        Self {
            pin: state.mvcc.pin(state.mvcc.compacted()),
            revision: state.mvcc.head(),
            compacted: state.mvcc.compacted(),
            leases: state.leases.terms(),
        }
    }

    async fn wait_until_stored(&self, store: &Store) -> Result<(), RpcError> {
        let deadline = Instant::now() + REQUEST_LIMIT;
        loop {
            let changed = store.changed();
            self.read_state(store, |_| ())?;
            if store.revision() >= self.revision {
                return Ok(());
            }
            if store.is_stopping() {
                return Err(RpcError::Stopped);
            }
            timeout_at(deadline, changed).await.map_err(|_| RpcError::Timeout)?;
        }
    }

    /// Reads the state that this pin belongs to. It fails if the state was replaced, which happens
    /// when this process rereads the log.
    fn read_state<T>(&self, store: &Store, read: impl FnOnce(&State) -> T) -> Result<T, RpcError> {
        let state = store.read();
        if state.mvcc.owns_pin(&self.pin) {
            Ok(read(&state))
        } else {
            Err(RpcError::LeaderChanged)
        }
    }

    async fn collect_base(&self, store: &Store) -> Result<Vec<Version>, RpcError> {
        let mut versions = Vec::new();
        let mut from = Some(Bytes::from_static(&[0]));
        while let Some(key) = from {
            let (page, next) = self.read_state(store, |state| state.mvcc.base_page(&key, PAGE, self.compacted + 1))?;
            let before = page.into_iter().filter(|item| item.modified < self.compacted);
            versions.extend(before.map(|item| Version {
                revision: item.modified,
                delete: false,
                kv: item.kv,
            }));
            from = next;
            yield_now().await;
        }
        Ok(versions)
    }

    /// Collects the changes from the compact revision on. Like etcd, it includes a delete at that
    /// revision, for watches.
    async fn collect_history(&self, store: &Store) -> Result<Vec<Version>, RpcError> {
        let mut versions: Vec<Version> = Vec::new();
        // Position of the next read: a revision, and how many of its changes are collected.
        let (mut revision, mut done) = (self.compacted, 0);
        loop {
            let before = versions.len();
            self.read_state(store, |state| {
                let changes = state.mvcc.changes(revision).skip(done).take(PAGE);
                for change in changes.take_while(|change| change.revision <= self.revision) {
                    done = if change.revision == revision { done + 1 } else { 1 };
                    revision = change.revision;
                    versions.push(Version {
                        revision,
                        delete: change.delete,
                        kv: change.kv.clone(),
                    });
                }
            })?;
            if versions.len() < before + PAGE {
                return Ok(versions);
            }
            yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests;
