//! Keeps watch over the addresses of `default/kubernetes` in each cluster that is ready, by which its workloads find their API.
//!
//! ```text
//!  look at the API, all is well ─keep─▶ Keeper: one watch a cluster ─something else is there─▶ the Cluster is called for
//! ```
//!
//! A watch ends with the first sight of something else, or with its connection; the next look that finds all well begins
//! another. So nothing needs to be ended when a cluster sleeps or goes. A tenant who changes the addresses again and again
//! waits longer each time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc as calls;
use futures::stream::FuturesUnordered;
use futures::{SinkExt as _, StreamExt as _};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use yoke_api::{Cluster, ClusterId};
use yoke_runtime::Drain;

use super::identity::Identity;
use crate::context::Context;
use crate::tenant_api::{BaseObjects, TenantApi, TenantApiError};

/// Clusters that wait to be watched. One that finds no place is told of again by its next look.
const CAPACITY: usize = 256;
/// How long to wait before what is wrong is mended, at first.
const PAUSE: Duration = Duration::from_secs(1);
/// Something else that is seen earlier than this comes again and again.
const CALM: Duration = Duration::from_secs(60);
/// Doublings of the pause at most: a minute.
const MAX_STRIKES: u32 = 6;
/// How long it is known of a cluster that is not watched how often it was changed. A cluster that is there is looked at sooner.
const MEMORY: Duration = Duration::from_secs(3600);

/// Tells the [`Keeper`] of clusters that are as they should be.
#[derive(Clone, Debug)]
pub struct Guard {
    wards: mpsc::Sender<Ward>,
}

/// Owns the watches.
#[derive(Debug)]
pub struct Keeper {
    wards: mpsc::Receiver<Ward>,
}

/// How often in a row the addresses of clusters that are not watched now were changed.
#[derive(Debug, Default)]
struct Strikes(HashMap<ClusterId, (u32, Instant)>);

#[derive(Debug)]
struct Ward {
    id: ClusterId,
    cluster: ObjectRef<Cluster>,
    api: TenantApi,
}

impl Guard {
    /// A guard, and the keeper that it tells.
    pub fn new() -> (Self, Keeper) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self { wards: sender }, Keeper { wards: receiver })
    }

    /// Has a cluster watched that was as it should be a moment ago, unless it already is, or there is nothing to watch.
    pub(super) fn keep(&self, identity: &Identity, api: &TenantApi, base: &BaseObjects) {
        if base.endpoints.is_none() {
            return;
        }
        let ward = Ward {
            id: identity.id.clone(),
            cluster: ObjectRef::new(&identity.cluster).within(&identity.tenant),
            api: api.clone(),
        };
        if self.wards.try_send(ward).is_err() {
            tracing::debug!(cluster = %identity.id, "addresses are watched from the next look on");
        }
    }
}

impl Keeper {
    /// Watches, and calls for Clusters of which something is not as it should be, until the drain starts.
    pub async fn run(mut self, context: Arc<Context>, mut calls: calls::Sender<ObjectRef<Cluster>>, drain: Drain) {
        let mut watched = HashSet::new();
        let mut strikes = Strikes::default();
        let mut watches = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(ward) = self.wards.recv() => {
                    if watched.insert(ward.id.clone()) {
                        let before = strikes.take(&ward.id);
                        watches.push(Box::pin(watch(&context, ward, before)));
                    }
                }
                Some((ward, count, ended)) = watches.next() => {
                    watched.remove(&ward.id);
                    strikes.put(ward.id.clone(), count, Instant::now());
                    match ended {
                        Ok(()) => {
                            tracing::info!(cluster = %ward.id, "addresses of default/kubernetes were changed");
                            context.note_if_awake(&ward.id, |awake| awake.base = None);
                            // An error means that the controller has ended, with the process soon to follow.
                            let _ = calls.send(ward.cluster).await;
                        }
                        Err(error) => {
                            tracing::debug!(cluster = %ward.id, error = %crate::chain(&error), "addresses are not watched");
                        }
                    }
                }
            }
        }
    }
}

impl Strikes {
    fn take(&mut self, id: &ClusterId) -> u32 {
        self.0.remove(id).map_or(0, |(count, _)| count)
    }

    fn put(&mut self, id: ClusterId, count: u32, now: Instant) {
        // Those of deleted clusters would stay for ever.
        self.0
            .retain(|_, (_, since)| now.saturating_duration_since(*since) < MEMORY);
        if count > 0 {
            self.0.insert(id, (count, now));
        }
    }
}

/// Ends some time after something else was seen, or when that cannot be seen any more, with how often it was so in a row.
async fn watch(context: &Context, ward: Ward, before: u32) -> (Ward, u32, Result<(), TenantApiError>) {
    let began = Instant::now();
    if let Err(error) = ward.api.watch_base(&context.base).await {
        let held = began.elapsed() >= CALM;
        return (ward, if held { 0 } else { before }, Err(error));
    }
    let (strikes, pause) = plan_pause(before, began.elapsed());
    tokio::time::sleep(pause).await;
    (ward, strikes, Ok(()))
}

/// How often in a row the addresses were soon changed again, and how long to leave them so.
fn plan_pause(before: u32, held: Duration) -> (u32, Duration) {
    if held >= CALM {
        return (0, PAUSE);
    }
    let strikes = before.saturating_add(1).min(MAX_STRIKES);
    (strikes, PAUSE * 2_u32.pow(before.min(MAX_STRIKES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strikes_are_kept_for_a_time() {
        let (one, other) = (ClusterId::random(), ClusterId::random());
        let (now, mut strikes) = (Instant::now(), Strikes::default());
        strikes.put(one.clone(), 3, now);
        strikes.put(other.clone(), 0, now);
        assert_eq!(strikes.0.len(), 1, "none is nothing to keep");
        assert_eq!(strikes.take(&one), 3);
        assert_eq!(strikes.take(&one), 0);
        strikes.put(one.clone(), 3, now);
        strikes.put(other, 1, now + MEMORY);
        assert_eq!(strikes.take(&one), 0, "of a cluster that is gone");
    }

    #[test]
    fn changes_in_a_row_are_left_longer_each_time() {
        let second = Duration::from_secs(1);
        for (rule, before, held, expected) in [
            ("the first", 0, second * 3600, (0, second)),
            ("one soon after", 0, second, (1, second)),
            ("the next", 1, second, (2, second * 2)),
            ("many", 6, second, (6, second * 64)),
            ("after a calm", 6, second * 60, (0, second)),
        ] {
            assert_eq!(plan_pause(before, held), expected, "{rule}");
        }
    }
}
