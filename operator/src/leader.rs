//! One operator acts at a time: the holder of the Lease `yoke-operator`. Others stand by.
//!
//! ```text
//!           ┌─ not renewed for TERM, left, or nobody's ─▶ write ─▶ win() returns ─▶ hold(): written again each RENEW
//!  Lease ───┤                                                                       └─ another's ─▶ the process ends
//!           └─ another's ─▶ looked at again after LOOK
//! ```
//!
//! Guarantees: the API server compares a write of the Lease with what was read, so of several that want it one gets it. What
//! waits for [`Held::wait`] does not begin when the Lease was last renewed longer ago than others wait for.
//!
//! Caveats: what has begun goes on, until the process hears that another has the Lease. If the Lease is deleted, whoever sees
//! that first has it, and the former holder hears of it when it renews.

mod plan;

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::controller::Action;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use yoke_runtime::clock::since_boot;
use yoke_runtime::{Check, Drain};

use self::plan::{Seen, Turn, plan_lease, plan_release, plan_turn};

/// The Lease, in the operator's own namespace.
pub const LEASE: &str = "yoke-operator";
/// Which of the operator's parts writes it.
const MANAGER: &str = "yoke-operator/leader";
/// A request to the host API that takes longer is given up.
const REQUEST_LIMIT: Duration = Duration::from_secs(3);
/// A Lease that others write meanwhile is read so often at once.
const TRIES: usize = 3;

/// The times of an election.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a Lease is its holder's that is not renewed; whole seconds.
    pub term: Duration,
    /// How often its holder renews it.
    pub renew: Duration,
    /// How often another looks at it, and the holder tries again to renew it.
    pub look: Duration,
}

impl Default for Terms {
    /// A renewal may fail twice, each at its limit.
    fn default() -> Self {
        Self {
            term: Duration::from_secs(10),
            renew: Duration::from_secs(2),
            look: Duration::from_secs(1),
        }
    }
}

/// Another holds the Lease.
#[derive(Debug, thiserror::Error)]
#[error("{holder} has taken over the Lease {LEASE}: one operator acts at a time")]
pub struct Lost {
    /// Which one.
    pub holder: String,
}

/// The Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("asking for the Lease {LEASE}")]
    Request(#[source] kube::Error),
    #[error("asking for the Lease {LEASE}: the host API has not answered within {REQUEST_LIMIT:?}")]
    Limit,
    #[error("writing the Lease {LEASE}: others wrote it each time that it had been read")]
    Contended,
}

/// One who wants to act.
#[derive(Clone, Debug)]
pub struct Election {
    leases: Api<Lease>,
    identity: String,
    terms: Terms,
    /// As it was written last, while nobody else has written it.
    written: Option<Lease>,
    seen: Seen,
    /// When the last write began that succeeded, since the machine started.
    renewed: watch::Sender<Option<Duration>>,
    /// Whether the last try failed, and where that is told.
    fails: bool,
    check: Check,
}

/// Whether the Lease is held.
#[derive(Clone, Debug)]
pub struct Held {
    renewed: watch::Receiver<Option<Duration>>,
    term: Duration,
}

impl Held {
    /// Waits while the Lease may be another's: until it is renewed, or the process ends.
    pub async fn wait(&self) {
        let is_held = |renewed: &Option<Duration>| self.is_within_term(*renewed);
        // An error means that the process ends.
        let _ = self.renewed.clone().wait_for(is_held).await;
    }

    /// A reconciliation that begins while the Lease is held. Where the process is to end before, and another one may act, none does.
    pub fn carry_out<F, E>(
        &self,
        drain: &Drain,
        reconciliation: F,
    ) -> impl Future<Output = Result<Action, E>> + use<F, E>
    where
        F: Future<Output = Result<Action, E>>,
    {
        let (held, drain) = (self.clone(), drain.clone());
        async move {
            let is_held = drain.until_started(held.wait()).await;
            if is_held.is_none() && !held.is_within_term(*held.renewed.borrow()) {
                return Ok(Action::await_change());
            }
            reconciliation.await
        }
    }

    fn is_within_term(&self, renewed: Option<Duration>) -> bool {
        renewed.is_some_and(|renewed| since_boot().saturating_sub(renewed) < self.term)
    }
}

