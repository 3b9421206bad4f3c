//! Counts gRPC calls: how many started, how they ended and how long they took. The names are those
//! of the Go gRPC middleware in etcd. A unary call ends with its response, and a streaming call
//! with its stream.

use crate::clock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tonic::Code;

/// Bucket bounds in seconds, as in etcd.
const BOUNDS: [f64; 12] = [
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    f64::INFINITY,
];

/// The gRPC codes as Go spells them, in numeric order.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

const UNARY: &str = "unary";
const SERVER: &str = "server_stream";
const BOTH: &str = "bidi_stream";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// All methods, the most frequent first.
const METHODS: [(&str, &str); 27] = [
    ("/etcdserverpb.KV/Range", UNARY),
    ("/etcdserverpb.KV/RangeStream", SERVER),
    ("/etcdserverpb.KV/Txn", UNARY),
    ("/etcdserverpb.KV/Put", UNARY),
    ("/etcdserverpb.KV/DeleteRange", UNARY),
    ("/etcdserverpb.KV/Compact", UNARY),
    (WATCH, BOTH),
    ("/etcdserverpb.Lease/LeaseGrant", UNARY),
    ("/etcdserverpb.Lease/LeaseRevoke", UNARY),
    ("/etcdserverpb.Lease/LeaseKeepAlive", BOTH),
    ("/etcdserverpb.Lease/LeaseTimeToLive", UNARY),
    ("/etcdserverpb.Lease/LeaseLeases", UNARY),
    ("/etcdserverpb.Cluster/MemberList", UNARY),
    ("/etcdserverpb.Cluster/MemberAdd", UNARY),
    ("/etcdserverpb.Cluster/MemberRemove", UNARY),
    ("/etcdserverpb.Cluster/MemberUpdate", UNARY),
    ("/etcdserverpb.Cluster/MemberPromote", UNARY),
    ("/etcdserverpb.Maintenance/Alarm", UNARY),
    ("/etcdserverpb.Maintenance/Status", UNARY),
    ("/etcdserverpb.Maintenance/Defragment", UNARY),
    ("/etcdserverpb.Maintenance/Hash", UNARY),
    ("/etcdserverpb.Maintenance/HashKV", UNARY),
    ("/etcdserverpb.Maintenance/Snapshot", SERVER),
    ("/etcdserverpb.Maintenance/MoveLeader", UNARY),
    ("/etcdserverpb.Maintenance/Downgrade", UNARY),
    ("/grpc.health.v1.Health/Check", UNARY),
    ("/grpc.health.v1.Health/Watch", SERVER),
];

/// Bytes of messages that were received, and that were sent. They are global because the generated
/// code creates its codecs without arguments.
pub(crate) static BYTES: (AtomicU64, AtomicU64) = (AtomicU64::new(0), AtomicU64::new(0));

/// Counters of one method.
#[derive(Debug, Default)]
struct Count {
    started: AtomicU64,
    handled: [AtomicU64; CODES.len()],
    took: [AtomicU64; BOUNDS.len()],
    nanoseconds: AtomicU64,
}

/// The calls of a process.
pub(crate) struct Calls([Count; METHODS.len()]);

/// A call in progress. A call that is dropped without a code was canceled by its client.
#[derive(Debug)]
pub(crate) struct Call {
    calls: Arc<Calls>,
    method: usize,
    start: Duration,
    code: Code,
}

impl Default for Calls {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Count::default()))
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Calls {
    /// Records the start of a call. An unknown method is not counted, because clients choose the
    /// name.
    pub(crate) fn start(self: &Arc<Self>, path: &str) -> Option<Call> {
        let method = METHODS.iter().position(|(known, _)| *known == path)?;
        self.0.get(method)?.started.fetch_add(1, Ordering::Relaxed);
        Some(Call {
            calls: Arc::clone(self),
            method,
            start: clock::now(),
            code: Code::Cancelled,
        })
    }

    /// Number of open watch streams.
    pub(crate) fn watch_streams(&self) -> u64 {
        let open = |(_, count): (_, &Count)| {
            let handled: u64 = count.handled.iter().map(load).sum();
            load(&count.started).saturating_sub(handled)
        };
        let mut counts = METHODS.iter().zip(&self.0);
        counts.find(|((path, _), _)| *path == WATCH).map_or(0, open)
    }
}

impl Call {
    /// Whether the call has a single response.
    pub(crate) fn is_unary(&self) -> bool {
        METHODS.get(self.method).is_some_and(|(_, kind)| *kind == UNARY)
    }

