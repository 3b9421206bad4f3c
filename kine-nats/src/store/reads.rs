//! Linearizable reads: they show everything that was acknowledged before them. The lease guarantees
//! that, or a record of the log, or an answer of the writer.

use crate::command::{Answer, Command};
use crate::error::RpcError;
use crate::limits::REQUEST_LIMIT;
use crate::state::State;
use crate::store::Store;
use tokio::time::{Instant, timeout_at};

/// Why the read data is the newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Assurance {
    /// This process is the writer, provided that the lease is still valid after the read.
    Lease,
    /// The log or its writer was consulted after the read arrived, and this process has caught up.
    Confirmed,
}

impl Store {
    /// Waits until this process shows everything that was acknowledged before the call.
    pub(crate) async fn linearize(&self) -> Result<(), RpcError> {
        self.assure().await.map(|_| ())
    }

    async fn assure(&self) -> Result<Assurance, RpcError> {
        let assured = self.wait_to_assure().await;
        match assured {
            Ok(_) | Err(RpcError::Stopped) => {}
            Err(RpcError::Timeout) => {
                self.metrics.slow_reads.inc();
            }
            Err(_) => {
                self.metrics.failed_reads.inc();
            }
        }
        assured
    }

    async fn wait_to_assure(&self) -> Result<Assurance, RpcError> {
        let deadline = Instant::now() + REQUEST_LIMIT;
        let limit = |_| RpcError::Timeout;
        let (head_in_flight, ticket) = (self.head_in_flight(), self.request_proof());
        loop {
            let changed = self.changed.notified();
            match ticket {
                Some(ticket) if self.proves(ticket) => return Ok(Assurance::Confirmed),
                // Requests in flight end with the old state when the state is reread from the log.
                None if self.has_valid_lease() && self.revision() >= head_in_flight.min(self.head_in_flight()) => {
                    return Ok(Assurance::Lease);
                }
                _ => {}
            }
            // Followers send requests as long as this process writes.
            let has_followers = self.peers.is_some() && self.is_writer();
            if self.is_stopping() && !has_followers {
                return Err(RpcError::Stopped);
            }
            if self.is_writer() {
                timeout_at(deadline, changed).await.map_err(limit)?;
            } else {
                timeout_at(deadline, self.barrier()).await.map_err(limit)??;
                return Ok(Assurance::Confirmed);
            }
        }
    }

    /// The revision that a follower may already show. It reads the writer's record from the log,
    /// maybe before the ack arrives here. Without followers, no process sees a record earlier than
    /// this one.
    fn head_in_flight(&self) -> i64 {
        match &self.peers {
            Some(_) => self.read().mvcc.head(),
            None => 0,
        }
    }

    /// Requests the end of the log from the writer, and waits until this process has caught up.
    async fn barrier(&self) -> Result<(), RpcError> {
        let Answer::Barrier { revision, compacted } = self.serve(Command::Barrier).await? else {
            return Err(RpcError::LeaderChanged);
        };
        loop {
            let changed = self.changed.notified();
            // A compaction has no revision of its own.
            if self.revision() >= revision && self.read().mvcc.compacted() >= compacted {
                return Ok(());
            }
            if self.is_stopping() {
                return Err(RpcError::Stopped);
            }
            self.appended.notify_one();
            changed.await;
        }
    }

    /// Reads the state so that it includes everything that was acknowledged before the call.
    pub(crate) async fn read_latest<T>(&self, read: impl Fn(&State) -> T) -> Result<T, RpcError> {
        loop {
            let assurance = self.assure().await?;
            let value = read(&self.read());
            // The process may have been suspended in between.
            if assurance == Assurance::Confirmed || self.has_valid_lease() {
                return Ok(value);
            }
        }
    }
}
