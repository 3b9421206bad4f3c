//! No cluster and no client can take the resources that others need.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use http::{Request, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use yoke_ingress_xds::authz::REFUSAL_DELAY;
use yoke_runtime::budget::Rate;

use crate::support::api::{ENDLESS, LARGE};
use crate::support::client::{BOTH, Client, Http, get};
use crate::support::frames::{DATA, Frame, Frames, RST_STREAM, SETTINGS, WINDOW_UPDATE, fields};
use crate::support::tenant::{hello, open};
use crate::support::{PATIENCE, eventually};
use crate::terminated::{NAMES, Stage, assert_alive, assert_status, watch};

/// How long a test waits for something that should not happen.
const SHORT: Duration = Duration::from_millis(500);
/// Initial flow control window of HTTP/2 in bytes.
const WINDOW: usize = 65_535;

/// A client outside of the cluster: its TLS ends in the API server.
async fn outside(stage: &Stage, index: usize) -> std::io::Result<Client> {
    let name = stage.clusters[index].public_name();
    Client::connect(stage.envoy.ingress, &name, &stage.root.client(None), Http::Two).await
}

/// A client that requests an endless answer, and reads only the initial window of HTTP/2.
async fn stalled(stage: &Stage) -> Frames {
    let mut reader = Frames::open(stage.envoy.ingress, NAMES[0], &stage.root.client(None)).await;
    reader.request(1, &fields(&stage.bearer(0), ENDLESS)).await;
    let mut taken = 0;
    let whole = |frame: &Frame| {
        taken += if frame.kind == DATA { frame.payload.len() } else { 0 };
        taken >= WINDOW || frame.kind == RST_STREAM
    };
    let heard = reader.listen(PATIENCE, whole).await;
    assert_eq!(heard.text(1).len(), WINDOW, "what the window allows comes");
    let more = reader.listen(SHORT, |frame| frame.kind == RST_STREAM).await;
    assert_eq!(more.text(1), "", "and no more");
    reader
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_cluster_are_counted() {
    let stage = Stage::with(&[], |site| site.limits.connections = 3).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(outside(&stage, 0).await.unwrap());
    }
    for _ in 0..3 {
        let error = outside(&stage, 0).await.err().expect("a fourth is closed");
        assert_ne!(error.kind(), ErrorKind::TimedOut);
    }
    assert!(outside(&stage, 1).await.is_ok(), "those of another are its own");
    let mut client = stage.client(Http::Two).await;
    let answer = client.ask(get(Some(&stage.bearer(0)))).await.unwrap();
    assert_eq!(answer.status, 200, "and so are requests of its pods");
    held.pop();
    let again = async || outside(&stage, 0).await.ok();
    eventually("the slot of a closed connection", PATIENCE, again).await;
    for client in &mut held {
        assert_eq!(client.ask(get(None)).await.unwrap().status, 200, "the others live");
    }
    let is_logged = async || {
        let lines = stage.envoy.access_log();
        let refused = lines.iter().filter(|line| line["flags"] == "UO").count();
        (refused >= 3).then_some(())
    };
    eventually("the reason in the access log", PATIENCE, is_logged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_requests_of_one_cluster_are_counted() {
    for http in BOTH {
        let stage = Stage::with(&[], |site| site.limits.requests = 3).await;
        let [a, b] = [stage.bearer(0), stage.bearer(1)];
        let mut held = Vec::new();
        for _ in 0..3 {
            let mut client = stage.client(http).await;
            held.push((watch(&mut client, &a).await, client));
        }
        for other in BOTH {
            let mut client = stage.client(other).await;
            let answer = client.ask(get(Some(&a))).await.unwrap();
            assert_status("a fourth", &answer, 429, "TooManyRequests");
            assert_eq!(answer.headers[header::RETRY_AFTER], "1");
            let answer = client.ask(get(Some(&b))).await.unwrap();
            assert_eq!(answer.status, 200, "of another, on the same connection");
        }
        for (stream, _) in &mut held {
            assert_alive("those that are open", stream).await;
        }
        drop(held);
        let again = async || (stage.status(&a).await == 200).then_some(());
        eventually("the slots of closed connections", PATIENCE, again).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_request_rate_of_a_cluster_is_limited() {
    let rate = Rate {
        per_second: 0,
        burst: 10,
    };
    let stage = Stage::with(&[], |site| site.gate.requests = rate).await;
    let [a, b] = [stage.bearer(0), stage.bearer(1)];
    let mut client = stage.client(Http::Two).await;
    let mut refused = 0;
    for _ in 0..30 {
        // A client without a token of the cluster cannot spend its budget.
        let answer = client.ask(get(Some(&format!("{a}x")))).await.unwrap();
        assert_status("a bad token", &answer, 401, "Unauthorized");
    }
    for _ in 0..30 {
        let answer = client.ask(get(Some(&a))).await.unwrap();
        if answer.status == 200 {
            continue;
        }
        assert_status("too fast", &answer, 429, "TooManyRequests");
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
        refused += 1;
    }
    assert_eq!(refused, 20);
    for _ in 0..5 {
        let answer = client.ask(get(Some(&b))).await.unwrap();
        assert_eq!(answer.body["cluster"], "b", "another is not slowed down");
    }
    let counted = "yoke_ingress_xds_request_verdicts_total{verdict=\"request_rate\"}";
    assert_eq!(stage.xds().metric(counted), refused);
}

/// A client that retries at every refusal is slowed down, and no other client is.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_fast_clients_are_delayed() {
    let rate = Rate {
        per_second: 0,
        burst: 1,
    };
    let stage = Stage::with(&[], |site| {
        (site.gate.requests, site.gate.refusal_delay) = (rate, REFUSAL_DELAY)
    })
    .await;
    let [a, b] = [stage.bearer(0), stage.bearer(1)];
    let mut client = stage.client(Http::Two).await;
    let mut ask = async |bearer: &str| {
        let begun = Instant::now();
        let answer = client.ask(get(Some(bearer))).await.unwrap();
        (answer.status.as_u16(), begun.elapsed())
    };
    let too_fast = async || {
        let (status, taken) = ask(&a).await;
        (status == 429).then_some(taken)
    };
    let (taken, _) = eventually("an answer 429", PATIENCE, too_fast).await;
    assert!(taken >= REFUSAL_DELAY / 2, "{taken:?}");
    assert_eq!(ask(&b).await.0, 200, "another, on the same connection");
}

/// Slow senders, slow readers and idle clients. Watches and execs are idle for hours, and stay
/// open.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_off() {
    let changes = [
        ("idle_timeout: 120s", "idle_timeout: 3s"),
        ("request_timeout: 60s", "request_timeout: 3s"),
        ("stream_flush_timeout: 60s", "stream_flush_timeout: 3s"),
    ];
    let stage = Stage::with(&changes, |_| {}).await;
    let bearer = stage.bearer(0);
    let config = stage.root.client(None);
    let mut other = stage.client(Http::Two).await;
    let mut stream = watch(&mut other, &bearer).await;
    let start = Instant::now();

    let mut idle = open(stage.envoy.ingress, NAMES[0], &config).await.unwrap();
    let mut slow = open(stage.envoy.ingress, NAMES[0], &config).await.unwrap();
    let head = format!("POST /api HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\nContent-Length: 100\r\n\r\n");
    slow.write_all(head.as_bytes()).await.unwrap();
    // A large answer with a closed window: the rest exceeds the window, and fits into Envoy's
    // buffers.
    let mut reader = Frames::open(stage.envoy.ingress, NAMES[0], &config).await;
    reader.request(1, &fields(&bearer, LARGE)).await;

    let mut nothing = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, idle.read_to_end(&mut nothing)).await;
    assert!(ended.is_ok() && nothing.is_empty(), "idle: {nothing:?}");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, slow.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "who sends slowly is not waited for");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let heard = reader.listen(PATIENCE, |frame| frame.kind == RST_STREAM).await;
    let last = heard.frames.last().unwrap();
    assert_eq!((last.kind, last.stream), (RST_STREAM, 1), "who reads slowly is cut off");
    assert_eq!(heard.text(1).len(), WINDOW, "what the window allowed had come");
    println!("cut off after {:?}", start.elapsed());
    assert_alive("a watch stays", &mut stream).await;
}

