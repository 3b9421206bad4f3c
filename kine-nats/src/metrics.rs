//! What is counted: in etcd's names where it means the same here, so that etcd's dashboards and alerts work, and in our own.
//! `docs/book/src/admin/monitoring.md` lists both.

mod calls;
mod process;
#[cfg(test)]
mod tests;

use crate::grpc::VERSION;
use crate::store::Store;
pub(crate) use calls::{BYTES, Call, Calls};
use process::Process;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;

type Label = [(&'static str, String); 1];

/// Counters that the tasks hold.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) batches: Counter,
    pub(crate) requests: Counter,
    pub(crate) recoveries: Counter,
    pub(crate) snapshots: Counter,
    pub(crate) failed_snapshots: Counter,
    pub(crate) foreign: Counter,
    pub(crate) forwarded: Counter,
    pub(crate) leader_changes: Counter,
    pub(crate) slow_batches: Counter,
    pub(crate) slow_reads: Counter,
    pub(crate) failed_reads: Counter,
    pub(crate) expired: Counter,
    pub(crate) events: Counter,
    failed: Counter,
    commit: Histogram,
    fsync: Histogram,
    pending: Gauge,
    read: ReadGauges,
}

/// What is looked up when it is asked for.
#[derive(Debug, Clone)]
struct ReadGauges {
    revision: Gauge,
    compacted: Gauge,
    bytes: Gauge,
    quota: Gauge,
    entries: Gauge,
    keys: Gauge,
    history: Gauge,
    watches: Gauge,
    watch_streams: Gauge,
    slow_watches: Gauge,
    has_leader: Gauge,
    is_leader: Gauge,
    stored: Gauge,
    applied: Gauge,
    full: Gauge,
    member: Family<Label, Gauge>,
}

/// Makes metrics, and registers them at once.
#[derive(Debug, Default)]
struct Maker(Registry);

impl Maker {
    fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.0.register(name, help, counter.clone());
        counter
    }

    fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.0.register(name, help, gauge.clone());
        gauge
    }

    /// One whose buckets double `count` times, from `first` seconds on.
    fn histogram(&mut self, name: &str, help: &str, first: f64, count: u16) -> Histogram {
        let histogram = Histogram::new(exponential_buckets(first, 2.0, count));
        self.0.register(name, help, histogram.clone());
        histogram
    }

    /// What is always 1 and says something by its label.
    fn label(&mut self, name: &str, help: &str) -> Family<Label, Gauge> {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }
}

/// A write on its way to the writer. It has failed unless it was answered when this is dropped.
#[derive(Debug)]
pub(crate) struct Proposal<'a> {
    metrics: &'a Metrics,
    answered: bool,
}

