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
    pub(super) fn record(&mut self, sequence: u64, connection: u64) -> u32 {
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
    fn counts_connections_and_not_attempts() {
        let mut failures = ReadFailures::default();
        let counts = [1, 1, 2, 2, 4].map(|connection| failures.record(7, connection));
        assert_eq!(counts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_successful_read_resets_the_count() {
        let mut failures = ReadFailures::default();
        for connection in 1..4 {
            failures.record(7, connection);
        }
        // A successful read of another message resets nothing.
        failures.pass(6);
        assert_eq!((failures.record(7, 4), failures.record(9, 4)), (4, 1));
        failures.pass(7);
        assert_eq!((failures.record(7, 5), failures.record(9, 5)), (1, 2));
    }
}
