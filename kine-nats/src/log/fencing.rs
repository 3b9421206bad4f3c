//! Fencing: decides which records of the log are valid, and so which process may write. Every
//! reader of the log comes to the same result.
//!
//! A writer starts with an epoch record, placed exactly behind the last record that it read. Its
//! records form a chain of hashes from there. A record of an earlier writer may still be in flight
//! and arrive behind the epoch record. It is *void* for all readers, and its writer never learns
//! that it was stored.
//!
//! Two other kinds of messages are void as well: a message that no process of this store wrote, and
//! a copy of a record. A stream accepts such messages too: a server's reply to a request lands in
//! it if the request names its subject as the reply subject.

use crate::codec::{self, Header, Operation, Record};
use std::collections::VecDeque;
use std::time::Duration;

/// Largest number of records of a writer that one message of another sender displaces: those in
/// flight behind the first.
const DISPLACED: u32 = 3;
/// Number of hashes that are remembered, to detect copies.
const REMEMBERED: usize = 256;

/// Why the log cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum FencingError {
    /// A record does not continue the chain.
    #[error("follow the log: the record at sequence {sequence} does not continue the one before it")]
    Broken {
        /// Sequence of the record.
        sequence: u64,
    },
}

/// Whether a record counts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The record counts.
    Valid,
    /// The record came from a replaced writer, or is not for this store. Readers ignore it.
    Void,
}

/// Whether a process may start to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// No process holds a lease.
    Free,
    /// The writer may hold a lease for this long.
    Wait(Duration),
    /// A process of a newer incarnation owns the store; this one may never write.
    Superseded,
}

/// The position of a reader of the log, and the writer at that position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FencingState {
    /// Sequence of the newest message, including void ones.
    pub(crate) sequence: u64,
    pub(crate) cluster: u64,
    pub(crate) epoch: u64,
    pub(crate) writer: u64,
    pub(crate) incarnation: u64,
    /// Hash of the newest valid record.
    pub(crate) hash: u64,
    /// Lease duration of the writer in milliseconds.
    pub(crate) lease_ms: u32,
    /// Whether the writer has given up its lease.
    pub(crate) resigned: bool,
    /// Epoch of the newest writer that this process saw resign; 0 if none.
    pub(crate) last_resigned: u64,
    /// Counts behind the newest valid record: void messages, and records that continue a record
    /// that a void message displaced.
    pub(crate) between: (u32, u32),
    /// Number of messages that were passed over since this process started: copies, and messages
    /// that no process of this store wrote.
    pub(crate) ignored: u64,
    /// Hashes of the newest valid records that this process saw.
    pub(crate) recent: VecDeque<u64>,
}

impl FencingState {
    /// Passes over the next message if it was never a record of this store.
    pub(crate) fn skip_other_message(&mut self, sequence: u64, bytes: &[u8]) -> bool {
        let is_other = codec::is_of_other_store(bytes, (self.epoch > 0).then_some(self.cluster));
        if is_other {
            tracing::warn!(
                sequence,
                "Ignoring a message in the log that no process of this store wrote"
            );
            self.ignored += 1;
            self.sequence = sequence;
            self.between.0 += 1;
        }
        is_other
    }

    /// Decides whether a process of an incarnation may start to write now. The writer's lease
    /// expires at `until` at the latest.
    pub(crate) fn claim(&self, incarnation: u64, until: Duration, now: Duration) -> Claim {
        if self.incarnation > incarnation {
            Claim::Superseded
        } else if self.epoch == 0 || self.resigned || now > until {
            Claim::Free
        } else {
            Claim::Wait(until.saturating_sub(now))
        }
    }

    /// Moves the position behind a valid record.
    pub(crate) fn advance(&mut self, sequence: u64, hash: u64) {
        self.sequence = sequence;
        self.hash = hash;
        self.between = (0, 0);
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(hash);
    }

    /// Whether a record of the current writer that does not continue the chain is a copy of an
    /// earlier valid record.
    fn is_copy(&self, record: &Record, revision: i64) -> bool {
        let is_epoch = matches!(record.operations.first(), Some(Operation::Epoch { .. }));
        // A writer starts once and resigns last, its revisions never fall, and a heartbeat has no
        // content.
        is_epoch
            || self.resigned
            || record.header.base < revision
            || (record.header.base == revision && record.operations.is_empty())
            || self.recent.contains(&record.hash)
    }

