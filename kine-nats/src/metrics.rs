//! Metrics. A metric with the same meaning as in etcd has etcd's name, so that its dashboards and
//! alerts work; the others have our own. `docs/book/src/admin/monitoring.md` lists both.

mod calls;
mod process;
#[cfg(test)]
mod tests;

use crate::limits::VERSION;
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

/// All metrics; clones share the same counters.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    registry: Arc<Registry>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) batches: Counter,
    pub(crate) requests: Counter,
    pub(crate) recoveries: Counter,
    pub(crate) snapshots: Counter,
    pub(crate) failed_snapshots: Counter,
    pub(crate) ignored_messages: Counter,
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

/// The state of a store at the time when the metrics are read.
#[derive(Debug)]
pub(crate) struct StoreValues {
    /// Newest stored revision.
    pub(crate) revision: i64,
    /// Compact revision.
    pub(crate) compacted: i64,
    /// Quota bytes of keys and history.
    pub(crate) bytes: u64,
    /// Quota in bytes.
    pub(crate) quota: u64,
    /// Number of keys in the index, including deleted ones with history.
    pub(crate) entries: usize,
    /// Number of live keys.
    pub(crate) keys: i64,
    /// Number of changes in the history.
    pub(crate) history: usize,
    pub(crate) watches: usize,
    /// Number of watches with something to read.
    pub(crate) slow_watches: usize,
    pub(crate) has_leader: bool,
    pub(crate) is_leader: bool,
    /// Sequence of the newest record that is known to be in the log.
    pub(crate) stored: u64,
    /// Sequence of the newest record that this process shows.
    pub(crate) applied: u64,
    /// Whether puts wait until there is room in the log.
    pub(crate) full: bool,
    /// Member id of this process.
    pub(crate) member: u64,
}

/// Gauges that are set when the metrics are read.
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

/// Creates metrics and registers each at once.
#[derive(Debug, Default)]
struct MetricBuilder(Registry);

impl MetricBuilder {
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

    /// Creates a histogram with `count` buckets that double, from `first` seconds on.
    fn histogram(&mut self, name: &str, help: &str, first: f64, count: u16) -> Histogram {
        let histogram = Histogram::new(exponential_buckets(first, 2.0, count));
        self.0.register(name, help, histogram.clone());
        histogram
    }

    /// Creates a metric that is always 1 and carries its information in a label.
    fn label(&mut self, name: &str, help: &str) -> Family<Label, Gauge> {
        let family = Family::default();
        self.0.register(name, help, family.clone());
        family
    }
}

/// A write that is being submitted to the writer. If it is dropped without an answer, it counts as
/// failed.
#[derive(Debug)]
pub(crate) struct Proposal<'a> {
    metrics: &'a Metrics,
    answered: bool,
}

