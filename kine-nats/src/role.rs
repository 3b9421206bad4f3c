//! Who writes, as a process knows it, and what becomes of a request that needs the writer.

use crate::refusal::Refusal;
use crate::txn::{Answer, Command};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Lives that a process may have; the rest of a writer's number is the process's.
const LIVES: u64 = 0xffff;

/// The writer that the log names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) epoch: u64,
    pub(crate) writer: u64,
}

impl Leader {
    /// The process that it is.
    pub(crate) fn member(self) -> u64 {
        member_of(self.writer)
    }
}

/// What a process does for its store.
#[derive(Debug, Clone)]
pub(crate) enum Role {
    /// It follows the log. Nobody writes after a resignation, and none is known before the first record.
    Follower(Option<Leader>),
    /// It writes; requests go here.
    Writer { epoch: u64, queue: mpsc::Sender<Queued> },
}

/// A request on its way to the writer of this process.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) command: Command,
    pub(crate) reply: oneshot::Sender<Outcome>,
    /// Its share of what may wait.
    pub(crate) room: OwnedSemaphorePermit,
}

/// What became of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is answered.
    Done(Result<Answer, Refusal>),
    /// It was not begun, and may be given to somebody else.
    Returned(Command),
}

/// A process's own number, from a random one.
pub(crate) fn member(random: u64) -> u64 {
    (random & !LIVES).max(LIVES + 1)
}

/// The number under which a process writes in one of its lives; each is another writer to those who read the log.
pub(crate) fn writer_of(member: u64, life: u16) -> u64 {
    member | u64::from(life)
}

/// The process behind a writer's number.
pub(crate) fn member_of(writer: u64) -> u64 {
    writer & !LIVES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_life_of_a_process_is_another_writer_and_the_same_member() {
        for random in [0, 7, 0xffff, 0x1_0000, u64::MAX] {
            let member = member(random);
            assert!(member > LIVES, "{member:x}");
            let writers = [writer_of(member, 0), writer_of(member, 1), writer_of(member, u16::MAX)];
            assert_eq!(writers.map(member_of), [member; 3]);
            assert!(writers[0] < writers[1] && writers[1] < writers[2]);
        }
    }
}
