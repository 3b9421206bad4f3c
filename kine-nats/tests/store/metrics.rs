//! The metrics of etcd and of kine-nats that monitoring uses.

use crate::etcd::Etcd;
use crate::harness::{Client, Kine, Nats, Watching, eventually, prefix};
use std::collections::{BTreeMap, BTreeSet};
use tonic::Code;
use tonic::codegen::tokio_stream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use yoke_kine_nats::proto::etcdserverpb as pb;

/// The metrics in etcd's alerts and dashboards (contrib/mixin of 3.6, also part of
/// kube-prometheus), except the times and bytes between members: processes have no connections
/// between them.
const WATCHED: [&str; 16] = [
    "etcd_disk_backend_commit_duration_seconds",
    "etcd_disk_wal_fsync_duration_seconds",
    "etcd_mvcc_db_total_size_in_bytes",
    "etcd_mvcc_db_total_size_in_use_in_bytes",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_network_client_grpc_sent_bytes_total",
    "etcd_server_has_leader",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_applied_total",
    "etcd_server_proposals_committed_total",
    "etcd_server_proposals_failed_total",
    "etcd_server_proposals_pending",
    "etcd_server_quota_backend_bytes",
    "grpc_server_handled_total",
    "grpc_server_handling_seconds",
    "grpc_server_started_total",
];

/// Metrics that the same requests change in the same way.
const SAME: [&str; 10] = [
    "grpc_server_started_total",
    "grpc_server_handled_total",
    "grpc_server_handling_seconds_count",
    "etcd_network_client_grpc_received_bytes_total",
    "etcd_debugging_mvcc_current_revision",
    "etcd_debugging_mvcc_compact_revision",
    "etcd_debugging_mvcc_events_total",
    "etcd_debugging_mvcc_keys_total",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_failed_total",
];

/// A value with its labels.
type Values = BTreeMap<BTreeMap<String, String>, f64>;

/// The metrics of a server.
#[derive(Debug, Default)]
struct Said {
    kinds: BTreeMap<String, String>,
    values: BTreeMap<String, Values>,
}

impl Said {
    /// Parses OpenMetrics, or the older format, in which counters have their full names.
    fn read(answer: &str) -> Self {
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        let open = head
            .to_lowercase()
            .contains("content-type: application/openmetrics-text");
        let mut said = Self::default();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                let suffix = if open && kind == "counter" { "_total" } else { "" };
                said.kinds.insert(format!("{name}{suffix}"), kind.to_owned());
            } else if !line.starts_with('#') && !line.is_empty() {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let (name, labels) = name.split_once('{').unwrap_or((name, "}"));
                let labels = labels.trim_end_matches('}').split("\",");
                let pair = |label: &str| {
                    let (name, value) = label.split_once("=\"")?;
                    Some((name.to_owned(), value.trim_end_matches('"').to_owned()))
                };
                let values = said.values.entry(name.to_owned()).or_default();
                values.insert(labels.filter_map(pair).collect(), value.parse().unwrap());
            }
        }
        said
    }

    /// The label names of a metric.
    fn labels(&self, name: &str) -> BTreeSet<&str> {
        let own = self
            .values
            .get(name)
            .or_else(|| self.values.get(&format!("{name}_count")));
        let keys = own.into_iter().flat_map(BTreeMap::keys).flat_map(BTreeMap::keys);
        keys.map(String::as_str).collect()
    }

    fn value(&self, name: &str) -> f64 {
        *self.values[name].first_key_value().unwrap().1
    }

    /// The increase of each metric that has one.
    fn since(&self, before: &Self, name: &str) -> Values {
        let earlier = |labels| before.values.get(name).and_then(|values| values.get(labels));
        let values = self.values.get(name).into_iter().flatten();
        values
            .map(|(labels, value)| (labels.clone(), value - earlier(labels).unwrap_or(&0.0)))
            .filter(|(_, more)| *more != 0.0)
            .collect()
    }

    /// Calls in progress.
    fn open(&self) -> f64 {
        let sum = |name: &str| self.values.get(name).map_or(0.0, |values| values.values().sum());
        sum("grpc_server_started_total") - sum("grpc_server_handled_total")
    }
}

