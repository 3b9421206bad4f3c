//! The task that owns the routing table: applies observations of the host and publishes snapshots.
//!
//! ```text
//!  watch (or a test) ─▶ Event ─▶ Table ─▶ translate ─▶ Snapshot ─▶ streams, gate
//!                       Input ─▶ Tracker (base) ─────────┘
//! ```
//!
//! Nothing is published before every kind of object was listed once: an Envoy that reconnects would
//! otherwise be sent removals of names that were not read yet. Until then streams wait and the gate
//! refuses.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use yoke_runtime::{Check, Drain};

use crate::base::{Input, Notice, Tracker};
use crate::metrics::Metrics;
use crate::model::Table;
use crate::model::observation::Event;
use crate::model::report::Report;
use crate::snapshot::resource::resource_name;
use crate::snapshot::{Entry, Snapshot, Snapshots};
use crate::traffic::SeriesRegistry;
use crate::translate::{EnvoyLimits, translate, translate_certificate};
use crate::validate::Rules;

/// Maximum number of observations that are applied before a snapshot is published.
const BATCH: usize = 1024;

/// The routing task failed.
#[derive(Debug, thiserror::Error)]
pub enum RoutingError {
    /// All watches have ended.
    #[error("the watches of the host API have ended")]
    SourceGone,
}

/// The task that owns the routing table.
#[derive(Debug)]
pub struct Routing {
    table: Table,
    base: Tracker,
    limits: EnvoyLimits,
    series: SeriesRegistry,
    snapshot: Snapshot,
    publish: watch::Sender<Option<Arc<Snapshot>>>,
    metrics: Metrics,
    synced: Check,
}

impl Routing {
    /// Creates the task, and the receiver of its snapshots. `base` tracks the base configuration,
    /// `series` assigns traffic series. `synced` becomes ready with the first snapshot.
    pub fn new(
        rules: Rules,
        base: Tracker,
        limits: EnvoyLimits,
        series: SeriesRegistry,
        metrics: Metrics,
        synced: Check,
    ) -> (Self, Snapshots) {
        let (publish, snapshots) = watch::channel(None);
        let routing = Self {
            table: Table::new(rules),
            base,
            limits,
            series,
            snapshot: Snapshot::default(),
            publish,
            metrics,
            synced,
        };
        (routing, snapshots)
    }

    /// Runs until the drain starts. When a channel is full the watches wait. Only notices can be
    /// lost, and those are logged too.
    pub async fn run(
        mut self,
        mut events: mpsc::Receiver<Event>,
        mut inputs: mpsc::Receiver<Input>,
        notices: mpsc::Sender<Notice>,
        drain: Drain,
    ) -> Result<(), RoutingError> {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                biased;
                () = drain.started() => return Ok(()),
                input = inputs.recv() => {
                    let notice = self.base.apply(input.ok_or(RoutingError::SourceGone)?);
                    self.metrics.set_base_refused(self.base.is_refused());
                    if let Some(notice) = notice {
                        self.metrics.count_base_change(!notice.refused);
                        log_notice(&notice);
                        let _ = notices.try_send(notice);
                    }
                }
                count = events.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return Err(RoutingError::SourceGone);
                    }
                    for event in batch.drain(..) {
                        self.table.apply(event).iter().for_each(log_report);
                    }
                }
            }
            if self.table.is_synced() && self.base.is_listed() {
                self.publish();
            }
        }
    }

    fn publish(&mut self) {
        let changes = self.table.take_changes();
        let first = self.publish.borrow().is_none();
        let certificate = self.table.certificate();
        let renewed = self.snapshot.set_certificate(certificate.map(translate_certificate));
        let rebased = self.snapshot.set_base(self.base.served().cloned());
        if changes.is_empty() && !renewed && !rebased && !first {
            self.metrics.set_objects(&self.table);
            return;
        }
        for (sni, target) in &changes {
            let entry = target.as_ref().map(|target| Entry {
                traffic: self.series.series_of(&target.route.id),
                ..translate(sni, target, self.limits)
            });
            self.snapshot.set(&resource_name(sni), entry);
        }
        self.publish.send_replace(Some(Arc::new(self.snapshot.clone())));
        self.metrics.set_objects(&self.table);
        if renewed {
            tracing::info!(
                served = self.table.certificate().is_some(),
                "ingress certificate loaded"
            );
        }
        if first {
            if self.table.certificate().is_none() {
                tracing::warn!("no ingress certificate: pods cannot reach their API servers through the ingress");
            }
            tracing::info!(names = self.table.name_count(), "first snapshot published");
            self.synced.set_ready();
        }
    }
}

fn log_notice(notice: &Notice) {
    let note = &notice.note;
    match notice.refused {
        true => tracing::warn!(note, "the base configuration is refused"),
        false => tracing::info!(note, "the base configuration is served"),
    }
}

fn log_report(report: &Report) {
    let (namespace, name) = (&report.object.namespace, &report.object.name);
    tracing::warn!(namespace, name, problem = ?report.problem, "host object is invalid and ignored");
}
