//! Limits how many objects of one Tenant are reconciled concurrently. Thus a tenant's hanging API
//! does not use up the time of the others.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Slots in use, by Tenant.
#[derive(Debug)]
pub struct Slots {
    /// Slots per Tenant.
    most: usize,
    taken: Mutex<HashMap<String, usize>>,
}

/// A slot, in use until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    slots: &'a Slots,
    tenant: String,
}

impl Slots {
    /// Creates slots, `most` per Tenant.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
        }
    }

    /// Takes a slot of this Tenant, if one is free.
    pub(crate) fn enter(&self, tenant: &str) -> Option<Slot<'_>> {
        let mut taken = self.lock();
        let count = taken.entry(tenant.to_owned()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Slot {
            slots: self,
            tenant: tenant.to_owned(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        // Every change is one number, so the map is consistent after any panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        if let Some(count) = taken.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_its_own_slots() {
        let slots = Slots::new(2);
        let (one, two) = (slots.enter("a").unwrap(), slots.enter("a").unwrap());
        assert!(slots.enter("a").is_none());
        assert!(slots.enter("b").is_some());
        drop(one);
        assert!(slots.enter("a").is_some());
        drop(two);
        assert!(slots.lock().is_empty(), "a Tenant without slots in use is remembered");
    }
}
