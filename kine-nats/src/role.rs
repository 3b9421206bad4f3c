//! The role of this process as it knows it, and the outcome of a request that needs the writer.

use crate::command::{Answer, Command};
use crate::error::RpcError;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Mask of the cycle number in a writer's number; the other bits identify the process.
const CYCLES: u64 = 0xffff;

/// The writer that the log names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) epoch: u64,
    pub(crate) writer: u64,
}

impl Leader {
    /// The process of this writer.
    pub(crate) fn member(self) -> u64 {
        member_of(self.writer)
    }
}

/// The role of a process for its store.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// Follows the log. `None` after a resignation, when there is no writer, and before the first
    /// record, when none is known.
    Follower(Option<Leader>),
    /// Writes the log; requests go to this queue.
    Writer { epoch: u64, queue: mpsc::Sender<Queued> },
}

/// A request on its way to the writer of this process.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) command: Command,
    pub(crate) reply: oneshot::Sender<Outcome>,
    /// Permit for its share of the bytes that may wait.
    pub(crate) room: OwnedSemaphorePermit,
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The request was answered.
    Done(Result<Answer, RpcError>),
    /// The request was not started, and may be offered to another process.
    Returned(Command),
}

/// Derives the member id of a process from a random number.
pub(crate) fn member(random: u64) -> u64 {
    (random & !CYCLES).max(CYCLES + 1)
}

/// The number under which a process writes in one of its cycles. Readers of the log treat each as a
/// different writer.
pub(crate) fn writer_of(member: u64, cycle: u16) -> u64 {
    member | u64::from(cycle)
}

/// The process behind a writer's number.
pub(crate) fn member_of(writer: u64) -> u64 {
    writer & !CYCLES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_process_is_another_writer_and_the_same_member() {
        for random in [0, 7, 0xffff, 0x1_0000, u64::MAX] {
            let member = member(random);
            assert!(member > CYCLES, "{member:x}");
            let writers = [writer_of(member, 0), writer_of(member, 1), writer_of(member, u16::MAX)];
            assert_eq!(writers.map(member_of), [member; 3]);
            assert!(writers[0] < writers[1] && writers[1] < writers[2]);
        }
    }
}
