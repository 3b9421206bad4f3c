//! Leader election: the operator that holds the Lease `yoke-operator` acts, and the others are
//! standby.
//!
//! ```text
//!           ┌─ not renewed for TERM, released, or without a holder ─▶ write ─▶ win() returns ─▶ hold(): renewed every RENEW
//!  Lease ───┤                                                                                  └─ held by another ─▶ exit
//!           └─ held by another ─▶ read again after POLL
//! ```
//!
//! Guarantees: the API server compares a write of the Lease with the version that was read, so only
//! one of several candidates gets it. Work that waits for [`Leadership::wait`] does not start if the last
//! renewal is older than the term after which others take the Lease.
//!
//! Caveats: work in progress continues until the process notices that another operator holds the
//! Lease. If the Lease is deleted, the first operator that notices it gets the Lease. The previous
//! holder notices that at its next renewal.

mod metrics;
mod plan;

pub use crate::leader_election::metrics::LeaderMetrics;

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

use crate::leader_election::plan::{Holder, LeaseObservation, plan_holder, plan_lease, plan_release};

/// Name of the Lease, in the operator's own namespace.
pub const LEASE: &str = "yoke-operator";
/// Field manager of the Lease.
const MANAGER: &str = "yoke-operator/leader";
/// Timeout of a request to the host API.
const REQUEST_LIMIT: Duration = Duration::from_secs(3);
/// Attempts in a row if others write the Lease at the same time.
const TRIES: usize = 3;

/// Intervals of an election.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time after the last renewal for which the Lease belongs to its holder; whole seconds.
    pub term: Duration,
    /// Interval of renewals.
    pub renew: Duration,
    /// Interval of reads by other candidates, and of retries after a failed renewal.
    pub poll: Duration,
}

impl Default for Terms {
    /// Two renewals may fail, each after its full timeout.
    fn default() -> Self {
        Self {
            term: Duration::from_secs(10),
            renew: Duration::from_secs(2),
            poll: Duration::from_secs(1),
        }
    }
}

/// Another operator holds the Lease.
#[derive(Debug, thiserror::Error)]
#[error("{holder} holds the Lease {LEASE} now: only one operator may act at a time")]
pub struct LeaseLost {
    /// Identity of the new holder.
    pub holder: String,
}

/// The Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
enum LeaseError {
    #[error("requesting the Lease {LEASE}")]
    Request(#[source] kube::Error),
    #[error("requesting the Lease {LEASE}: the host API did not answer within {REQUEST_LIMIT:?}")]
    Limit,
    #[error("writing the Lease {LEASE}: other clients changed it on every attempt")]
    Contended,
}

/// A candidate for the Lease.
#[derive(Clone, Debug)]
pub struct Election {
    leases: Api<Lease>,
    identity: String,
    terms: Terms,
    /// The Lease as this candidate wrote it last, as long as no other has written it.
    written: Option<Lease>,
    observation: LeaseObservation,
    /// When the last successful write started, as the time since the node booted.
    renewed: watch::Sender<Option<Duration>>,
    /// Whether the last attempt failed. Reported through `check`.
    fails: bool,
    check: Check,
}

/// Tells whether this operator holds the Lease.
#[derive(Clone, Debug)]
pub struct Leadership {
    renewed: watch::Receiver<Option<Duration>>,
    term: Duration,
}

impl Leadership {
    /// Waits while another operator may hold the Lease: until the next renewal, or the end of the
    /// process.
    pub async fn wait(&self) {
        let is_leader = |renewed: &Option<Duration>| self.is_within_term(*renewed);
        // An error means that the process ends.
        let _ = self.renewed.clone().wait_for(is_leader).await;
    }

