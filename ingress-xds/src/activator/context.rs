//! Dependencies and limits of the activator, and the wakes that it requests.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rustls::pki_types::CertificateDer;
use yoke_api::ingress::Asleep;
use yoke_runtime::Drain;
use yoke_runtime::tls::TlsConfigs;

use super::plan::{self, Answer};
use super::wake::{EndedSleep, Outcome, Waker};
use crate::metrics::Metrics;
use crate::snapshot::{Entry, Snapshots};

/// Limits for clients of sleeping clusters.
#[derive(Clone, Copy, Debug)]
pub struct ActivatorLimits {
    /// Concurrent connections in total. Unauthenticated clients make room for others.
    pub connections: usize,
    /// Concurrent connections to one cluster.
    pub connections_each: usize,
    /// Maximum time until the first request of a connection has arrived. A source opens 50
    /// connections in a second, which is far below the limit of one cluster.
    pub first: Duration,
}

/// Dependencies on the rest of the process.
#[derive(Clone, Debug)]
pub struct ActivatorContext {
    /// The newest snapshot, which says which clusters sleep.
    pub snapshots: Snapshots,
    /// TLS configuration of the listener.
    pub tls: TlsConfigs,
    /// Limits for clients.
    pub limits: ActivatorLimits,
    /// Sends wake requests to the operator.
    pub waker: Waker,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Ends the activator when the process shuts down.
    pub drain: Drain,
}

impl Default for ActivatorLimits {
    fn default() -> Self {
        Self {
            connections: 2048,
            connections_each: 256,
            first: Duration::from_secs(2),
        }
    }
}

impl ActivatorContext {
    pub(super) fn wake(&self, entry: &Entry) -> Answer {
        let asleep = entry.route.asleep.as_ref().map(|asleep| &asleep.state);
        let Some(Asleep::OnConnect { since, uid, .. }) = asleep else {
            return Answer::Reconnect;
        };
        // The gate has limited the source already, and Envoy does not report the source's address
        // here.
        match self.waker.wake(&entry.route, EndedSleep { since, uid }, None) {
            Outcome::Queued | Outcome::AlreadyNotified => Answer::Waking(0),
            Outcome::SourceRate | Outcome::TenantRate | Outcome::Full => Answer::Busy,
        }
    }

    /// Wakes a cluster for a caller that may wake it but gets no slot to wait in. The cluster is
    /// awake when the caller reconnects.
    pub(super) fn wake_without_slot(&self, entry: &Entry, certificates: &[CertificateDer<'_>]) {
        if plan::may_wake(&entry.route, certificates, Timestamp::now()) {
            self.wake(entry);
        }
    }
}