impl Proposal<'_> {
    /// Records that the writer answered, with a result or with an error of the request itself.
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
        let mut builder = MetricBuilder::default();
        let calls = Arc::new(Calls::default());
        builder.0.register_collector(Box::new(Arc::clone(&calls)));
        builder.0.register_collector(Box::new(Process::new()));
        let version = builder.label("etcd_server_version", "etcd version that the server reports");
        version.get_or_create(&[("server_version", VERSION.to_owned())]).set(1);
        let ack = "From sending a record to the log's ack, for which nats-server writes and syncs it";
        let fsync = builder.histogram("etcd_disk_wal_fsync_duration_seconds", ack, 0.001, 14);
        let commit = ("etcd_disk_backend_commit_duration_seconds", ack);
        builder.0.register(commit.0, commit.1, fsync.clone());
        Self {
            calls,
            batches: builder.counter("yoke_kine_batches", "Records stored"),
            requests: builder.counter("yoke_kine_requests", "Requests that the writer executed"),
            recoveries: builder.counter(
                "yoke_kine_recoveries",
                "Times records were unacknowledged and had to be looked up",
            ),
            snapshots: builder.counter("yoke_kine_snapshots", "Snapshots stored"),
            failed_snapshots: builder.counter("yoke_kine_snapshot_failures", "Snapshots that failed"),
            ignored_messages: builder.counter(
                "yoke_kine_foreign_messages",
                "Ignored messages in the log: copies, and messages of other senders",
            ),
            forwarded: builder.counter("yoke_kine_forwarded", "Requests forwarded to another process"),
            leader_changes: builder.counter("etcd_server_leader_changes_seen", "Changes of the writer"),
            slow_batches: builder.counter(
                "etcd_server_slow_apply",
                "Batches whose evaluation took longer than 0.1 s",
            ),
            slow_reads: builder.counter("etcd_server_slow_read_indexes", "Linearizable reads that timed out"),
            failed_reads: builder.counter(
                "etcd_server_read_indexes_failed",
                "Linearizable reads that failed because the writer failed",
            ),
            expired: builder.counter(
                "etcd_debugging_server_lease_expired",
                "Leases that expired in this process",
            ),
            events: builder.counter("etcd_debugging_mvcc_events", "Events sent to watches"),
            failed: builder.counter(
                "etcd_server_proposals_failed",
                "Writes without an answer from the writer, or whose client disconnected",
            ),
            commit: builder.histogram(
                "yoke_kine_commit_seconds",
                "From sending a record to its ack",
                0.000_1,
                16,
            ),
            fsync,
            pending: builder.gauge("etcd_server_proposals_pending", "Writes that wait for an answer"),
            read: ReadGauges::new(&mut builder),
            registry: Arc::new(builder.0),
        }
    }

    /// Records how long it took to store a record.
    pub(crate) fn committed(&self, took: Duration) {
        self.commit.observe(took.as_secs_f64());
        self.fsync.observe(took.as_secs_f64());
    }

    /// Records the start of a write.
    pub(crate) fn propose(&self) -> Proposal<'_> {
        self.pending.inc();
        Proposal {
            metrics: self,
            answered: false,
        }
    }

    /// All metrics as text.
    pub(crate) fn text(&self, store: Option<&StoreValues>) -> String {
        self.read.watch_streams.set(self.calls.watch_streams().cast_signed());
        if let Some(values) = store {
            self.read.set(values);
        }
        let mut text = String::new();
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl ReadGauges {
    fn new(builder: &mut MetricBuilder) -> Self {
        let gauges = Self {
            revision: builder.gauge("yoke_kine_revision", "Newest stored revision"),
            compacted: builder.gauge(
                "etcd_debugging_mvcc_compact_revision",
                "Lowest revision that can be read; -1 before the first compaction",
            ),
            bytes: builder.gauge("etcd_mvcc_db_total_size_in_bytes", "Bytes of keys and history"),
            quota: builder.gauge("etcd_server_quota_backend_bytes", "Quota in bytes"),
            entries: builder.gauge(
                "yoke_kine_keys",
                "Keys in the index, including deleted ones with history",
            ),
            keys: builder.gauge("etcd_debugging_mvcc_keys_total", "Live keys"),
            history: builder.gauge("yoke_kine_history_changes", "Changes since the compact revision"),
            watches: builder.gauge("yoke_kine_watches", "Open watches"),
            watch_streams: builder.gauge("etcd_debugging_mvcc_watch_stream_total", "Open watch streams"),
            slow_watches: builder.gauge("etcd_debugging_mvcc_slow_watcher_total", "Watches with unread events"),
            has_leader: builder.gauge(
                "etcd_server_has_leader",
                "Whether the lease of the writer, in this process or another, is valid",
            ),
            is_leader: builder.gauge("etcd_server_is_leader", "Whether this process is the writer"),
            stored: builder.gauge(
                "etcd_server_proposals_committed_total",
                "Sequence of the newest record that is known to be in the log, heartbeats included",
            ),
            applied: builder.gauge(
                "etcd_server_proposals_applied_total",
                "Sequence of the newest record that this process shows",
            ),
            full: builder.gauge("yoke_kine_log_full", "Whether puts are rejected until the log has room"),
            member: builder.label("etcd_server_id", "Member id of this process"),
        };
        for (name, help, same) in [
            (
                "etcd_debugging_mvcc_current_revision",
                "Newest stored revision",
                &gauges.revision,
            ),
            (
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "Bytes of keys and history; no space is ever free",
                &gauges.bytes,
            ),
            ("etcd_debugging_mvcc_watcher_total", "Open watches", &gauges.watches),
            (
                "yoke_kine_log_sequence",
                "Sequence of the newest record",
                &gauges.applied,
            ),
        ] {
            builder.0.register(name, help, same.clone());
        }
        gauges
    }

    fn set(&self, values: &StoreValues) {
        for (gauge, value) in [
            (&self.revision, values.revision),
            (&self.compacted, values.compacted),
            (&self.bytes, values.bytes.cast_signed()),
            (&self.quota, values.quota.cast_signed()),
            (&self.entries, values.entries as i64),
            (&self.keys, values.keys),
            (&self.history, values.history as i64),
            (&self.watches, values.watches as i64),
            (&self.slow_watches, values.slow_watches as i64),
            (&self.has_leader, values.has_leader.into()),
            (&self.is_leader, values.is_leader.into()),
            (&self.stored, values.stored.cast_signed()),
            (&self.applied, values.applied.cast_signed()),
            (&self.full, values.full.into()),
        ] {
            gauge.set(value);
        }
        // The member id changes once the id of the store is known.
        self.member.clear();
        let member = format!("{:x}", values.member);
        self.member.get_or_create(&[("server_id", member)]).set(1);
    }
}