    /// Sets the code that is recorded when the call is dropped.
    pub(crate) fn set_code(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let Some(count) = self.calls.0.get(self.method) else {
            return;
        };
        let took = clock::now().saturating_sub(self.start);
        let bucket = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound);
        let counters = [
            count.handled.get(self.code as usize),
            bucket.and_then(|at| count.took.get(at)),
        ];
        for counter in counters.into_iter().flatten() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        count.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// Leaves out series that are zero: Kubernetes calls few methods, and few codes occur.
impl Collector for Calls {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (name, help) = ("grpc_server_started", "Calls that started");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in self.used() {
            ConstCounter::new(load(&count.started)).encode(metric.encode_family(&labels)?)?;
        }
        let (name, help) = ("grpc_server_handled", "Calls that ended");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in self.used() {
            for (code, handled) in CODES.into_iter().zip(count.handled.iter().map(load)) {
                if handled > 0 {
                    let [kind, service, method] = labels;
                    let labels = [kind, service, method, ("grpc_code", code)];
                    ConstCounter::new(handled).encode(metric.encode_family(&labels)?)?;
                }
            }
        }
        let (name, help) = ("grpc_server_handling_seconds", "Duration of ended calls");
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, count) in self.used() {
            let took: Vec<_> = BOUNDS.into_iter().zip(count.took.iter().map(load)).collect();
            let handled = took.iter().map(|(_, count)| count).sum();
            let seconds = Duration::from_nanos(load(&count.nanoseconds)).as_secs_f64();
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_histogram::<NoLabelSet>(seconds, handled, &took, None)?;
        }
        for (name, help, bytes) in [
            (
                "etcd_network_client_grpc_received_bytes",
                "Bytes of the requests of clients",
                &BYTES.0,
            ),
            (
                "etcd_network_client_grpc_sent_bytes",
                "Bytes of the responses to clients",
                &BYTES.1,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(load(bytes)).encode(metric)?;
        }
        Ok(())
    }
}

type Labels = [(&'static str, &'static str); 3];

impl Calls {
    fn used(&self) -> impl Iterator<Item = (Labels, &Count)> {
        let counts = METHODS.into_iter().zip(&self.0);
        counts
            .filter(|(_, count)| load(&count.started) > 0)
            .map(|((path, kind), count)| {
                let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
                let labels = [("grpc_type", kind), ("grpc_service", service), ("grpc_method", method)];
                (labels, count)
            })
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use std::collections::BTreeMap;

    fn text(calls: &Arc<Calls>) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(calls)));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_counted_at_its_start_and_its_end() {
        let calls = Arc::new(Calls::default());
        let mut call = calls.start("/etcdserverpb.KV/Put").unwrap();
        assert!(call.is_unary());
        let labels = "grpc_type=\"unary\",grpc_service=\"etcdserverpb.KV\",grpc_method=\"Put\"";
        let exported = text(&calls);
        assert!(
            exported.contains(&format!("grpc_server_started_total{{{labels}}} 1\n")),
            "{exported}"
        );
        assert!(!exported.contains("grpc_code"), "{exported}");
        tokio::time::advance(Duration::from_millis(30)).await;
        call.set_code(Code::OutOfRange);
        drop(call);
        drop(calls.start("/etcdserverpb.KV/Put"));
        let exported = text(&calls);
        for line in [
            format!("grpc_server_handled_total{{{labels},grpc_code=\"OutOfRange\"}} 1"),
            format!("grpc_server_handled_total{{{labels},grpc_code=\"Canceled\"}} 1"),
            format!("grpc_server_handling_seconds_count{{{labels}}} 2"),
            format!("grpc_server_handling_seconds_sum{{{labels}}} 0.03"),
            format!("grpc_server_handling_seconds_bucket{{le=\"0.025\",{labels}}} 1"),
            format!("grpc_server_handling_seconds_bucket{{le=\"0.05\",{labels}}} 2"),
            format!("grpc_server_handling_seconds_bucket{{le=\"+Inf\",{labels}}} 2"),
        ] {
            assert!(
                exported.lines().any(|exported| exported == line),
                "{line} in {exported}"
            );
        }
        assert_eq!(
            exported.matches("grpc_method=").count(),
            1 + 2 + 14,
            "only what happened"
        );
    }

    #[test]
    fn unknown_method_names_are_not_counted() {
        let calls = Arc::new(Calls::default());
        for path in ["/etcdserverpb.KV/Ranges", "/etcdserverpb.KV/", "", "/a/b/c"] {
            assert!(calls.start(path).is_none(), "{path}");
        }
    }

    #[test]
    fn open_watches_are_counted() {
        let calls = Arc::new(Calls::default());
        let open = [WATCH, WATCH, "/etcdserverpb.KV/Range"].map(|path| calls.start(path));
        assert_eq!(calls.watch_streams(), 2);
        drop(open);
        assert_eq!(calls.watch_streams(), 0);
    }

    #[test]
    fn codes_have_the_names_of_grpc() {
        for (number, name) in [
            (0, "OK"),
            (1, "Canceled"),
            (8, "ResourceExhausted"),
            (14, "Unavailable"),
        ] {
            assert_eq!(CODES[number], name);
        }
        assert_eq!(Code::Unauthenticated as usize, CODES.len() - 1);
    }

    #[test]
    fn every_method_of_the_protocol_is_known() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/etcdserverpb/rpc.proto");
        let (mut service, mut methods) = (String::new(), BTreeMap::new());
        for line in std::fs::read_to_string(file).unwrap().lines() {
            if let Some(name) = line.strip_prefix("service ") {
                service = name.trim_end_matches(" {").to_owned();
            }
            if let Some(method) = line.trim().strip_prefix("rpc ") {
                let (name, rest) = method.split_once('(').unwrap();
                let kind = match rest.matches("(stream ").count() + usize::from(rest.starts_with("stream ")) {
                    0 => UNARY,
                    1 => SERVER,
                    _ => BOTH,
                };
                methods.insert(format!("/etcdserverpb.{service}/{name}"), kind);
            }
        }
        let known = METHODS.into_iter().filter(|(path, _)| !path.contains("Health"));
        let known: BTreeMap<_, _> = known.map(|(path, kind)| (path.to_owned(), kind)).collect();
        assert_eq!(known, methods);
    }
}
