//! Pins of revisions that are read piece by piece: a pinned revision stays readable even if it is
//! compacted meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of pins of each revision.
#[derive(Debug, Default)]
pub(super) struct Holds(Mutex<BTreeMap<i64, usize>>);

impl Holds {
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
pub(crate) struct Hold {
    holds: Arc<Holds>,
    revision: i64,
}

impl Hold {
    pub(super) fn new(holds: &Arc<Holds>, revision: i64) -> Self {
        *holds.lock().entry(revision).or_default() += 1;
        Self {
            holds: Arc::clone(holds),
            revision,
        }
    }

    pub(super) fn is_one_of(&self, holds: &Arc<Holds>) -> bool {
        Arc::ptr_eq(&self.holds, holds)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut holds = self.holds.lock();
        if let Some(count) = holds.get_mut(&self.revision) {
            *count -= 1;
            if *count == 0 {
                holds.remove(&self.revision);
            }
        }
    }
}
