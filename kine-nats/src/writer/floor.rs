//! Raises the floor beside the writer: soon after it began or was in doubt, and every few seconds in which somebody was
//! told of something. What was acknowledged since is all that a log may lose without anybody knowing, and only when no
//! process is alive that remembers, and the server that dropped it says nothing of it.

use crate::clock;
use crate::log::Log;
use crate::snapshot::{Floor, Messages, Snapshots};
use crate::store::Store;
use futures::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How often.
const EVERY: Duration = Duration::from_secs(5);
/// How long after one that could not be stored.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the last one may take.
const LAST: Duration = Duration::from_secs(1);

/// What became of a floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Raised {
    Stored,
    /// It could not be stored, or the log ends below it, which the writer finds out by itself.
    Not,
    /// The log has lost records before its end. A floor would say that it is whole.
    Holes(u64),
}

/// What of the floor is due, and what is under way.
#[derive(Debug)]
pub(super) struct Rise {
    due: bool,
    not_before: Duration,
    job: Option<JoinHandle<Raised>>,
}

impl Drop for Rise {
    fn drop(&mut self) {
        if let Some(job) = &self.job {
            job.abort();
        }
    }
}

impl Rise {
    /// One is due: nobody knows yet what the log's server has dropped.
    pub(super) fn new() -> Self {
        Self {
            due: true,
            not_before: Duration::ZERO,
            job: None,
        }
    }

    /// Notes that somebody was told of something.
    pub(super) fn note(&mut self) {
        self.due = true;
    }

    /// The log's server may have dropped something, which was stored again.
    pub(super) fn doubt(&mut self) {
        (self.due, self.not_before) = (true, Duration::ZERO);
    }

    /// Begins when it is time. Answers how many records the log has lost before its end if that was just found out.
    pub(super) fn begin<L: Log, M: Messages>(
        &mut self,
        store: &Arc<Store>,
        log: &Arc<L>,
        snapshots: &Snapshots<M, L>,
    ) -> Option<u64> {
        let mut holes = None;
        if let Some(job) = &mut self.job {
            let ended = job.now_or_never()?;
            self.job = None;
            let raised = ended.unwrap_or(Raised::Not);
            if raised != Raised::Stored {
                (self.due, self.not_before) = (true, clock::now() + AGAIN);
            }
            holes = match raised {
                Raised::Stored => Some(0),
                Raised::Not => None,
                Raised::Holes(count) => Some(count),
            };
        }
        if self.due && clock::now() >= self.not_before {
            (self.due, self.not_before) = (false, clock::now() + EVERY);
            let (store, log, snapshots) = (Arc::clone(store), Arc::clone(log), snapshots.clone());
            self.job = Some(tokio::spawn(async move { raise(&store, &*log, &snapshots).await }));
        }
        holes
    }

    /// Raises it a last time, if it is not there already and as long as that takes no time.
    pub(super) async fn finish<L: Log, M: Messages>(&mut self, store: &Store, log: &L, snapshots: &Snapshots<M, L>) {
        if self.due || self.job.is_some() {
            self.abort().await;
            // What is known of an earlier one is all that is known then.
            let _ = timeout(LAST, raise(store, log, snapshots)).await;
        }
    }

    /// Ends what is under way.
    pub(super) async fn abort(&mut self) {
        if let Some(job) = self.job.take() {
            job.abort();
            let _ = job.await;
        }
    }
}

async fn raise<L: Log, M: Messages>(store: &Store, log: &L, snapshots: &Snapshots<M, L>) -> Raised {
    // In this order: what is acknowledged by now a whole log holds when it is asked.
    let (revision, sequence) = (store.revision(), store.sequence());
    let floor = match log.info().await {
        Ok(info) if info.holes > 0 => return Raised::Holes(info.holes),
        Ok(info) if info.last >= sequence => Floor {
            sequence,
            revision,
            lost: info.lost,
        },
        _ => return Raised::Not,
    };
    match snapshots.set_floor(&floor).await {
        Ok(()) => Raised::Stored,
        Err(error) => {
            tracing::debug!(error = %error, "How far the log was acknowledged could not be noted");
            Raised::Not
        }
    }
}