    /// Judges the record behind the newest one. `revision` is the store's.
    pub(crate) fn admit(&mut self, sequence: u64, record: &Record, revision: i64) -> Result<Verdict, FencingError> {
        let header = &record.header;
        let epoch = record.operations.first().and_then(|operation| match operation {
            Operation::Epoch { lease_ms, .. } => Some(*lease_ms),
            _ => None,
        });
        let continues = header.previous == self.hash && header.base == revision;
        let verdict = match epoch {
            _ if self.epoch > 0 && header.cluster != self.cluster => Verdict::Void,
            Some(lease_ms) if header.epoch > self.epoch && continues => {
                self.start_epoch(header, lease_ms);
                Verdict::Valid
            }
            None if header.epoch == self.epoch && header.writer == self.writer && continues => Verdict::Valid,
            _ if header.epoch < self.epoch || (header.epoch == self.epoch && header.writer != self.writer) => {
                Verdict::Void
            }
            _ if header.epoch == self.epoch && self.is_copy(record, revision) => {
                tracing::warn!(sequence, "Ignoring a copy of a record in the log");
                self.ignored += 1;
                Verdict::Void
            }
            // The record continues one that a void message displaced. Its writer got no ack, and
            // sends it again behind that one. If more such records arrive than can be in flight,
            // they continue a stored record that is now corrupt.
            None if header.epoch == self.epoch && self.between.1 < self.between.0 * DISPLACED => {
                self.between.1 += 1;
                self.sequence = sequence;
                return Ok(Verdict::Void);
            }
            _ => return Err(FencingError::Broken { sequence }),
        };
        if verdict == Verdict::Valid {
            self.advance(sequence, record.hash);
            self.resigned = matches!(record.operations.last(), Some(Operation::Resign));
            if self.resigned {
                self.last_resigned = self.epoch;
            }
        } else {
            self.sequence = sequence;
            self.between.0 += 1;
        }
        Ok(verdict)
    }

    fn start_epoch(&mut self, header: &Header, lease_ms: u32) {
        self.cluster = header.cluster;
        self.epoch = header.epoch;
        self.writer = header.writer;
        self.incarnation = self.incarnation.max(header.incarnation);
        self.lease_ms = lease_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: u64, writer: u64, previous: u64, base: i64, operations: Vec<Operation>, hash: u64) -> Record {
        let header = Header {
            cluster: 7,
            epoch,
            writer,
            incarnation: writer,
            previous,
            base,
        };
        Record {
            header,
            operations,
            hash,
        }
    }

    fn epoch_operations() -> Vec<Operation> {
        vec![Operation::Epoch {
            lease_ms: 2000,
            name: String::new(),
        }]
    }

    fn grant() -> Vec<Operation> {
        vec![Operation::Grant { id: 7, ttl: 60 }]
    }

    fn fencing() -> FencingState {
        let mut fencing = FencingState::default();
        assert_eq!(
            fencing
                .admit(1, &record(1, 10, 0, 1, epoch_operations(), 100), 1)
                .unwrap(),
            Verdict::Valid
        );
        assert_eq!(
            fencing.admit(2, &record(1, 10, 100, 1, vec![], 101), 1).unwrap(),
            Verdict::Valid
        );
        fencing
    }

    #[test]
    fn records_of_a_replaced_writer_are_void() {
        let mut fencing = fencing();
        assert_eq!(
            fencing
                .admit(3, &record(2, 20, 101, 1, epoch_operations(), 102), 1)
                .unwrap(),
            Verdict::Valid
        );
        assert_eq!(
            fencing.admit(4, &record(1, 10, 101, 1, vec![], 103), 1).unwrap(),
            Verdict::Void
        );
        assert_eq!(
            fencing.admit(5, &record(2, 20, 102, 1, vec![], 104), 1).unwrap(),
            Verdict::Valid
        );
        assert_eq!(
            (fencing.sequence, fencing.epoch, fencing.writer, fencing.hash),
            (5, 2, 20, 104)
        );
        assert_eq!(fencing.incarnation, 20);
    }

    #[test]
    fn the_first_epoch_record_wins() {
        let mut fencing = fencing();
        assert_eq!(
            fencing
                .admit(3, &record(2, 20, 101, 1, epoch_operations(), 102), 1)
                .unwrap(),
            Verdict::Valid
        );
        assert_eq!(
            fencing
                .admit(4, &record(2, 30, 101, 1, epoch_operations(), 103), 1)
                .unwrap(),
            Verdict::Void
        );
        assert_eq!((fencing.writer, fencing.hash), (20, 102));
    }

    #[test]
    fn a_broken_chain_is_rejected() {
        for (name, bad) in [
            ("hash", record(1, 10, 99, 1, grant(), 102)),
            ("revision", record(1, 10, 101, 2, vec![], 102)),
            ("epoch without its record", record(2, 20, 101, 1, vec![], 102)),
            ("epoch on another end", record(2, 20, 99, 1, epoch_operations(), 102)),
        ] {
            assert!(
                matches!(fencing().admit(3, &bad, 1), Err(FencingError::Broken { sequence: 3 })),
                "{name}"
            );
        }
    }

