//! Counts traffic: Envoy's entries → [`Record`]s of the cluster in the gate's metadata.
//!
//! The gate has put the name and the ID into an entry, but the entry comes from another process,
//! and may be late. So it counts only if the cluster is in the snapshot and has the same ID. No
//! other field that a client could have chosen is used.

use std::time::Duration;

use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, TcpAccessLogEntry,
};
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
use envoy_types::pb::google::protobuf::{Duration as ProtoDuration, Struct};

use crate::metrics::Metrics;
use crate::server::attributes::{ID, NAME, VERDICT};
use crate::snapshot::Snapshot;
use crate::snapshot::Snapshots;
use crate::snapshot::resource::resource_name;
use crate::traffic::series::{Record, RecordKind};

/// Names of Envoy's `ext_authz` filters, under which an entry stores the gate's metadata.
const CONNECTION_FILTER: &str = "envoy.filters.network.ext_authz";
const REQUEST_FILTER: &str = "envoy.filters.http.ext_authz";

/// Reads the traffic log of one Envoy worker.
pub(super) struct Reader {
    snapshots: Snapshots,
    metrics: Metrics,
}

/// The gate's metadata in an entry.
struct GateMetadata<'a> {
    name: &'a str,
    id: &'a str,
    verdict: &'a str,
}

/// Bytes received from a client, and sent to it.
#[derive(Clone, Copy, Default)]
struct Bytes {
    received: u64,
    sent: u64,
}

impl Reader {
    pub(super) fn new(snapshots: &Snapshots, metrics: &Metrics) -> Self {
        Self {
            snapshots: snapshots.clone(),
            metrics: metrics.clone(),
        }
    }

    pub(super) fn read_connections(&self, entries: &[TcpAccessLogEntry]) {
        let snapshot = self.snapshots.borrow().clone();
        for entry in entries {
            let properties = entry.connection_properties.as_ref();
            let bytes = properties.map(|properties| Bytes {
                received: properties.received_bytes,
                sent: properties.sent_bytes,
            });
            let common = entry.common_properties.as_ref();
            let counted = count(
                snapshot.as_deref(),
                common,
                CONNECTION_FILTER,
                RecordKind::Connection,
                bytes.unwrap_or_default(),
            );
            self.metrics.count_entry(counted.is_some());
        }
    }

    pub(super) fn read_requests(&self, entries: &[HttpAccessLogEntry]) {
        let snapshot = self.snapshots.borrow().clone();
        for entry in entries {
            let (request, response) = (entry.request.as_ref(), entry.response.as_ref());
            let received = request.map(|request| (request.request_headers_bytes, request.request_body_bytes));
            let sent = response.map(|response| (response.response_headers_bytes, response.response_body_bytes));
            let bytes = Bytes {
                received: to_sum(received),
                sent: to_sum(sent),
            };
            let code = response.and_then(|response| response.response_code.as_ref());
            let code = code.map(|code| code.value).unwrap_or_default();
            let common = entry.common_properties.as_ref();
            let counted = count(
                snapshot.as_deref(),
                common,
                REQUEST_FILTER,
                RecordKind::Request { code },
                bytes,
            );
            self.metrics.count_entry(counted.is_some());
        }
    }
}

/// Counts an entry if its cluster is in the snapshot.
fn count(
    snapshot: Option<&Snapshot>,
    common: Option<&AccessLogCommon>,
    filter: &str,
    kind: RecordKind,
    bytes: Bytes,
) -> Option<()> {
    // Entries of a connection or request that continues are ignored: the last entry contains their
    // values.
    let end = match kind {
        RecordKind::Connection => AccessLogType::TcpConnectionEnd,
        RecordKind::Request { .. } => AccessLogType::DownstreamEnd,
    };
    let common = common.filter(|common| common.access_log_type() == end)?;
    let metadata = GateMetadata::find(common, filter)?;
    let entry = snapshot?.get(&resource_name(metadata.name))?;
    if entry.route.id.as_str() != metadata.id {
        return None;
    }
    let record = Record {
        kind,
        verdict: metadata.verdict,
        received: bytes.received,
        sent: bytes.sent,
        duration: common.duration.as_ref().and_then(to_duration).unwrap_or_default(),
    };
    entry.traffic.count(&record).then_some(())
}

impl<'a> GateMetadata<'a> {
    fn find(common: &'a AccessLogCommon, filter: &str) -> Option<Self> {
        let fields = common.metadata.as_ref()?.filter_metadata.get(filter)?;
        Some(Self {
            name: text_of(fields, NAME)?,
            id: text_of(fields, ID)?,
            verdict: text_of(fields, VERDICT)?,
        })
    }
}

fn text_of<'a>(fields: &'a Struct, key: &str) -> Option<&'a str> {
    match fields.fields.get(key)?.kind.as_ref()? {
        ValueKind::StringValue(text) => Some(text),
        _ => None,
    }
}

