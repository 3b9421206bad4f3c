//! Named readiness checks of a process, which its tasks set and `/readyz` reports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// State of one check: `None` if ready, otherwise the reason why not.
type State = Option<String>;

/// All readiness checks of a process. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    checks: Arc<Mutex<BTreeMap<&'static str, State>>>,
}

/// One named check. Clones set the same check.
#[derive(Clone, Debug)]
pub struct Check {
    name: &'static str,
    readiness: Readiness,
}

impl Readiness {
    /// Without checks, a process is ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the check `name`, which is not ready until [`Check::set_ready`]. If `name` exists, this
    /// resets it and returns the same check.
    pub fn check(&self, name: &'static str) -> Check {
        let check = Check {
            name,
            readiness: self.clone(),
        };
        check.set_not_ready("not reported yet");
        check
    }

    /// The checks that are not ready, with their reasons. Empty if the process is ready.
    pub fn failing(&self) -> BTreeMap<&'static str, String> {
        self.lock()
            .iter()
            .filter_map(|(name, state)| Some((*name, state.clone()?)))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, State>> {
        // The map is consistent after any panic: each change is one insert.
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Marks the check as ready.
    pub fn set_ready(&self) {
        self.readiness.lock().insert(self.name, None);
    }

    /// Marks the check as not ready, with the reason `why`.
    pub fn set_not_ready(&self, why: impl Into<String>) {
        self.readiness.lock().insert(self.name, Some(why.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_check_is() {
        let readiness = Readiness::new();
        assert!(readiness.failing().is_empty());
        let first = readiness.check("first");
        let second = readiness.check("second");
        first.set_ready();
        assert_eq!(
            readiness.failing(),
            BTreeMap::from([("second", "not reported yet".to_owned())])
        );
        second.set_ready();
        assert!(readiness.failing().is_empty());
        first.set_not_ready("lost the connection");
        assert_eq!(
            readiness.failing(),
            BTreeMap::from([("first", "lost the connection".to_owned())])
        );
    }
}