    #[test]
    fn a_claim_depends_on_the_lease_and_the_incarnation() {
        let (until, late) = (Duration::from_secs(9), Duration::from_millis(9001));
        let written = FencingState {
            epoch: 1,
            incarnation: 5,
            ..FencingState::default()
        };
        let resigned = FencingState {
            resigned: true,
            ..written.clone()
        };
        let wait = Claim::Wait(Duration::from_secs(2));
        let seven = Duration::from_secs(7);
        for (name, fencing, incarnation, now, claim) in [
            ("an empty log", FencingState::default(), 0, Duration::ZERO, Claim::Free),
            ("a living writer", written.clone(), 5, seven, wait),
            ("a newer process waits too", written.clone(), 6, seven, wait),
            (
                "the lease ends with the last moment",
                written.clone(),
                5,
                until,
                Claim::Wait(Duration::ZERO),
            ),
            ("a silent writer", written.clone(), 5, late, Claim::Free),
            ("a resigned writer", resigned.clone(), 5, Duration::ZERO, Claim::Free),
            ("an older process never starts", resigned, 4, late, Claim::Superseded),
        ] {
            assert_eq!(fencing.claim(incarnation, until, now), claim, "{name}");
        }
    }

    #[test]
    fn copies_are_skipped() {
        let mut fencing = fencing();
        fencing.admit(3, &record(1, 10, 101, 1, grant(), 102), 1).unwrap();
        fencing.admit(4, &record(1, 10, 102, 1, vec![], 103), 1).unwrap();
        for (name, copy) in [
            ("epoch", record(1, 10, 0, 1, epoch_operations(), 100)),
            ("sign of life", record(1, 10, 100, 1, vec![], 101)),
            ("lease", record(1, 10, 101, 1, grant(), 102)),
            ("change", record(1, 10, 55, 1, grant(), 56)),
        ] {
            let mut fencing = fencing.clone();
            let revision = if name == "change" { 2 } else { 1 };
            assert_eq!(fencing.admit(5, &copy, revision).unwrap(), Verdict::Void, "{name}");
            assert_eq!((fencing.sequence, fencing.hash, fencing.ignored), (5, 103, 1), "{name}");
        }
    }

    #[test]
    fn successors_of_a_displaced_record_are_void() {
        let mut fencing = fencing();
        let next = |previous, hash| record(2, 20, previous, 1, vec![], hash);
        fencing
            .admit(3, &record(2, 20, 101, 1, epoch_operations(), 102), 1)
            .unwrap();
        fencing.admit(4, &record(1, 10, 101, 1, vec![], 103), 1).unwrap();
        // Continues 105, which was not accepted.
        assert_eq!(fencing.admit(5, &next(105, 106), 1).unwrap(), Verdict::Void);
        assert_eq!(fencing.admit(6, &next(106, 107), 1).unwrap(), Verdict::Void);
        assert_eq!(fencing.admit(7, &next(102, 105), 1).unwrap(), Verdict::Valid);
        assert_eq!(fencing.admit(8, &next(105, 106), 1).unwrap(), Verdict::Valid);
        assert!(matches!(
            fencing.admit(9, &record(2, 20, 105, 1, grant(), 107), 1),
            Err(FencingError::Broken { sequence: 9 })
        ));
    }

    #[test]
    fn successors_of_a_damaged_record_are_skipped_only_for_a_short_time() {
        let mut fencing = fencing();
        fencing.admit(3, &record(1, 10, 101, 1, grant(), 102), 1).unwrap();
        assert!(fencing.skip_other_message(4, b"was record 103"));
        // Three records may have been in flight behind the one that the message displaced.
        for (sequence, hash) in [(5, 104), (6, 105), (7, 106)] {
            let next = record(1, 10, hash - 1, 1, grant(), hash);
            assert_eq!(fencing.admit(sequence, &next, 1).unwrap(), Verdict::Void);
        }
        assert!(matches!(
            fencing.admit(8, &record(1, 10, 106, 1, grant(), 107), 1),
            Err(FencingError::Broken { sequence: 8 })
        ));
    }

    #[test]
    fn a_resigned_writer_has_no_lease_until_the_next_epoch() {
        let mut fencing = fencing();
        fencing
            .admit(3, &record(1, 10, 101, 1, vec![Operation::Resign], 102), 1)
            .unwrap();
        assert!(fencing.resigned);
        fencing
            .admit(4, &record(2, 20, 102, 1, epoch_operations(), 103), 1)
            .unwrap();
        assert!(!fencing.resigned);
    }
}