fn to_sum(parts: Option<(u64, u64)>) -> u64 {
    parts.map(|(head, body)| head.saturating_add(body)).unwrap_or_default()
}

fn to_duration(duration: &ProtoDuration) -> Option<Duration> {
    Some(Duration::new(
        duration.seconds.try_into().ok()?,
        duration.nanos.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::Metadata;
    use envoy_types::pb::google::protobuf::Value;

    use super::*;
    use crate::snapshot::entries::entry;

    const NAMES: [&str; 2] = ["a.yoke.test", "extra.example.org"];

    fn served() -> Snapshot {
        let mut snapshot = Snapshot::default();
        for name in NAMES {
            snapshot.set(&resource_name(name), Some(entry("a", &NAMES, "1", "1")));
        }
        snapshot
    }

    fn metadata(filter: &str, fields: &[(&str, &str)]) -> AccessLogCommon {
        let value = |text: &str| Value {
            kind: Some(ValueKind::StringValue(text.to_owned())),
        };
        let fields = fields.iter().map(|(key, text)| ((*key).to_owned(), value(text)));
        let fields = Struct {
            fields: fields.collect(),
        };
        AccessLogCommon {
            metadata: Some(Metadata {
                filter_metadata: [(filter.to_owned(), fields)].into(),
                ..Metadata::default()
            }),
            duration: Some(ProtoDuration {
                seconds: 1,
                nanos: 500_000_000,
            }),
            access_log_type: AccessLogType::TcpConnectionEnd.into(),
            ..AccessLogCommon::default()
        }
    }

    fn good() -> AccessLogCommon {
        let fields = [(NAME, NAMES[0]), (ID, "bcdfghjk24"), (VERDICT, "allowed")];
        metadata(CONNECTION_FILTER, &fields)
    }

    fn is_counted(snapshot: Option<&Snapshot>, common: Option<&AccessLogCommon>) -> bool {
        count(
            snapshot,
            common,
            CONNECTION_FILTER,
            RecordKind::Connection,
            Bytes { received: 1, sent: 2 },
        )
        .is_some()
    }

    #[test]
    fn only_gate_metadata_of_a_served_cluster_is_counted() {
        let snapshot = served();
        assert!(is_counted(Some(&snapshot), Some(&good())));
        assert!(!is_counted(None, Some(&good())), "before the host was read");
        assert!(!is_counted(Some(&snapshot), None));
        let long = "a".repeat(100_000);
        for (rule, fields) in [
            ("nothing", &[][..]),
            ("no verdict", &[(NAME, NAMES[0]), (ID, "bcdfghjk24")]),
            ("no identity", &[(NAME, NAMES[0]), (VERDICT, "allowed")]),
            ("no name", &[(ID, "bcdfghjk24"), (VERDICT, "allowed")]),
            (
                "a cluster that has been replaced",
                &[(NAME, NAMES[0]), (ID, "zzzzzzzz24"), (VERDICT, "allowed")],
            ),
            (
                "nobody's name",
                &[(NAME, "b.yoke.test"), (ID, "bcdfghjk24"), (VERDICT, "allowed")],
            ),
            (
                "a name of Envoy's",
                &[(NAME, "name/a.yoke.test"), (ID, "bcdfghjk24"), (VERDICT, "allowed")],
            ),
            (
                "a verdict of nobody's",
                &[(NAME, NAMES[0]), (ID, "bcdfghjk24"), (VERDICT, "a\"} 1\n")],
            ),
            ("a long one", &[(NAME, &long), (ID, &long), (VERDICT, &long)]),
        ] {
            let common = metadata(CONNECTION_FILTER, fields);
            assert!(!is_counted(Some(&snapshot), Some(&common)), "{rule}");
        }
        let fields = [(NAME, NAMES[0]), (ID, "bcdfghjk24"), (VERDICT, "allowed")];
        for filter in [REQUEST_FILTER, "envoy.lb", ""] {
            let common = metadata(filter, &fields);
            assert!(!is_counted(Some(&snapshot), Some(&common)), "{filter}");
        }
        let still = AccessLogCommon {
            access_log_type: AccessLogType::TcpPeriodic.into(),
            ..good()
        };
        assert!(!is_counted(Some(&snapshot), Some(&still)), "it has not ended");
    }

    #[test]
    fn numbers_out_of_range_are_ignored() {
        for (seconds, nanos, expected) in [
            (1, 500_000_000, Some(Duration::from_millis(1500))),
            (-1, 0, None),
            (0, -1, None),
            (1, i32::MAX, Some(Duration::new(3, 147_483_647))),
        ] {
            assert_eq!(to_duration(&ProtoDuration { seconds, nanos }), expected);
        }
        let most = ProtoDuration {
            seconds: i64::MAX,
            nanos: i32::MAX,
        };
        assert!(to_duration(&most).is_some());
        assert_eq!(to_sum(Some((u64::MAX, 1))), u64::MAX);
    }
}
