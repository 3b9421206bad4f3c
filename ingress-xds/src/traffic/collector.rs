//! Collects the series for /metrics: those of clusters in the newest snapshot, without counters
//! that are zero. Encoding takes long with many clusters, so it holds no lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::series::{CODES, CONNECTION_VERDICTS, REQUEST_VERDICTS, Series, Sums};
use crate::snapshot::Snapshot;
use crate::snapshot::Snapshots;

/// Label value in place of a cluster ID; no cluster has this ID.
const OTHER: &str = "other";

type Label<'a> = (&'static str, &'a str);

/// The collector.
#[derive(Debug)]
pub struct TrafficCollector {
    snapshots: Snapshots,
    other: Arc<Series>,
}

/// The series of one cluster with its labels.
struct Named<'a> {
    owner: [Label<'a>; 3],
    series: &'a Series,
}

impl TrafficCollector {
    /// Collects the series in `snapshots`; `other` are the shared ones.
    pub fn new(snapshots: Snapshots, other: Arc<Series>) -> Self {
        Self { snapshots, other }
    }

    /// All series, the shared ones last, and how many clusters share them.
    fn all<'a>(&'a self, snapshot: Option<&'a Snapshot>) -> (Vec<Named<'a>>, i64) {
        let mut all = Vec::new();
        let mut sharing = 0;
        for entry in snapshot.into_iter().flat_map(Snapshot::clusters) {
            if Arc::ptr_eq(&entry.traffic, &self.other) {
                sharing += 1;
                continue;
            }
            let route = &entry.route;
            all.push(Named::new(
                [&route.tenant, &route.cluster, route.id.as_str()],
                &entry.traffic,
            ));
        }
        all.push(Named::new(["", "", OTHER], &self.other));
        (all, sharing)
    }
}

impl Collector for TrafficCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let snapshot = self.snapshots.borrow().clone();
        let (all, sharing) = self.all(snapshot.as_deref());
        let sharing = ConstGauge::new(sharing);
        let help = "Clusters without series of their own, counted as `other`";
        let metric = encoder.encode_descriptor("clusters_sharing_series", help, None, sharing.metric_type())?;
        sharing.encode(metric)?;
        let mut counters = Counters { encoder, all };
        counters.add("cluster_connections", "Ended connections by name", |series, add| {
            for (verdict, count) in CONNECTION_VERDICTS.iter().zip(&series.connections) {
                add(&[("verdict", *verdict)], read(count))?;
            }
            Ok(())
        })?;
        counters.add("cluster_requests", "Ended requests by token", |series, add| {
            for (verdict, counts) in REQUEST_VERDICTS.iter().zip(&series.requests) {
                for (code, count) in CODES.iter().zip(counts) {
                    add(&[("verdict", *verdict), ("code", *code)], read(count))?;
                }
            }
            Ok(())
        })?;
        let received = "Bytes received from clients in ended connections and requests";
        counters.add_sums("cluster_received_bytes", received, |sums| read(&sums.received))?;
        let sent = "Bytes sent to clients in ended connections and requests";
        counters.add_sums("cluster_sent_bytes", sent, |sums| read(&sums.sent))?;
        let open = "Total duration of ended connections and requests in seconds";
        counters.add_sums("cluster_open_seconds", open, |sums| {
            // The conversion loses less than a microsecond in sums of many years.
            read(&sums.microseconds) as f64 / 1e6
        })
    }
}

impl<'a> Named<'a> {
    fn new([tenant, cluster, id]: [&'a str; 3], series: &'a Series) -> Self {
        Self {
            owner: [("tenant", tenant), ("cluster", cluster), ("id", id)],
            series,
        }
    }
}

/// Encodes each metric family with the series of all clusters.
struct Counters<'e, 'a> {
    encoder: DescriptorEncoder<'e>,
    all: Vec<Named<'a>>,
}

impl Counters<'_, '_> {
    /// Encodes one family. `each` adds the counters of one cluster; zeros are omitted.
    fn add<N: EncodeCounterValue + Default + PartialEq>(
        &mut self,
        name: &str,
        help: &str,
        each: impl Fn(&Series, &mut dyn FnMut(&[Label<'_>], N) -> fmt::Result) -> fmt::Result,
    ) -> fmt::Result {
        let mut metric = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for named in &self.all {
            each(named.series, &mut |labels, value| {
                if value == N::default() {
                    return Ok(());
                }
                let labels = [&named.owner[..], labels].concat();
                ConstCounter::new(value).encode(metric.encode_family(&labels)?)
            })?;
        }
        Ok(())
    }

    fn add_sums<N: EncodeCounterValue + Default + PartialEq>(
        &mut self,
        name: &str,
        help: &str,
        of: impl Fn(&Sums) -> N,
    ) -> fmt::Result {
        self.add(name, help, |series, add| {
            add(&[("by", "name")], of(&series.of_connections))?;
            add(&[("by", "token")], of(&series.of_requests))
        })
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
