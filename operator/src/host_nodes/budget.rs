//! How many nodes may be handled within a minute. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// Decision about a node that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossBudget {
    /// All its control planes were given up before. They are still there because their Clusters are
    /// paused or wait for admission.
    Recorded,
    /// The node may be given up, and this is counted.
    Available,
    /// The limit per minute is reached.
    Exhausted,
}

/// Returns whether there is room for one more event within a minute, and counts it if so.
pub fn take_from_budget(past: &mut VecDeque<Instant>, now: Instant, most: usize) -> bool {
    while past.front().is_some_and(|time| now.duration_since(*time) >= MINUTE) {
        past.pop_front();
    }
    let is_available = past.len() < most;
    if is_available {
        past.push_back(now);
    }
    is_available
}