impl Election {
    /// Somebody of this name, of which there is one: the same after a new start, so that it goes on at once. `check` tells
    /// whether the Lease is answered.
    pub fn new(client: Client, namespace: &str, identity: String, terms: Terms, check: Check) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            identity,
            terms,
            written: None,
            seen: Seen::default(),
            renewed: watch::Sender::new(None),
            fails: false,
            check,
        }
    }

    /// Tells whether the Lease is held.
    pub fn held(&self) -> Held {
        Held {
            renewed: self.renewed.subscribe(),
            term: self.terms.term,
        }
    }

    /// Waits until the Lease is one's own.
    pub async fn win(&mut self) {
        let mut told = None;
        loop {
            match self.take_turn().await {
                Some(Turn::Own) => {
                    tracing::info!(identity = self.identity, "this operator acts");
                    return;
                }
                Some(Turn::Of(holder)) if told.as_ref() != Some(&holder) => {
                    tracing::info!(
                        identity = self.identity,
                        holder,
                        "another operator acts, and this one stands by"
                    );
                    told = Some(holder);
                }
                _ => {}
            }
            sleep(self.terms.look).await;
        }
    }

    /// Renews it until another has it.
    pub async fn hold(&mut self) -> Lost {
        loop {
            sleep(if self.fails { self.terms.look } else { self.terms.renew }).await;
            if let Some(Turn::Of(holder)) = self.take_turn().await {
                return Lost { holder };
            }
        }
    }

    /// Leaves it to others, if it is one's own.
    pub async fn leave(&self) {
        let left = timeout(REQUEST_LIMIT, self.try_to_leave()).await;
        if let Err(error) = left.unwrap_or(Err(LeaseError::Limit)) {
            tracing::warn!(error = %crate::chain(&error), "the Lease is not left to others, who wait for its end");
        }
    }

    async fn try_to_leave(&self) -> Result<(), LeaseError> {
        // A renewal may have been on its way.
        for _ in 0..TRIES {
            let found = self.leases.get_opt(LEASE).await.map_err(LeaseError::Request)?;
            let Some(left) = found.and_then(|found| plan_release(found, &self.identity)) else {
                return Ok(());
            };
            let left = self.leases.replace(LEASE, &params(), &left).await;
            match left.map_err(LeaseError::Request) {
                Err(error) if error.is_conflict() => {}
                left => return left.map(drop),
            }
        }
        Err(LeaseError::Contended)
    }

    /// Takes or renews the Lease if the turn is one's own. Whose it is, if that is known.
    async fn take_turn(&mut self) -> Option<Turn> {
        match self.try_turn().await {
            Ok(turn) => {
                self.check.set_ready();
                self.fails = false;
                Some(turn)
            }
            Err(error) => {
                self.seen.miss();
                let error = crate::chain(&error);
                // Once, and not each second.
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(
                        error,
                        "the Lease by which one operator acts is tried again until it is answered"
                    );
                }
                self.check.set_not_ready(error);
                None
            }
        }
    }

    async fn try_turn(&mut self) -> Result<Turn, LeaseError> {
        for _ in 0..TRIES {
            let (began, by_clock) = (Instant::now(), since_boot());
            let found = match self.written.take() {
                Some(written) => Some(written),
                None => limit(self.leases.get_opt(LEASE)).await?,
            };
            let unchanged = self.seen.look(found.as_ref(), began.into_std());
            match plan_turn(found.as_ref(), &self.identity, unchanged) {
                Turn::Own if self.write(found).await? => {
                    self.renewed.send_replace(Some(by_clock));
                    return Ok(Turn::Own);
                }
                Turn::Own => {}
                others => return Ok(others),
            }
        }
        Err(LeaseError::Contended)
    }

    /// Writes the Lease as one's own; `false` if it is not as it was found any more.
    async fn write(&mut self, found: Option<Lease>) -> Result<bool, LeaseError> {
        let is_new = found.is_none();
        let lease = plan_lease(found, LEASE, &self.identity, self.terms.term, Timestamp::now());
        // Not applied by force, as all else is: what others wrote since it was read is to be in the way.
        let written = match is_new {
            true => limit(self.leases.create(&params(), &lease)).await,
            false => limit(self.leases.replace(LEASE, &params(), &lease)).await,
        };
        match written {
            Ok(written) => self.written = Some(written),
            Err(error) if error.is_conflict() || (!is_new && error.is_absence()) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }
}

impl LeaseError {
    fn is_conflict(&self) -> bool {
        self.code() == Some(409)
    }

    fn is_absence(&self) -> bool {
        self.code() == Some(404)
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Request(kube::Error::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

fn params() -> PostParams {
    PostParams {
        field_manager: Some(MANAGER.into()),
        ..PostParams::default()
    }
}

async fn limit<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, LeaseError> {
    timeout(REQUEST_LIMIT, request)
        .await
        .map_err(|_| LeaseError::Limit)?
        .map_err(LeaseError::Request)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use yoke_runtime::DrainTrigger;

    use super::*;

    #[tokio::test]
    async fn who_is_to_end_begins_what_the_lease_is_held_for() {
        let now = since_boot();
        let term = Duration::from_secs(60);
        let (done, idle) = (Action::requeue(term), Action::await_change());
        for (rule, renewed, expected) in [
            ("it acts", Some(now), done.clone()),
            ("the Lease may be another's", now.checked_sub(term), idle.clone()),
            ("it was never its own", None, idle),
        ] {
            let held = Held {
                renewed: watch::Sender::new(renewed).subscribe(),
                term,
            };
            let (trigger, drain) = DrainTrigger::new();
            trigger.start();
            let carried_out = held.carry_out(&drain, async { Ok::<_, Infallible>(done.clone()) });
            assert_eq!(carried_out.await, Ok(expected), "{rule}");
        }
    }
}
