use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use yoke_api::ClusterId;

use super::series::{CODES, Record, RecordKind, Series, class_of};
use super::*;
use crate::snapshot::Snapshot;
use crate::snapshot::entries::entry;
use crate::snapshot::resource::resource_name;

const SECOND: Duration = Duration::from_secs(1);

fn id(text: &str) -> ClusterId {
    text.parse().unwrap()
}

fn connection(verdict: &str) -> Record<'_> {
    Record {
        kind: RecordKind::Connection,
        verdict,
        received: 10,
        sent: 20,
        duration: SECOND / 2,
    }
}

fn request(verdict: &str, code: u32) -> Record<'_> {
    Record {
        kind: RecordKind::Request { code },
        received: 1,
        sent: 2,
        duration: SECOND,
        verdict,
    }
}

/// Adds the cluster `name` with two names, and with these series.
fn serve(snapshot: &mut Snapshot, name: &str, id: &ClusterId, series: &Arc<Series>) {
    for sni in [name, &format!("{name}.example.org")] {
        let mut entry = entry(name, &[name], "1", "1");
        let mut route = crate::model::route::Route::clone(&entry.route);
        route.id = id.clone();
        entry.route = Arc::new(route);
        entry.traffic = Arc::clone(series);
        snapshot.set(&resource_name(sni), Some(entry));
    }
}

/// The samples, without comments.
fn show(registry: &Registry) -> Vec<String> {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let mut samples: Vec<_> = samples.map(str::to_owned).collect();
    samples.sort_unstable();
    samples
}

#[test]
fn series_are_those_of_the_clusters_that_are_served() {
    let mut series_registry = SeriesRegistry::new(10);
    let (a, b) = (id("bcdfghjk24"), id("zzzzzzzz24"));
    let mut snapshot = Snapshot::default();
    for (name, id) in [("a", &a), ("b", &b)] {
        serve(&mut snapshot, name, id, &series_registry.series_of(id));
    }
    let (sender, snapshots) = watch::channel(Some(Arc::new(snapshot.clone())));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(TrafficCollector::new(
        snapshots,
        Arc::clone(series_registry.other()),
    )));
    assert_eq!(show(&registry), ["clusters_sharing_series 0"], "what is 0 is no series");

    let series = series_registry.series_of(&a);
    for record in [
        connection("allowed"),
        connection("allowed"),
        connection("name_rate"),
        request("allowed", 200),
        request("allowed", 101),
        request("request_rate", 429),
        request("asleep", 503),
    ] {
        assert!(series.count(&record));
    }
    assert!(series_registry.series_of(&b).count(&request("allowed", 0)));
    let owner = r#"tenant="tenant",cluster="a",id="bcdfghjk24""#;
    let of_b = r#"tenant="tenant",cluster="b",id="zzzzzzzz24""#;
    let mut expected = [
        "clusters_sharing_series 0".to_owned(),
        format!("cluster_connections_total{{{owner},verdict=\"allowed\"}} 2"),
        format!("cluster_connections_total{{{owner},verdict=\"name_rate\"}} 1"),
        format!("cluster_requests_total{{{owner},verdict=\"allowed\",code=\"1xx\"}} 1"),
        format!("cluster_requests_total{{{owner},verdict=\"allowed\",code=\"2xx\"}} 1"),
        format!("cluster_requests_total{{{owner},verdict=\"request_rate\",code=\"4xx\"}} 1"),
        format!("cluster_requests_total{{{owner},verdict=\"asleep\",code=\"5xx\"}} 1"),
        format!("cluster_requests_total{{{of_b},verdict=\"allowed\",code=\"none\"}} 1"),
        format!("cluster_received_bytes_total{{{owner},by=\"name\"}} 30"),
        format!("cluster_received_bytes_total{{{owner},by=\"token\"}} 4"),
        format!("cluster_received_bytes_total{{{of_b},by=\"token\"}} 1"),
        format!("cluster_sent_bytes_total{{{owner},by=\"name\"}} 60"),
        format!("cluster_sent_bytes_total{{{owner},by=\"token\"}} 8"),
        format!("cluster_sent_bytes_total{{{of_b},by=\"token\"}} 2"),
        format!("cluster_open_seconds_total{{{owner},by=\"name\"}} 1.5"),
        format!("cluster_open_seconds_total{{{owner},by=\"token\"}} 4.0"),
        format!("cluster_open_seconds_total{{{of_b},by=\"token\"}} 1.0"),
    ];
    expected.sort_unstable();
    assert_eq!(show(&registry), expected);

    for name in ["a", "a.example.org"] {
        snapshot.set(&resource_name(name), None);
    }
    sender.send_replace(Some(Arc::new(snapshot)));
    let shown = show(&registry);
    assert!(shown.iter().all(|line| !line.contains("cluster=\"a\"")), "{shown:?}");
    assert_eq!(shown.len(), 5, "{shown:?}");
    assert!(series.count(&connection("allowed")), "who holds it counts in vain");
    sender.send_replace(None);
    assert_eq!(show(&registry), ["clusters_sharing_series 0"]);
}

#[test]
fn unknown_verdicts_are_not_counted() {
    let series = Series::default();
    for record in [
        connection("unknown_name"),
        connection(""),
        connection("request_rate"),
        request("name_rate", 200),
        request("token_signature", 401),
        request("Allowed", 200),
    ] {
        assert!(!series.count(&record), "{record:?}");
    }
    assert_eq!(series.of_connections.sent.load(Ordering::Relaxed), 0);
    assert_eq!(series.of_requests.sent.load(Ordering::Relaxed), 0);
}

#[test]
fn codes_have_classes() {
    for (code, class) in [
        (0, "none"),
        (99, "none"),
        (100, "1xx"),
        (204, "2xx"),
        (399, "3xx"),
        (421, "4xx"),
        (599, "5xx"),
        (600, "none"),
        (u32::MAX, "none"),
    ] {
        assert_eq!(CODES[class_of(code)], class, "{code}");
    }
}

#[test]
fn the_number_of_clusters_with_own_series_is_limited() {
    let mut series_registry = SeriesRegistry::new(2);
    let ids = [id("bcdfghjk24"), id("zzzzzzzz24"), id("dddddddd24")];
    let [a, b, c] = ids.each_ref().map(|id| series_registry.series_of(id));
    assert!(!Arc::ptr_eq(&a, &b));
    assert!(Arc::ptr_eq(&c, series_registry.other()));
    assert!(
        Arc::ptr_eq(&a, &series_registry.series_of(&ids[0])),
        "a change of a cluster keeps them"
    );

    let mut snapshot = Snapshot::default();
    for (index, (id, series)) in ids.iter().zip([&a, &b, &c]).enumerate() {
        serve(&mut snapshot, &format!("c{index}"), id, series);
    }
    let (sender, snapshots) = watch::channel(Some(Arc::new(snapshot)));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(TrafficCollector::new(
        snapshots,
        Arc::clone(series_registry.other()),
    )));
    assert!(c.count(&connection("allowed")));
    let shown = show(&registry);
    let of_others = r#"cluster_connections_total{tenant="",cluster="",id="other",verdict="allowed"} 1"#;
    for line in ["clusters_sharing_series 1", of_others] {
        assert!(shown.iter().any(|shown| shown == line), "{line}: {shown:?}");
    }

    drop((a, sender, registry, b));
    let c = series_registry.series_of(&ids[2]);
    assert!(!Arc::ptr_eq(&c, series_registry.other()), "what is gone leaves room");
}
