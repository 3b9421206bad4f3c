//! Selects the records that prove to a strict read that no other process wrote before it arrived.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Numbers of the records that this process sent as a writer, across all its cycles.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    sent: u64,
    stored: u64,
    needed: u64,
}

/// The first record that proves to a read that no other process wrote before the read arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Proofs {
    /// Registers a read. Records that were already sent prove nothing to it. All reads before the
    /// next record share that record.
    pub(super) fn register(&mut self) -> Ticket {
        self.needed = self.sent + 1;
        Ticket(self.needed)
    }

    /// Whether a read waits for a record that is not sent yet.
    pub(super) fn is_needed(&self) -> bool {
        self.sent < self.needed
    }

    /// Numbers a record; call this before sending it.
    pub(super) fn send(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// Marks a record as stored, together with all earlier ones that this process showed.
    pub(super) fn store(&mut self, number: u64) {
        self.stored = self.stored.max(number);
    }

    pub(super) fn proves(&self, ticket: Ticket) -> bool {
        self.stored >= ticket.0
    }
}

/// State of strict reads in a store.
#[derive(Debug, Default)]
pub(super) struct Strict {
    proofs: Mutex<Proofs>,
    pub(super) requested: Notify,
}

impl Strict {
    pub(super) fn proofs(&self) -> MutexGuard<'_, Proofs> {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_after_the_read_is_a_proof() {
        let mut proofs = Proofs::default();
        let early = proofs.send();
        let ticket = proofs.register();
        proofs.store(early);
        assert!(!proofs.proves(ticket) && proofs.is_needed());
        let late = proofs.send();
        assert!(!proofs.proves(ticket) && !proofs.is_needed());
        proofs.store(late);
        assert!(proofs.proves(ticket));
        let later = proofs.register();
        assert!(!proofs.proves(later));
    }

    #[test]
    fn reads_before_the_next_record_share_it() {
        let mut proofs = Proofs::default();
        let tickets = [proofs.register(), proofs.register(), proofs.register()];
        let shared = proofs.send();
        assert!(!proofs.is_needed());
        let later = proofs.register();
        assert!(proofs.is_needed());
        proofs.store(shared);
        assert!(tickets.iter().all(|ticket| proofs.proves(*ticket)) && !proofs.proves(later));
    }

    #[test]
    fn the_next_record_replaces_an_unstored_one() {
        let mut proofs = Proofs::default();
        let ticket = proofs.register();
        proofs.send();
        let next = proofs.send();
        proofs.store(next);
        assert!(proofs.proves(ticket));
    }
}
