//! Work beside the writer: snapshots, and trims of the history. At most one piece at a time, so that a snapshot never
//! meets a trim.

use crate::clock;
use crate::log::Log;
use crate::session::Session;
use crate::snapshot::{Messages, Pin, SnapshotError, Snapshots};
use crate::store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle};

/// When a snapshot is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cadence {
    /// Log bytes; the size of the last snapshot when that is larger, so that a large store is not written over and over.
    pub(crate) bytes: u64,
    /// Log bytes after which one is due in any case.
    pub(crate) most: u64,
    pub(crate) records: u64,
    pub(crate) age: Duration,
}

/// What the log holds beyond the newest snapshot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsaved {
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    pub(crate) changed: bool,
    pub(crate) since: Duration,
    pub(crate) urgent: bool,
}

/// How a piece of work ended: the bytes of a snapshot, 0 for a trim.
type Ended = Result<Result<u64, SnapshotError>, JoinError>;

/// What is due, and what is under way.
#[derive(Debug)]
pub(crate) struct Upkeep<L, M> {
    snapshots: Snapshots<M, L>,
    cadence: Cadence,
    unsaved: Unsaved,
    trim_due: bool,
    /// Bytes of the last snapshot.
    size: u64,
    job: Option<JoinHandle<Result<u64, SnapshotError>>>,
}

impl<L: Log, M: Messages> Upkeep<L, M> {
    pub(crate) fn new(snapshots: Snapshots<M, L>, cadence: Cadence, unsaved: Unsaved) -> Self {
        Self {
            snapshots,
            cadence,
            unsaved,
            trim_due: true,
            size: 0,
            job: None,
        }
    }

    /// Notes a record that is stored.
    pub(super) fn note(&mut self, bytes: u64, changed: bool) {
        self.unsaved.bytes += bytes;
        self.unsaved.records += 1;
        self.unsaved.changed |= changed;
    }

    /// The history may be shortened.
    pub(super) fn trim(&mut self) {
        self.trim_due = true;
    }

    /// The log takes nothing more.
    pub(super) fn hurry(&mut self) {
        self.unsaved.urgent = true;
    }

    pub(super) fn waits_for_quiet(&self) -> bool {
        self.job.is_none() && !self.trim_due && self.is_due()
    }

    fn is_due(&self) -> bool {
        let unsaved = &self.unsaved;
        let old = unsaved.changed && clock::now() > unsaved.since + self.cadence.age;
        let bytes = self.size.min(self.cadence.most).max(self.cadence.bytes);
        unsaved.urgent || unsaved.bytes >= bytes || unsaved.records >= self.cadence.records || old
    }

    /// Begins a trim or a snapshot when one is due. A snapshot shows the state at the acknowledged end of the log.
    pub(super) fn begin(&mut self, store: &Arc<Store>, session: &Session, quiet: bool) {
        if self.job.is_some() {
            return;
        }
        if self.trim_due {
            self.trim_due = false;
            let store = Arc::clone(store);
            self.job = Some(tokio::spawn(async move {
                while store.write().mvcc.trim(1000) {
                    tokio::task::yield_now().await;
                }
                Ok(0)
            }));
        } else if self.is_due() && quiet {
            self.unsaved = Unsaved {
                bytes: 0,
                records: 0,
                changed: false,
                since: clock::now(),
                urgent: false,
            };
            let pin = Pin::new(store.state(), session.clone());
            let (snapshots, store) = (self.snapshots.clone(), Arc::clone(store));
            self.job = Some(tokio::spawn(async move { snapshots.keep(store.state(), &pin).await }));
        }
    }

    /// Waits for what is under way; for ever when there is nothing.
    pub(super) async fn ended(&mut self) -> Ended {
        match &mut self.job {
            Some(job) => job.await,
            None => std::future::pending().await,
        }
    }

    /// Notes how it ended.
    pub(super) fn end(&mut self, store: &Store, ended: Ended) {
        self.job = None;
        match ended {
            Ok(Ok(0)) => {}
            Ok(Ok(bytes)) => {
                self.size = bytes;
                store.metrics.snapshots.inc();
                tracing::info!(bytes, "A snapshot is stored");
            }
            Ok(Err(error)) => {
                let error = anyhow::Error::new(error);
                tracing::warn!(error = format!("{error:#}"), "A snapshot could not be stored");
            }
            Err(error) => tracing::error!(error = %error, "A background task failed"),
        }
    }
}
