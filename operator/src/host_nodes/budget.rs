//! How many nodes may be handled within a minute. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// Decision about a node that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// All its control planes were given up before. They are still there because their Clusters are
    /// paused or wait for admission.
    Given,
    /// The node may be given up, and this is counted.
    There,
    /// The limit per minute is reached.
    Taken,
}

/// Returns whether there is room for one more event within a minute, and counts it if so.
pub fn plan_room(past: &mut VecDeque<Instant>, now: Instant, most: usize) -> bool {
    while past.front().is_some_and(|time| now.duration_since(*time) >= MINUTE) {
        past.pop_front();
    }
    let has_room = past.len() < most;
    if has_room {
        past.push_back(now);
    }
    has_room
}
