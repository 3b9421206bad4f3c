//! Reads that break off before one message, whatever connection they are made on: what the server sends of it is nothing
//! that a client can read. A connection that is lost for another reason is not lost there again and again.

use std::collections::BTreeMap;

/// On so many connections in a row a message could not be read.
pub(super) const BEYOND: u32 = 5;

/// Where reads break off: on how many connections, and the newest of them.
#[derive(Debug, Default)]
pub(super) struct Breaks(BTreeMap<u64, (u32, u64)>);

impl Breaks {
    /// A read broke off before a message. Answers on how many connections in a row it did.
    pub(super) fn note(&mut self, sequence: u64, connection: u64) -> u32 {
        let (count, newest) = self.0.entry(sequence).or_default();
        if *count == 0 || *newest != connection {
            (*count, *newest) = (*count + 1, connection);
        }
        *count
    }

    /// A message was read.
    pub(super) fn pass(&mut self, sequence: u64) {
        self.0.remove(&sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_connections_and_not_tries() {
        let mut breaks = Breaks::default();
        let counts = [1, 1, 2, 2, 4].map(|connection| breaks.note(7, connection));
        assert_eq!(counts, [1, 1, 2, 2, 3]);
    }

    #[test]
    fn what_is_read_in_the_end_begins_anew() {
        let mut breaks = Breaks::default();
        for connection in 1..4 {
            breaks.note(7, connection);
        }
        // What is read elsewhere says nothing.
        breaks.pass(6);
        assert_eq!((breaks.note(7, 4), breaks.note(9, 4)), (4, 1));
        breaks.pass(7);
        assert_eq!((breaks.note(7, 5), breaks.note(9, 5)), (1, 2));
    }
}
