//! The route of a request to the writer, in this process or another.

use crate::command::{Answer, Command};
use crate::error::RpcError;
use crate::limits::REQUEST_LIMIT;
use crate::role::{Outcome, Queued, Role};
use crate::store::forward::forward;
use crate::store::{Store, UNIT};
use crate::validate::check;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tonic::Code;

/// How long to wait for another writer before a request is offered again.
const AGAIN: Duration = Duration::from_millis(50);

impl Store {
    /// Bytes of the requests that wait for the writer.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        super::QUEUE_BYTES - self.room.available_permits() * UNIT
    }

    /// Executes a request at the writer, in whichever process it is.
    pub(crate) async fn submit(&self, command: Command) -> Result<Answer, RpcError> {
        check(&command)?;
        let proposal = (!command.is_repeatable()).then(|| self.metrics.propose());
        let limit = timeout(REQUEST_LIMIT, self.serve(command));
        let result = limit.await.unwrap_or(Err(RpcError::Timeout));
        if let Some(proposal) = proposal
            && result
                .as_ref()
                .err()
                .is_none_or(|error| error.code() != Code::Unavailable)
        {
            proposal.answered();
        }
        result
    }

    /// Executes a request if this process is the writer of the epoch. It does so also while
    /// stopping, as long as it writes.
    pub(crate) async fn submit_here(&self, epoch: u64, command: Command) -> Outcome {
        if let Err(error) = check(&command) {
            return Outcome::Done(Err(error));
        }
        let queue = match &*self.role.borrow() {
            Role::Writer { epoch: ours, queue } if *ours == epoch => queue.clone(),
            _ => return Outcome::Returned(command),
        };
        if matches!(command, Command::Barrier) {
            // A writer that is to resign waits until its queue has no senders, and this barrier may
            // wait for the next writer.
            drop(queue);
            let barrier = self.read_latest(|state| Answer::Barrier {
                revision: state.mvcc.visible(),
                compacted: state.mvcc.compacted(),
            });
            return match barrier.await {
                Err(RpcError::Stopped) => Outcome::Returned(command),
                answered => Outcome::Done(answered),
            };
        }
        let limit = timeout(REQUEST_LIMIT, self.enqueue(&queue, command));
        limit.await.unwrap_or(Outcome::Done(Err(RpcError::Timeout)))
    }

    pub(super) async fn serve(&self, mut command: Command) -> Result<Answer, RpcError> {
        let mut roles = self.role.subscribe();
        loop {
            if self.is_stopping() {
                return Err(RpcError::Stopped);
            }
            let role = roles.borrow_and_update().clone();
            let outcome = match (&role, &self.peers) {
                (Role::Writer { queue, .. }, _) => self.enqueue(queue, command).await,
                (Role::Follower(Some(leader)), Some(peers)) => {
                    self.metrics.forwarded.inc();
                    forward(&**peers, self, *leader, command).await
                }
                (Role::Follower(_), _) => Outcome::Returned(command),
            };
            match outcome {
                Outcome::Done(result) => return result,
                Outcome::Returned(back) => command = back,
            }
            // Waits for another role, or for the next attempt.
            let _ = timeout(AGAIN, roles.changed()).await;
        }
    }

    async fn enqueue(&self, queue: &mpsc::Sender<Queued>, command: Command) -> Outcome {
        let Ok(share) = u32::try_from(command.bytes() / UNIT + 1) else {
            return Outcome::Done(Err(RpcError::TooLarge));
        };
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(share).await else {
            return Outcome::Returned(command);
        };
        let (reply, answer) = oneshot::channel();
        if let Err(mpsc::error::SendError(queued)) = queue.send(Queued { command, reply, room }).await {
            return Outcome::Returned(queued.command);
        }
        // The writer ended, and whether the log holds the request is unknown.
        let unknown = |_| Outcome::Done(Err(RpcError::LeaderFailed));
        answer.await.unwrap_or_else(unknown)
    }
}
