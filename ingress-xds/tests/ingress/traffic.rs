//! The traffic of each cluster is counted from Envoy's access log, and Envoy never waits for its
//! reader.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_server::{
    AccessLogService, AccessLogServiceServer,
};
use envoy_types::pb::envoy::service::accesslog::v3::{StreamAccessLogsMessage, StreamAccessLogsResponse};
use http::Request;
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};
use yoke_runtime::tls::accept;

use crate::support::SERVER_NAME;
use crate::support::client::{BOTH, Client, Http, get};
use crate::support::frames::{Frames, SETTINGS, WINDOW_UPDATE};
use crate::support::tenant::open;
use crate::support::xds::Site;
use crate::support::{PATIENCE, eventually};
use crate::terminated::{Stage, assert_alive, assert_status, watch};

const LOGS: &str = r#"cluster_name: logs
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: "@XDS_HOST@", port_value: @XDS_PORT@}}}}]}]"#;
const DROPPED: &str = "access_logs.grpc_access_log.logs_dropped";
/// Length of a path, so that few requests make a long log.
const LONG: usize = 3000;

/// The sample of the cluster named `a`.
fn of_a(metric: &str, labels: &str) -> String {
    format!("yoke_ingress_xds_cluster_{metric}_total{{tenant=\"tenant\",cluster=\"a\",id=\"bcdfghjk24\",{labels}}}")
}

/// A client outside of the cluster.
async fn outside(stage: &Stage, index: usize) -> std::io::Result<Client> {
    let name = stage.clusters[index].public_name();
    Client::connect(stage.envoy.ingress, &name, &stage.root.client(None), Http::Two).await
}

/// Waits until Envoy's log is read. Earlier entries may be lost.
async fn wait_read(stage: &Stage) {
    let read = "yoke_ingress_xds_log_entries_total{result=\"failed\"}";
    let mut client = stage.client(Http::Two).await;
    let is_read = async || {
        assert_eq!(client.ask(get(None)).await.unwrap().status, 401);
        (stage.xds().metric(read) > 0).then_some(())
    };
    eventually("an entry of the access log to be read", PATIENCE, is_read).await;
}