    /// Runs a reconciliation while the Lease is held. If the process ends first and another
    /// operator may act, nothing runs.
    pub fn run_while_held<F, E>(
        &self,
        drain: &Drain,
        reconciliation: F,
    ) -> impl Future<Output = Result<Action, E>> + use<F, E>
    where
        F: Future<Output = Result<Action, E>>,
    {
        let (leadership, drain) = (self.clone(), drain.clone());
        async move {
            let is_leader = drain.until_started(leadership.wait()).await;
            if is_leader.is_none() && !leadership.is_within_term(*leadership.renewed.borrow()) {
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
    /// Creates a candidate. Its identity is unique, and the same after a restart, so that a
    /// restarted holder continues at once. `check` reports whether requests about the Lease
    /// succeed.
    pub fn new(client: Client, namespace: &str, identity: String, terms: Terms, check: Check) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            identity,
            terms,
            written: None,
            observation: LeaseObservation::default(),
            renewed: watch::Sender::new(None),
            fails: false,
            check,
        }
    }

    /// Returns a handle that tells whether the Lease is held.
    pub fn leadership(&self) -> Leadership {
        Leadership {
            renewed: self.renewed.subscribe(),
            term: self.terms.term,
        }
    }

    /// Waits until this candidate holds the Lease.
    pub async fn win(&mut self) {
        let mut last_holder = None;
        loop {
            match self.acquire_or_renew().await {
                Some(Holder::This) => {
                    tracing::info!(identity = self.identity, "this operator is the leader");
                    return;
                }
                Some(Holder::Other(holder)) if last_holder.as_ref() != Some(&holder) => {
                    tracing::info!(
                        identity = self.identity,
                        holder,
                        "another operator is the leader; this one is standby"
                    );
                    last_holder = Some(holder);
                }
                _ => {}
            }
            sleep(self.terms.poll).await;
        }
    }

    /// Renews the Lease until another operator holds it.
    pub async fn hold(&mut self) -> LeaseLost {
        loop {
            sleep(if self.fails { self.terms.poll } else { self.terms.renew }).await;
            if let Some(Holder::Other(holder)) = self.acquire_or_renew().await {
                return LeaseLost { holder };
            }
        }
    }

    /// Releases the Lease, if this candidate holds it.
    pub async fn release(&self) {
        let released = timeout(REQUEST_LIMIT, self.try_release()).await;
        if let Err(error) = released.unwrap_or(Err(LeaseError::Limit)) {
            tracing::warn!(error = %crate::chain(&error), "releasing the Lease failed; the next leader waits until it expires");
        }
    }

    async fn try_release(&self) -> Result<(), LeaseError> {
        // A renewal may still be in flight.
        for _ in 0..TRIES {
            let found = self.leases.get_opt(LEASE).await.map_err(LeaseError::Request)?;
            let Some(released) = found.and_then(|found| plan_release(found, &self.identity)) else {
                return Ok(());
            };
            let result = self.leases.replace(LEASE, &params(), &released).await;
            match result.map_err(LeaseError::Request) {
                Err(error) if error.is_conflict() => {}
                result => return result.map(drop),
            }
        }
        Err(LeaseError::Contended)
    }

    /// Takes or renews the Lease if possible. Returns its holder; `None` if that is unknown.
    async fn acquire_or_renew(&mut self) -> Option<Holder> {
        match self.try_acquire().await {
            Ok(holder) => {
                self.check.set_ready();
                self.fails = false;
                Some(holder)
            }
            Err(error) => {
                self.observation.record_failed_read();
                let error = crate::chain(&error);
                // Logged once, not on each attempt.
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(
                        error,
                        "requesting the Lease failed; retrying until the host API answers"
                    );
                }
                self.check.set_not_ready(error);
                None
            }
        }
    }

    async fn try_acquire(&mut self) -> Result<Holder, LeaseError> {
        for _ in 0..TRIES {
            let (start, uptime) = (Instant::now(), since_boot());
            let found = match self.written.take() {
                Some(written) => Some(written),
                None => limit(self.leases.get_opt(LEASE)).await?,
            };
            let unchanged = self.observation.observe(found.as_ref(), start.into_std());
            match plan_holder(found.as_ref(), &self.identity, unchanged) {
                Holder::This if self.write(found).await? => {
                    self.renewed.send_replace(Some(uptime));
                    return Ok(Holder::This);
                }
                Holder::This => {}
                other => return Ok(other),
            }
        }
        Err(LeaseError::Contended)
    }

    /// Writes the Lease with this candidate as the holder. Returns `false` if the Lease has changed
    /// since it was read.
    async fn write(&mut self, found: Option<Lease>) -> Result<bool, LeaseError> {
        let is_new = found.is_none();
        let lease = plan_lease(found, LEASE, &self.identity, self.terms.term, Timestamp::now());
        // Not a forced server-side apply like other writes: a concurrent write must make this one
        // fail.
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
    async fn a_terminating_leader_reconciles_only_within_its_term() {
        let now = since_boot();
        let term = Duration::from_secs(60);
        let (done, idle) = (Action::requeue(term), Action::await_change());
        for (rule, renewed, expected) in [
            ("within the term", Some(now), done.clone()),
            ("after the term", now.checked_sub(term), idle.clone()),
            ("never held", None, idle),
        ] {
            let leadership = Leadership {
                renewed: watch::Sender::new(renewed).subscribe(),
                term,
            };
            let (trigger, drain) = DrainTrigger::new();
            trigger.start();
            let result = leadership.run_while_held(&drain, async { Ok::<_, Infallible>(done.clone()) });
            assert_eq!(result.await, Ok(expected), "{rule}");
        }
    }
}
