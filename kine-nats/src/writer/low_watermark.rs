//! Raises the low watermark in the background: soon after the writer started or recovered, and
//! every few seconds in which a client got an answer. A start detects every loss of records below
//! it. It misses a loss above it only if no live process remembers the records and the server does
//! not report the loss.

use crate::clock;
use crate::log::Log;
use crate::snapshot::{LowWatermark, Messages, Snapshots};
use crate::store::Store;
use futures::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Interval between two low watermarks.
const EVERY: Duration = Duration::from_secs(5);
/// Delay after a low watermark that could not be stored.
const AGAIN: Duration = Duration::from_secs(1);
/// Timeout of the last low watermark.
const LAST: Duration = Duration::from_secs(1);

/// The outcome of raising the low watermark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RaiseResult {
    Stored,
    /// The low watermark could not be stored, or the log ends below it, which the writer detects by
    /// itself.
    Not,
    /// The log has lost this many records before its end. A low watermark would claim that it is
    /// complete.
    Holes(u64),
}

/// Whether a low watermark is due, and the job that raises it.
#[derive(Debug)]
pub(super) struct LowWatermarkJob {
    due: bool,
    not_before: Duration,
    job: Option<JoinHandle<RaiseResult>>,
}

impl Drop for LowWatermarkJob {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            job.abort();
        }
    }
}

impl LowWatermarkJob {
    /// A low watermark is due at the start, because it is still unknown which records the log's
    /// server has dropped.
    pub(super) fn new() -> Self {
        Self {
            due: true,
            not_before: Duration::ZERO,
            job: None,
        }
    }

    /// Marks a low watermark as due, because a client got an answer.
    pub(super) fn mark_due(&mut self) {
        self.due = true;
    }

    /// Marks a low watermark as due at once: the log's server may have dropped records, which were
    /// stored again.
    pub(super) fn recheck_log(&mut self) {
        (self.due, self.not_before) = (true, Duration::ZERO);
    }

    /// Starts the job when it is time. Returns how many records the log has lost before its end, if
    /// a job has just determined that.
    pub(super) fn start_due<L: Log, M: Messages>(
        &mut self,
        store: &Arc<Store>,
        log: &Arc<L>,
        snapshots: &Snapshots<M, L>,
    ) -> Option<u64> {
        let mut holes = None;
        if let Some(job) = &mut self.job {
            let finished = job.now_or_never()?;
            self.job = None;
            let raised = finished.unwrap_or(RaiseResult::Not);
            if raised != RaiseResult::Stored {
                (self.due, self.not_before) = (true, clock::now() + AGAIN);
            }
            holes = match raised {
                RaiseResult::Stored => Some(0),
                RaiseResult::Not => None,
                RaiseResult::Holes(count) => Some(count),
            };
        }
        if self.due && clock::now() >= self.not_before {
            (self.due, self.not_before) = (false, clock::now() + EVERY);
            let (store, log, snapshots) = (Arc::clone(store), Arc::clone(log), snapshots.clone());
            self.job = Some(tokio::spawn(async move { raise(&store, &*log, &snapshots).await }));
        }
        holes
    }

    /// Raises the low watermark a last time if that is due, with a short timeout.
    pub(super) async fn finish<L: Log, M: Messages>(&mut self, store: &Store, log: &L, snapshots: &Snapshots<M, L>) {
        if self.due || self.job.is_some() {
            self.abort().await;
            // Without it, the previous low watermark stays in force.
            let _ = timeout(LAST, raise(store, log, snapshots)).await;
        }
    }

    /// Aborts the job.
    pub(super) async fn abort(&mut self) {
        if let Some(job) = self.job.take() {
            job.abort();
            let _ = job.await;
        }
    }
}

async fn raise<L: Log, M: Messages>(store: &Store, log: &L, snapshots: &Snapshots<M, L>) -> RaiseResult {
    // The order matters: a complete log holds all that is acknowledged at this point when its info
    // is read.
    let (revision, sequence) = (store.revision(), store.sequence());
    let low_watermark = match log.info().await {
        Ok(info) if info.holes > 0 => return RaiseResult::Holes(info.holes),
        Ok(info) if info.last >= sequence => LowWatermark {
            sequence,
            revision,
            lost: info.lost,
        },
        _ => return RaiseResult::Not,
    };
    match snapshots.set_low_watermark(&low_watermark).await {
        Ok(()) => RaiseResult::Stored,
        Err(error) => {
            tracing::debug!(error = %error, "Cannot store the low watermark");
            RaiseResult::Not
        }
    }
}