/// Idle streams end, here sooner than the hours in production; active streams continue.
#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_end() {
    let stage = Stage::with(&[("idle_timeout: 18000s", "idle_timeout: 3s")], |_| {}).await;
    let bearer = stage.bearer(0);
    let (mut pod, mut admin) = (stage.client(Http::Two).await, outside(&stage, 0).await.unwrap());
    let mut streams = [watch(&mut pod, &bearer).await, watch(&mut admin, &bearer).await];
    let mut reader = stalled(&stage).await;
    let name = stage.clusters[0].public_name();
    let mut silent = open(stage.envoy.ingress, &name, &stage.root.client(None))
        .await
        .unwrap();

    let heard = reader.listen(PATIENCE, |frame| frame.kind == RST_STREAM).await;
    assert_eq!(heard.count(RST_STREAM), 1, "who stopped reading is cut off");
    let mut nothing = Vec::new();
    let ended = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut nothing)).await;
    assert!(ended.is_ok() && nothing.is_empty(), "nobody says anything: {nothing:?}");
    for stream in &mut streams {
        assert_alive("a watch stays", stream).await;
    }
}

/// A client that starts a handshake and does not finish it.
#[tokio::test(flavor = "multi_thread")]
async fn an_incomplete_handshake_is_cut_off() {
    let changes = [(
        "transport_socket_connect_timeout: 10s",
        "transport_socket_connect_timeout: 3s",
    )];
    let stage = Stage::with(&changes, |_| {}).await;
    let mut begun = TcpStream::connect(stage.envoy.ingress).await.unwrap();
    begun
        .write_all(&hello(NAMES[0], &stage.root.client(None)))
        .await
        .unwrap();
    let mut answer = Vec::new();
    // A reset closes the connection too.
    let ended = tokio::time::timeout(PATIENCE, begun.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "it ends");
    assert_eq!(answer.first(), Some(&22), "after the ingress's part of the handshake");
}

