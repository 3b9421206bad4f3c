//! Reads that show everything acknowledged before them: under the lease, by a record of the log, or by the writer's word.

use super::{REQUEST_LIMIT, Store};
use crate::refusal::Refusal;
use crate::state::State;
use crate::txn::{Answer, Command};
use tokio::time::{Instant, timeout_at};

/// Why what is read is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assurance {
    /// This process is the writer, if the lease still holds after the read.
    Lease,
    /// The log or its writer was asked after the read came, and this process is there.
    Asked,
}

impl Store {
    /// Waits until what this process shows includes all that was acknowledged before the call.
    pub(crate) async fn linearize(&self) -> Result<(), Refusal> {
        self.assure().await.map(|_| ())
    }

    async fn assure(&self) -> Result<Assurance, Refusal> {
        let assured = self.wait_to_assure().await;
        match assured {
            Ok(_) | Err(Refusal::Stopped) => {}
            Err(Refusal::Timeout) => {
                self.metrics.slow_reads.inc();
            }
            Err(_) => {
                self.metrics.failed_reads.inc();
            }
        }
        assured
    }

    async fn wait_to_assure(&self) -> Result<Assurance, Refusal> {
        let deadline = Instant::now() + REQUEST_LIMIT;
        let limit = |_| Refusal::Timeout;
        let (under_way, ticket) = (self.under_way(), self.ask_for_proof());
        loop {
            let changed = self.changed.notified();
            match ticket {
                Some(ticket) if self.proves(ticket) => return Ok(Assurance::Asked),
                // A state that was read anew ends what was under way in the old one.
                None if self.lease_holds() && self.revision() >= under_way.min(self.under_way()) => {
                    return Ok(Assurance::Lease);
                }
                _ => {}
            }
            // Followers ask as long as it writes.
            let is_asked = self.peers.is_some() && self.is_writer();
            if self.is_stopping() && !is_asked {
                return Err(Refusal::Stopped);
            }
            if self.is_writer() {
                timeout_at(deadline, changed).await.map_err(limit)?;
            } else {
                timeout_at(deadline, self.barrier()).await.map_err(limit)??;
                return Ok(Assurance::Asked);
            }
        }
    }

    /// The revision that a follower may show by now: it reads from the log what the writer has sent, maybe before the
    /// acknowledgement is here. Without followers, nobody sees it earlier than this process.
    fn under_way(&self) -> i64 {
        match &self.peers {
            Some(_) => self.read().mvcc.head(),
            None => 0,
        }
    }

    /// Asks the writer how far the log is, and waits until this process is, too.
    async fn barrier(&self) -> Result<(), Refusal> {
        let Answer::Barrier { revision, compacted } = self.serve(Command::Barrier).await? else {
            return Err(Refusal::LeaderChanged);
        };
        loop {
            let changed = self.changed.notified();
            // A compaction has no revision of its own.
            if self.revision() >= revision && self.read().mvcc.compacted() >= compacted {
                return Ok(());
            }
            if self.is_stopping() {
                return Err(Refusal::Stopped);
            }
            self.nudged.notify_one();
            changed.await;
        }
    }

    /// Reads the state so that everything acknowledged before the call is seen.
    pub(crate) async fn read_latest<T>(&self, read: impl Fn(&State) -> T) -> Result<T, Refusal> {
        loop {
            let assurance = self.assure().await?;
            let value = read(&self.read());
            // The process may have slept in between.
            if assurance == Assurance::Asked || self.lease_holds() {
                return Ok(value);
            }
        }
    }
}
