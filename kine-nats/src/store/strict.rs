//! Strict reads trust no clock. A read is answered after the log has stored a record that was sent
//! after the read arrived. If another process had started to write by then, the stream would have
//! rejected that record.
//!
//! ```text
//! read ──► Proofs::ask ──► a record that was sent since is stored ──► the state is read
//!              └─ wanted ─► writer: a record without operations, unless one was sent since
//! ```

use super::Store;
use std::future::pending;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Numbers of the records that this process sent as a writer, across all its cycles.
#[derive(Debug, Default)]
struct Proofs {
    sent: u64,
    stored: u64,
    wanted: u64,
}

/// The first record that proves to a read that no other process wrote before the read arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Proofs {
    /// Registers a read. Records that were already sent prove nothing to it. All reads before the
    /// next record share that record.
    fn ask(&mut self) -> Ticket {
        self.wanted = self.sent + 1;
        Ticket(self.wanted)
    }

    /// Whether a read waits for a record that is not sent yet.
    fn is_wanted(&self) -> bool {
        self.sent < self.wanted
    }

    /// Numbers a record; call this before sending it.
    fn send(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Marks a record as stored, together with all earlier ones that this process showed.
    fn store(&mut self, number: u64) {
        self.stored = self.stored.max(number);
    }

    fn proves(&self, ticket: Ticket) -> bool {
        self.stored >= ticket.0
    }
}

/// State of strict reads in a store.
#[derive(Debug, Default)]
pub(super) struct Strict {
    proofs: Mutex<Proofs>,
    asked: Notify,
}

impl Strict {
    fn proofs(&self) -> MutexGuard<'_, Proofs> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Makes every linearizable read wait for a record.
    pub(crate) fn with_strict_reads(mut self, strict: bool) -> Self {
        self.strict = strict.then(Strict::default);
        self
    }

    /// Whether reads ignore the lease.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict.is_some()
    }

    /// Registers a read.
    pub(super) fn ask_for_proof(&self) -> Option<Ticket> {
        self.strict.as_ref().map(|strict| {
            let ticket = strict.proofs().ask();
            strict.asked.notify_one();
            ticket
        })
    }

    pub(super) fn proves(&self, ticket: Ticket) -> bool {
        self.strict
            .as_ref()
            .is_some_and(|strict| strict.proofs().proves(ticket))
    }

    /// Waits until a read needs a record that is not sent yet.
    pub(crate) async fn proof_wanted(&self) {
        let Some(strict) = &self.strict else {
            return pending().await;
        };
        while !strict.proofs().is_wanted() {
            // A notification that arrived before this call is not lost.
            strict.asked.notified().await;
        }
    }

    /// The number of a record that is about to be sent.
    pub(crate) fn number_record(&self) -> u64 {
        self.strict.as_ref().map_or(0, |strict| strict.proofs().send())
    }

    /// Marks a record as stored and visible.
    pub(crate) fn note_proof(&self, number: u64) {
        if let Some(strict) = &self.strict {
            strict.proofs().store(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_that_is_sent_after_the_read_came_proves_anything() {
        let mut proofs = Proofs::default();
        let early = proofs.send();
        let ticket = proofs.ask();
        proofs.store(early);
        assert!(!proofs.proves(ticket) && proofs.is_wanted());
        let late = proofs.send();
        assert!(!proofs.proves(ticket) && !proofs.is_wanted());
        proofs.store(late);
        assert!(proofs.proves(ticket));
        let later = proofs.ask();
        assert!(!proofs.proves(later));
    }

    #[test]
    fn reads_that_come_before_the_next_record_share_it() {
        let mut proofs = Proofs::default();
        let tickets = [proofs.ask(), proofs.ask(), proofs.ask()];
        let shared = proofs.send();
        assert!(!proofs.is_wanted());
        let later = proofs.ask();
        assert!(proofs.is_wanted());
        proofs.store(shared);
        assert!(tickets.iter().all(|ticket| proofs.proves(*ticket)) && !proofs.proves(later));
    }

    #[test]
    fn a_record_that_is_never_stored_is_made_up_for_by_the_next() {
        let mut proofs = Proofs::default();
        let ticket = proofs.ask();
        proofs.send();
        let next = proofs.send();
        proofs.store(next);
        assert!(proofs.proves(ticket));
    }
}