/// Data that the server does not read, and data that the client does not read, are bounded.
#[tokio::test(flavor = "multi_thread")]
async fn windows_have_a_size() {
    let stage = Stage::with(&[], |_| {}).await;
    let mut client = Frames::open(stage.envoy.ingress, NAMES[0], &stage.root.client(None)).await;
    let heard = client.listen(PATIENCE, |frame| frame.kind == WINDOW_UPDATE).await;
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let settings = heard.frames.iter().filter(|frame| frame.kind == SETTINGS);
    let entries = settings.flat_map(|frame| frame.payload.chunks(6));
    let window = entries.clone().find(|entry| entry[..2] == [0, 4]);
    assert_eq!(window.map(|entry| number(&entry[2..])), Some(65_536), "of a stream");
    let more: u32 = heard
        .frames
        .iter()
        .filter(|frame| (frame.kind, frame.stream) == (WINDOW_UPDATE, 0))
        .map(|frame| number(&frame.payload))
        .sum();
    assert_eq!(65_535 + more, 262_144, "of a connection");

    let _reader = stalled(&stage).await;
    let taken = stage.apis[0].taken();
    println!("{taken} bytes of an endless answer left the control plane");
    assert!(taken < 65_536 + 200_000, "{taken}");
}

/// The requests of all Pods of a cluster share a connection to its control plane.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_blocks_no_other() {
    let stage = Stage::with(&[], |_| {}).await;
    let bearer = stage.bearer(0);
    assert_eq!(stage.status(&bearer).await, 200);
    let _readers = futures::future::join_all((0..60).map(|_| stalled(&stage))).await;
    let mut client = stage.client(Http::Two).await;
    for _ in 0..20 {
        let answer = client.ask(get(Some(&bearer))).await.unwrap();
        assert_eq!(answer.status, 200);
    }
    assert_eq!(stage.apis[0].connections(), 1, "it is one connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn header_size_is_limited() {
    let stage = Stage::with(&[("@MAX_HEADER_KIB@", "8")], |_| {}).await;
    let bearer = stage.bearer(0);
    for http in BOTH {
        for (length, code) in [(6_000, 200), (9_000, 431)] {
            let mut client = stage.client(http).await;
            let request = Request::get("https://10.96.0.1/api")
                .header("authorization", &bearer)
                .header("impersonate-group", "a".repeat(length));
            let answer = client.ask(request.body(axum::body::Body::empty()).unwrap()).await;
            match answer {
                Ok(answer) => assert_eq!(answer.status, code, "{http:?} {length}"),
                // With HTTP/2 the stream is reset.
                Err(error) => assert_eq!((http, code), (Http::Two, 431), "{error}"),
            }
        }
    }
    assert_eq!(stage.requests(), [2, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_in_all_are_counted() {
    let stage = Stage::with(&[("@MAX_CONNECTIONS@", "10")], |_| {}).await;
    let held = "yoke_ingress_xds_held_connections";
    let none = async || (stage.xds().metric(held) == 0).then_some(());
    eventually("the connections of the stage to close", PATIENCE, none).await;
    let mut held = Vec::new();
    // Connections without a name and without data count as well.
    let over = eventually("a refused connection", PATIENCE, async || {
        match stage.try_client(Http::Two).await {
            Ok(client) => held.push(client),
            Err(error) => return Some(error),
        }
        None
    });
    let (error, _) = over.await;
    println!("{} are held: {error}", held.len());
    assert_eq!(held.len(), 10);
    let bearer = stage.bearer(1);
    for client in &mut held {
        assert_eq!(client.ask(get(Some(&bearer))).await.unwrap().status, 200, "each works");
    }
    assert!(stage.envoy.is_ready().await, "probes are not counted");
    held.pop();
    let again = async || stage.try_client(Http::Two).await.ok();
    eventually("the slot of a closed connection", PATIENCE, again).await;
}

/// Close to its memory limit Envoy refuses new connections, so that it is not killed with all the
/// open ones.
#[tokio::test(flavor = "multi_thread")]
async fn memory_is_limited() {
    let stage = Stage::unready(&[("@MAX_HEAP_BYTES@", "1000000")], |_| {}).await;
    for action in [
        "stop_accepting_connections",
        "reduce_timeouts",
        "reset_high_memory_stream",
    ] {
        let state = format!("overload.envoy.overload_actions.{action}.active");
        let active = async || (stage.envoy.try_stat(&state).await == Some(1)).then_some(());
        eventually(action, PATIENCE, active).await;
    }
    let tried = tokio::time::timeout(SHORT, stage.try_client(Http::Two)).await;
    assert!(!matches!(tried, Ok(Ok(_))), "nobody is taken in");
    assert!(!stage.envoy.is_ready_within(SHORT).await, "and no more is sent here");
}