impl Proposal<'_> {
    /// Notes that it was done, or refused for what it asks.
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Proposal<'_> {
    fn drop(&mut self) {
        self.metrics.pending.dec();
        if !self.answered {
            self.metrics.failed.inc();
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut make = Maker::default();
        let calls = Arc::new(Calls::default());
        make.0.register_collector(Box::new(Arc::clone(&calls)));
        make.0.register_collector(Box::new(Process::new()));
        let version = make.label("etcd_server_version", "The version of etcd that it answers like");
        version.get_or_create(&[("server_version", VERSION.to_owned())]).set(1);
        let ack = "From sending a record to the log's ack, for which nats-server writes and syncs it";
        let fsync = make.histogram("etcd_disk_wal_fsync_duration_seconds", ack, 0.001, 14);
        let commit = ("etcd_disk_backend_commit_duration_seconds", ack);
        make.0.register(commit.0, commit.1, fsync.clone());
        Self {
            calls,
            batches: make.counter("yoke_kine_batches", "Records stored"),
            requests: make.counter("yoke_kine_requests", "Requests that the writer did"),
            recoveries: make.counter("yoke_kine_recoveries", "Times a record was in doubt"),
            snapshots: make.counter("yoke_kine_snapshots", "Snapshots stored"),
            failed_snapshots: make.counter("yoke_kine_snapshot_failures", "Snapshots that could not be stored"),
            foreign: make.counter(
                "yoke_kine_foreign_messages",
                "Messages in the log that are not of this store, and copies",
            ),
            forwarded: make.counter("yoke_kine_forwarded", "Times another process was asked to do a request"),
            leader_changes: make.counter("etcd_server_leader_changes_seen", "Writers that began"),
            slow_batches: make.counter(
                "etcd_server_slow_apply",
                "Times the writer took longer than 0.1 s to evaluate what waited",
            ),
            slow_reads: make.counter(
                "etcd_server_slow_read_indexes",
                "Reads that could not be shown to be the newest in time",
            ),
            failed_reads: make.counter(
                "etcd_server_read_indexes_failed",
                "Reads that could not be shown to be the newest because the writer went",
            ),
            expired: make.counter(
                "etcd_debugging_server_lease_expired",
                "Leases that this process ended in time",
            ),
            events: make.counter("etcd_debugging_mvcc_events", "Events sent to watches"),
            failed: make.counter(
                "etcd_server_proposals_failed",
                "Writes that got no answer from the writer, or whose client went",
            ),
            commit: make.histogram(
                "yoke_kine_commit_seconds",
                "From sending a record to its ack",
                0.000_1,
                16,
            ),
            fsync,
            pending: make.gauge("etcd_server_proposals_pending", "Writes that wait for their answer"),
            read: ReadGauges::new(&mut make),
            registry: Arc::new(make.0),
        }
    }

    /// Notes how long a record took to be stored.
    pub(crate) fn committed(&self, took: Duration) {
        self.commit.observe(took.as_secs_f64());
        self.fsync.observe(took.as_secs_f64());
    }

    /// Notes a write that begins.
    pub(crate) fn propose(&self) -> Proposal<'_> {
        self.pending.inc();
        Proposal {
            metrics: self,
            answered: false,
        }
    }

    /// All of it as text.
    pub(crate) fn text(&self, store: Option<&Store>) -> String {
        self.read.watch_streams.set(self.calls.watch_streams().cast_signed());
        if let Some(store) = store {
            self.read.look_up(store);
        }
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl ReadGauges {
    fn new(make: &mut Maker) -> Self {
        let gauges = Self {
            revision: make.gauge("yoke_kine_revision", "Newest stored revision"),
            compacted: make.gauge(
                "etcd_debugging_mvcc_compact_revision",
                "Lowest revision that can be read; -1 before the first compaction",
            ),
            bytes: make.gauge("etcd_mvcc_db_total_size_in_bytes", "What is kept, history included"),
            quota: make.gauge("etcd_server_quota_backend_bytes", "Most that may be kept"),
            entries: make.gauge("yoke_kine_keys", "Keys with an entry"),
            keys: make.gauge("etcd_debugging_mvcc_keys_total", "Keys that are there"),
            history: make.gauge("yoke_kine_history_changes", "Changes since the compact revision"),
            watches: make.gauge("yoke_kine_watches", "Open watches"),
            watch_streams: make.gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch streams"),
            slow_watches: make.gauge(
                "etcd_debugging_mvcc_slow_watcher_total",
                "Watches that have not taken what there is for them",
            ),
            has_leader: make.gauge(
                "etcd_server_has_leader",
                "Whether the lease of the writer, here or in another process, holds",
            ),
            is_leader: make.gauge("etcd_server_is_leader", "Whether this process is the writer"),
            stored: make.gauge(
                "etcd_server_proposals_committed_total",
                "Sequence of the newest record that is known to be in the log, signs of life included",
            ),
            applied: make.gauge(
                "etcd_server_proposals_applied_total",
                "Sequence of the newest record that this process shows",
            ),
            full: make.gauge(
                "yoke_kine_log_full",
                "Whether nothing is put until there is room in the log",
            ),
            member: make.label("etcd_server_id", "This process in the list of members"),
        };
        for (name, help, same) in [
            (
                "etcd_debugging_mvcc_current_revision",
                "Newest stored revision",
                &gauges.revision,
            ),
            (
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "What is kept, history included: nothing is ever free",
                &gauges.bytes,
            ),
            ("etcd_debugging_mvcc_watcher_total", "Open watches", &gauges.watches),
            (
                "yoke_kine_log_sequence",
                "Sequence of the newest record",
                &gauges.applied,
            ),
        ] {
            make.0.register(name, help, same.clone());
        }
        gauges
    }

    fn look_up(&self, store: &Store) {
        let (watches, slow) = store.hub.watches();
        let writes = store.is_writer();
        let led = if writes {
            store.lease_holds()
        } else {
            store.has_leader()
        };
        let sequence = store.sequence();
        let state = store.read();
        let visible = state.mvcc.visible();
        for (gauge, value) in [
            (&self.revision, visible),
            (&self.compacted, state.mvcc.compacted()),
            (&self.bytes, state.bytes().cast_signed()),
            (&self.quota, store.quota.bytes().cast_signed()),
            (&self.entries, state.mvcc.keys() as i64),
            (&self.keys, state.mvcc.count(&[0], &[0], visible)),
            (&self.history, state.mvcc.history_len() as i64),
            (&self.watches, watches as i64),
            (&self.slow_watches, slow as i64),
            (&self.has_leader, led.into()),
            (&self.is_leader, writes.into()),
            (&self.stored, sequence.max(store.announced()).cast_signed()),
            (&self.applied, sequence.cast_signed()),
            (&self.full, store.is_full().into()),
        ] {
            gauge.set(value);
        }
        // It is another one once the name of the store is known.
        self.member.clear();
        let member = format!("{:x}", store.member());
        self.member.get_or_create(&[("server_id", member)]).set(1);
    }
}