/// Some requests of each kind; some are rejected.
async fn ask(mut client: Client) {
    client.put("/m/a", &[7; 10_000]).await.unwrap();
    client.put("/m/b", b"2").await.unwrap();
    let created = client.put("/m/c", b"3").await.unwrap();
    assert_eq!(client.create("/m/d", b"4").await.unwrap(), Some(created + 1));
    assert_eq!(client.create("/m/d", b"5").await.unwrap(), None);
    client.delete("/m/b").await;
    client.range("/m/", "/m0", 0).await.unwrap();
    assert_eq!(client.put("", b"").await.unwrap_err().code(), Code::InvalidArgument);
    let future = client.range("/m/a", "", 1_000_000).await.unwrap_err();
    assert_eq!(future.code(), Code::OutOfRange);
    client.maintenance.status(pb::StatusRequest {}).await.unwrap();

    let grant = pb::LeaseGrantRequest { id: 77, ttl: 600 };
    client.lease.lease_grant(grant).await.unwrap();
    let alive = tokio_stream::once(pb::LeaseKeepAliveRequest { id: 77 });
    let mut alive = client.lease.lease_keep_alive(alive).await.unwrap().into_inner();
    assert_eq!(alive.message().await.unwrap().unwrap().ttl, 600);
    assert!(alive.message().await.unwrap().is_none(), "ends with what was asked");
    let revoke = |id| pb::LeaseRevokeRequest { id };
    client.lease.lease_revoke(revoke(77)).await.unwrap();
    let gone = client.lease.lease_revoke(revoke(77)).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);

    let mut watching = Watching::open(&mut client, prefix("/m/", 2)).await.unwrap();
    let mut heard = 0;
    while heard < 5 {
        heard += watching.next().await.unwrap().events.len();
    }
    drop(watching);
    client.compact(created).await.unwrap();
}

#[tokio::test]
async fn metrics_of_etcd_have_the_format_of_etcd() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "metrics", &[]).await;
    let etcd = Etcd::start().await;
    let read = async || [Said::read(&kine.scrape().await), Said::read(&etcd.scrape().await)];
    let before = read().await;
    for (client, channel) in [(kine.client().await, kine.channel()), (etcd.client(), etcd.channel())] {
        ask(client).await;
        HealthClient::new(channel)
            .check(HealthCheckRequest::default())
            .await
            .unwrap();
    }
    eventually("all calls to end", || async {
        let said = read().await;
        said.iter().all(|said| said.open() == 0.0).then_some(())
    })
    .await;
    let after = read().await;
    let [ours, theirs] = &after;

    let etcds = |name: &str| !name.starts_with("yoke_kine_");
    let served: Vec<_> = ours.kinds.iter().filter(|(name, _)| etcds(name)).collect();
    assert!(served.len() > 30, "{served:?}");
    for (name, kind) in served {
        assert_eq!(theirs.kinds.get(name), Some(kind), "{name}");
        assert_eq!(ours.labels(name), theirs.labels(name), "labels of {name}");
    }
    for name in WATCHED {
        let has_values = ours.values.contains_key(name) || ours.values.contains_key(&format!("{name}_bucket"));
        assert!(has_values, "{name} is not served");
    }

    for name in SAME {
        let [ours, theirs] = [0, 1].map(|server: usize| after[server].since(&before[server], name));
        assert_eq!(ours, theirs, "{name}");
    }
    for name in ["etcd_server_has_leader", "etcd_server_is_leader"] {
        assert_eq!([ours.value(name), theirs.value(name)], [1.0; 2], "{name}");
    }
    for name in [
        "etcd_server_proposals_pending",
        "etcd_debugging_mvcc_watcher_total",
        "etcd_debugging_mvcc_watch_stream_total",
        "etcd_debugging_mvcc_slow_watcher_total",
    ] {
        assert_eq!([ours.value(name), theirs.value(name)], [0.0; 2], "{name}");
    }
    // Member names and terms have different lengths.
    let sent = [0, 1].map(|server: usize| {
        let sent = after[server].since(&before[server], "etcd_network_client_grpc_sent_bytes_total");
        sent.into_values().sum::<f64>()
    });
    assert!(sent[0] > 20_000.0 && (sent[0] - sent[1]).abs() < 1000.0, "{sent:?}");
    let records = "etcd_server_proposals_committed_total";
    assert!(ours.value(records) >= 8.0, "{}", ours.value(records));
    assert_eq!(ours.value("etcd_server_proposals_applied_total"), ours.value(records));
}

#[tokio::test]
async fn open_watches_and_waiting_writes_are_exported() {
    let mut nats = Nats::start().await;
    let kine = Kine::start(&nats, "waiting", &[]).await;
    let mut client = kine.client().await;
    client.put("/w/a", b"1").await.unwrap();
    let mut watching = Watching::open(&mut client, prefix("/w/", 1)).await.unwrap();
    assert!(watching.next().await.unwrap().created);
    let value = async |name: &str| Said::read(&kine.scrape().await).value(name);
    assert_eq!(value("etcd_debugging_mvcc_watcher_total").await, 1.0);
    assert_eq!(value("etcd_debugging_mvcc_watch_stream_total").await, 1.0);
    nats.kill();
    let waiting = tokio::spawn({
        let mut client = client.clone();
        async move { client.put("/w/b", b"2").await }
    });
    eventually("a pending write", || async {
        (value("etcd_server_proposals_pending").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(value("etcd_server_proposals_failed_total").await, 0.0);
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    eventually("the write of the disconnected client to fail", || async {
        (value("etcd_server_proposals_failed_total").await == 1.0).then_some(())
    })
    .await;
    assert_eq!(value("etcd_server_proposals_pending").await, 0.0);
    eventually("the lease of the writer to end", || async {
        (value("etcd_server_has_leader").await == 0.0).then_some(())
    })
    .await;
    drop(watching);
}
