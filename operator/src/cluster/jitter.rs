//! Spreads requeues that would be simultaneous. Random.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use crate::cluster::intervals::{ASLEEP, STEADY};

/// Spreads the requeue delay of a Cluster that nothing else delays: one of a sleeping Cluster over
/// twice its time, others that are long by up to a tenth.
pub(crate) fn spread_requeue(delay: Duration) -> Duration {
    match delay {
        ASLEEP => up_to_double(delay),
        _ if delay < STEADY => delay,
        _ => up_to_tenth(delay),
    }
}

/// Adds up to a tenth of the duration.
pub(crate) fn up_to_tenth(duration: Duration) -> Duration {
    duration + duration / 1000 * random_below(100)
}

/// Adds up to the duration again.
pub(crate) fn up_to_double(duration: Duration) -> Duration {
    duration + duration / 1000 * random_below(1000)
}

fn random_below(below: u64) -> u32 {
    let random = RandomState::new().build_hasher().finish();
    u32::try_from(random % below).unwrap_or(0)
}