async fn wait_for(stage: &Stage, metric: &str, expected: u64) {
    let counted = async || (stage.xds().metric(metric) == expected).then_some(());
    eventually(&format!("metric {metric} to be {expected}"), PATIENCE, counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traffic_is_counted_for_its_cluster() {
    let mut stage = Stage::with(&[], |_| {}).await;
    wait_read(&stage).await;
    // Entries arrive in order, so earlier ones are counted first.
    assert_eq!(stage.status(&stage.bearer(1)).await, 200);
    let of_b = |metric: String| metric.replace("=\"a\"", "=\"b\"").replace("bcdfghjk24", "zzzzzzzz24");
    let other = of_b(of_a("requests", r#"verdict="allowed",code="2xx""#));
    wait_for(&stage, &other, 1).await;
    let before = stage.xds().traffic();
    let [ok, failed] =
        ["ok", "failed"].map(|result| format!("yoke_ingress_xds_log_entries_total{{result=\"{result}\"}}"));
    let [reported, lost] = [&ok, &failed].map(|metric| stage.xds().metric(metric));
    let bearer = stage.bearer(0);
    let foreign = Request::get(format!("https://{}/api", stage.clusters[1].public_name()));
    let foreign = foreign.header("authorization", &bearer);
    let mut foreign = Some(foreign.body(axum::body::Body::empty()).unwrap());
    for http in BOTH {
        let mut client = stage.client(http).await;
        for _ in 0..3 {
            assert_eq!(client.ask(get(Some(&bearer))).await.unwrap().status, 200);
        }
        let answer = client.ask(get(None)).await.unwrap();
        assert_status("no token", &answer, 401, "Unauthorized");
        if let Some(request) = foreign.take() {
            assert_eq!(client.ask(request).await.unwrap().status, 421);
        }
    }
    for _ in 0..2 {
        let mut client = outside(&stage, 0).await.unwrap();
        assert_eq!(client.ask(get(None)).await.unwrap().status, 200);
    }
    let config = stage.root.client(None);
    for sni in ["c-dddddddd.yoke.test", "www.example.org"] {
        assert!(open(stage.envoy.ingress, sni, &config).await.is_err());
    }
    wait_for(&stage, &of_a("requests", r#"verdict="allowed",code="2xx""#), 6).await;
    wait_for(&stage, &of_a("requests", r#"verdict="misdirected",code="4xx""#), 1).await;
    wait_for(&stage, &of_a("connections", r#"verdict="allowed""#), 2).await;
    wait_for(&stage, &ok, reported + 9).await;
    // Two requests without a token, and two connections by unknown names.
    wait_for(&stage, &failed, lost + 4).await;
    for metric in ["received_bytes", "sent_bytes"] {
        for by in ["name", "token"] {
            let bytes = stage.xds().metric(&of_a(metric, &format!("by=\"{by}\"")));
            println!("{metric} by {by}: {bytes}");
            assert!((100..100_000).contains(&bytes), "{metric} {by}: {bytes}");
        }
    }
    let mut samples = stage.xds().traffic();
    samples.retain(|sample| !before.contains(sample));
    assert_eq!(samples.len(), 9, "and nothing else: {samples:?}");
    assert!(
        samples.iter().all(|sample| sample.contains("cluster=\"a\"")),
        "{samples:?}"
    );

    let away = stage.clusters[1].clone();
    stage.xds().apply(&away.clone().at(&[], away.port)).await;
    let refused = of_b(of_a("connections", r#"verdict="no_endpoints""#));
    let tried = async || {
        let _ = outside(&stage, 1).await;
        (stage.xds().metric(&refused) > 0).then_some(())
    };
    eventually("the refused connection to be counted", PATIENCE, tried).await;

    stage.xds().delete(&stage.clusters[0]).await;
    let gone = async || {
        let samples = stage.xds().traffic();
        (!samples.iter().any(|sample| sample.contains("cluster=\"a\""))).then_some(())
    };
    eventually("the series of the deleted cluster to disappear", PATIENCE, gone).await;

    let broken = "yoke_ingress_xds_broken_logs_total";
    assert_eq!(stage.xds().metric(broken), 0);
    stage.envoy.kill().await;
    let is_counted = async || (stage.xds().metric(broken) > 0).then_some(());
    eventually("the broken log stream to be counted", PATIENCE, is_counted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_beyond_the_limit_share_series() {
    let stage = Stage::with(&[], |site| site.series = 1).await;
    wait_read(&stage).await;
    for index in [0, 1, 1] {
        assert_eq!(stage.status(&stage.bearer(index)).await, 200);
    }
    let both = async || {
        let samples = stage.xds().traffic();
        let requests: Vec<_> = samples
            .into_iter()
            .filter(|line| line.contains("requests_total"))
            .collect();
        let count = |line: &String| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok());
        (requests.iter().filter_map(count).sum::<u64>() == 3).then_some(requests)
    };
    let (requests, _) = eventually("all requests to be counted", PATIENCE, both).await;
    assert_eq!(requests.len(), 2, "{requests:?}");
    let other = r#"{tenant="",cluster="",id="other","#;
    assert_eq!(
        requests.iter().filter(|line| line.contains(other)).count(),
        1,
        "{requests:?}"
    );
    assert_eq!(stage.xds().metric("yoke_ingress_xds_clusters_sharing_series"), 1);
}

/// A log service that accepts streams and does not read them.
struct Stuck {
    streams: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl AccessLogService for Stuck {
    async fn stream_access_logs(
        &self,
        unread: tonic::Request<Streaming<StreamAccessLogsMessage>>,
    ) -> Result<Response<StreamAccessLogsResponse>, Status> {
        self.streams.fetch_add(1, Ordering::Relaxed);
        std::future::pending::<()>().await;
        drop(unread);
        Ok(Response::new(StreamAccessLogsResponse {}))
    }
}

async fn serve_stuck(listener: TcpListener, site: &Site) -> Arc<AtomicUsize> {
    let streams = Arc::new(AtomicUsize::new(0));
    let service = AccessLogServiceServer::new(Stuck {
        streams: Arc::clone(&streams),
    });
    let (incoming, accepting) = accept(listener, site.tls().await, (), std::future::pending::<()>());
    tokio::spawn(accepting);
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(ReceiverStream::new(incoming)));
    streams
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unread_log_delays_no_authorization() {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let stuck = LOGS.replace("@XDS_PORT@", &port);
    let stage = Stage::with(&[(LOGS, &stuck)], |_| {}).await;
    let streams = serve_stuck(listener, &stage.site).await;
    let bearer = stage.bearer(0);
    let mut pod = stage.client(Http::Two).await;
    let mut stream = watch(&mut pod, &bearer).await;
    let path = format!("https://10.96.0.1/api?{}", "a".repeat(LONG));
    let long = || {
        let request = Request::get(&path).header("authorization", &bearer);
        request.body(axum::body::Body::empty()).unwrap()
    };
    let full = async || {
        for _ in 0..50 {
            assert_eq!(pod.fork().ask(long()).await.unwrap().status, 200);
        }
        (stage.envoy.try_stat(DROPPED).await > Some(0)).then_some(())
    };
    let (_, elapsed) = eventually("Envoy to drop log entries", PATIENCE * 3, full).await;
    println!("dropped after {elapsed:?}");
    let page = stage.envoy.health_page("/stats/prometheus").await;
    assert!(
        page.contains("\nenvoy_access_logs_grpc_access_log_logs_dropped"),
        "to be watched"
    );
    assert!(streams.load(Ordering::Relaxed) > 0, "somebody took the log");

    for _ in 0..50 {
        assert_eq!(pod.fork().ask(long()).await.unwrap().status, 200);
        let mut admin = outside(&stage, 1).await.unwrap();
        assert_eq!(admin.ask(get(None)).await.unwrap().status, 200);
    }
    assert_alive("a watch goes on", &mut stream).await;
    drop((stream, pod));
    // Another log reports the end of connections to the gate.
    wait_for(&stage, "yoke_ingress_xds_held_connections", 0).await;
    assert!(stage.xds().traffic().is_empty(), "nothing was read");
}

/// Unread data of some streams leaves room on the connection for the others.
#[tokio::test(flavor = "multi_thread")]
async fn an_unread_stream_does_not_fill_a_connection() {
    let site = Site::new(6443).await;
    let xds = site.start().await;
    xds.list(&[]).await;
    let config = site.ca.client(Some(&site.client_leaf()));
    let mut client = Frames::open(xds.address, SERVER_NAME, &config).await;
    let heard = client.listen(PATIENCE, |frame| frame.kind == WINDOW_UPDATE).await;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let settings = heard.frames.iter().filter(|frame| frame.kind == SETTINGS);
    let mut entries = settings.flat_map(|frame| frame.payload.chunks(6));
    let stream = entries
        .find(|entry| entry[..2] == [0, 4])
        .map(|entry| number(&entry[2..]));
    let more: u32 = heard
        .frames
        .iter()
        .filter(|frame| (frame.kind, frame.stream) == (WINDOW_UPDATE, 0))
        .map(|frame| number(&frame.payload))
        .sum();
    assert_eq!(stream, Some(64 * 1024));
    assert_eq!(65_535 + more, 64 * 64 * 1024, "of all streams");
    drop(client);
    xds.stop().await;
}
