//! Strict reads trust no clock. A read is answered after the log has stored a record that was sent
//! after the read arrived. If another process had started to write by then, the stream would have
//! rejected that record.
//!
//! ```text
//! read ──► Proofs::register ──► a record that was sent since is stored ──► the state is read
//!              └─ wanted ─► writer: a record without operations, unless one was sent since
//! ```

use crate::store::Store;
use crate::store::proofs::{Strict, Ticket};
use std::future::pending;

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
    pub(super) fn request_proof(&self) -> Option<Ticket> {
        self.strict.as_ref().map(|strict| {
            let ticket = strict.proofs().register();
            strict.requested.notify_one();
            ticket
        })
    }

    pub(super) fn proves(&self, ticket: Ticket) -> bool {
        self.strict
            .as_ref()
            .is_some_and(|strict| strict.proofs().proves(ticket))
    }

    /// Waits until a read needs a record that is not sent yet.
    pub(crate) async fn wait_for_proof_request(&self) {
        let Some(strict) = &self.strict else {
            return pending().await;
        };
        while !strict.proofs().is_needed() {
            // A notification that arrived before this call is not lost.
            strict.requested.notified().await;
        }
    }

    /// The number of a record that is about to be sent.
    pub(crate) fn number_record(&self) -> u64 {
        self.strict.as_ref().map_or(0, |strict| strict.proofs().send())
    }

    /// Marks a record as stored and visible.
    pub(crate) fn record_proof(&self, number: u64) {
        if let Some(strict) = &self.strict {
            strict.proofs().store(number);
        }
    }
}
