//! Pins of revisions that are read piece by piece: a pinned revision stays readable even if it is
//! compacted meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of pins of each revision.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<BTreeMap<i64, usize>>);

impl Pins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lowest pinned revision.
    pub(super) fn lowest(&self) -> Option<i64> {
        self.lock().keys().next().copied()
    }
}

/// A pin: its revision stays readable until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Arc<Pins>,
    revision: i64,
}

impl Pin {
    pub(super) fn new(pins: &Arc<Pins>, revision: i64) -> Self {
        *pins.lock().entry(revision).or_default() += 1;
        Self {
            pins: Arc::clone(pins),
            revision,
        }
    }

    pub(super) fn belongs_to(&self, pins: &Arc<Pins>) -> bool {
        Arc::ptr_eq(&self.pins, pins)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&self.revision);
            }
        }
    }
}
