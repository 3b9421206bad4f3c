//! Counts reads that fail at the same message on one connection after another. In that case the
//! server sends the message in a form that no client can read. A connection that fails for another
//! reason does not fail at the same message repeatedly.

use std::collections::BTreeMap;

/// Number of consecutive connections after which a message counts as unreadable.
pub(super) const UNREADABLE_AFTER: u32 = 5;

/// For each message at which reads failed: the number of connections, and the newest of them.
#[derive(Debug, Default)]
pub(super) struct ReadFailures(BTreeMap<u64, (u32, u64)>);

impl ReadFailures {
    /// Records that a read failed before a message. Returns on how many consecutive connections it
    /// did.
    pub(super) fn note(&mut self, sequence: u64, connection: u64) -> u32 {
        let (count, newest) = self.0.entry(sequence).or_default();
        if *count == 0 || *newest != connection {
            (*count, *newest) = (*count + 1, connection);
        }
        *count
    }

    /// Records that a message was read.
    pub(super) fn pass(&mut self, sequence: u64) {
        self.0.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_connections_and_not_tries() {
        let mut breaks = ReadFailures::default();
        let counts = [1, 1, 2, 2, 4].map(|connection| breaks.note(7, connection));
        assert_eq!(counts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn what_is_read_in_the_end_begins_anew() {
        let mut breaks = ReadFailures::default();
        for connection in 1..4 {
            breaks.note(7, connection);
        }
        // A successful read of another message resets nothing.
        breaks.pass(6);
        assert_eq!((breaks.note(7, 4), breaks.note(9, 4)), (4, 1));
        breaks.pass(7);
        assert_eq!((breaks.note(7, 5), breaks.note(9, 5)), (1, 2));
    }
}
