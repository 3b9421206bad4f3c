//! Allowed source ranges of a cluster, and limits of one source, both for TLS that ends in the API
//! server and for TLS that ends at the ingress.

use std::net::IpAddr;

use tokio::net::TcpStream;
use yoke_runtime::budget::Rate;

use crate::support::client::{BOTH, Client, Http, get};
use crate::support::tenant::connect_from;
use crate::support::{PATIENCE, eventually};
use crate::terminated::{NAMES, Stage, assert_alive, assert_status, watch};

/// A loopback address that is allowed, and one that is not.
const OFFICE: [u8; 4] = [127, 1, 0, 7];
const ELSEWHERE: [u8; 4] = [127, 2, 0, 7];
const RANGE: &str = "127.1.0.0/16";

/// Access from one source address: by a cluster's name, and by requests of its Pods.
struct Source<'a> {
    stage: &'a Stage,
    address: IpAddr,
}

impl Source<'_> {
    async fn connect(&self) -> TcpStream {
        connect_from(self.address, self.stage.envoy.ingress).await.unwrap()
    }

    async fn by_name(&self, index: usize) -> std::io::Result<Client> {
        let name = self.stage.clusters[index].public_name();
        let config = self.stage.root.client(None);
        Client::over(self.connect().await, &name, &config, Http::Two).await
    }

    async fn pod(&self, http: Http) -> Client {
        let config = self.stage.root.client(None);
        Client::over(self.connect().await, NAMES[0], &config, http)
            .await
            .unwrap()
    }

    /// A pod's connection, with the status of its first request.
    async fn try_pod(&self) -> Option<(u16, Client)> {
        let config = self.stage.root.client(None);
        let stream = self.connect().await;
        let mut client = Client::over(stream, NAMES[0], &config, Http::Two).await.ok()?;
        let answer = client.ask(get(Some(&self.stage.bearer(0)))).await.ok()?;
        Some((answer.status.as_u16(), client))
    }

    /// Waits for a line of the access log about the address, for either kind of connection.
    async fn wait_logged(&self, verdict: &str, named: bool) {
        let address = self.address.to_string();
        let logged = async || {
            let lines = self.stage.envoy.access_log();
            let mut of_it = lines.iter().filter(|line| line["source"] == address.as_str());
            of_it
                .any(|line| line["verdict"] == verdict && line["sni"].is_string() == named)
                .then_some(())
        };
        eventually("the reason in the access log", PATIENCE, logged).await;
    }

    async fn status(&self, index: usize) -> u16 {
        let bearer = self.stage.bearer(index);
        let answer = self.pod(Http::Two).await.ask(get(Some(&bearer))).await;
        answer.unwrap().status.as_u16()
    }

    async fn wait(&self, index: usize, allowed: bool) {
        let changed = async || {
            let named = self.by_name(index).await.is_ok() == allowed;
            let asked = self.status(index).await == if allowed { 200 } else { 403 };
            (named && asked).then_some(())
        };
        eventually("the decision on both paths", PATIENCE, changed).await;
    }
}

fn sources(stage: &Stage) -> [Source<'_>; 2] {
    [OFFICE, ELSEWHERE].map(|address| Source {
        stage,
        address: address.into(),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_reachable_from_its_allowed_sources() {
    let stage = Stage::with(&[], |_| {}).await;
    let [office, elsewhere] = sources(&stage);
    let open = stage.clusters[0].clone();
    for source in [&office, &elsewhere] {
        source.wait(0, true).await;
    }
    // Both connections are open when the ranges change.
    let mut held = elsewhere.by_name(0).await.unwrap();
    let mut pod = elsewhere.pod(Http::Two).await;
    let bearer = stage.bearer(0);
    let mut stream = watch(&mut pod, &bearer).await;

    stage.xds().apply(&open.clone().reached_from(&[RANGE])).await;
    elsewhere.wait(0, false).await;
    office.wait(0, true).await;
    let before = stage.requests();
    for http in BOTH {
        let answer = elsewhere.pod(http).await.ask(get(Some(&bearer))).await.unwrap();
        assert_status("from elsewhere", &answer, 403, "Forbidden");
        let answer = elsewhere.pod(http).await.ask(get(None)).await.unwrap();
        assert_status("who has no token learns nothing", &answer, 401, "Unauthorized");
    }
    assert_eq!(stage.requests(), before, "nobody was reached");
    let answer = pod.ask(get(Some(&bearer))).await.unwrap();
    assert_status("the next request on a connection", &answer, 403, "Forbidden");
    assert_alive("a watch that is open goes on", &mut stream).await;
    assert_eq!(
        held.ask(get(None)).await.unwrap().status,
        200,
        "and so does a connection"
    );
    assert!(elsewhere.by_name(1).await.is_ok(), "another cluster is as it was");
    assert_eq!(elsewhere.status(1).await, 200);
    let name = open.public_name();
    let (line, _) = eventually("the reason in the access log", PATIENCE, async || {
        let lines = stage.envoy.access_log();
        lines
            .into_iter()
            .find(|line| line["verdict"] == "source_not_allowed" && line["sni"] == name)
    })
    .await;
    assert_eq!(line["source"], "127.2.0.7", "{line}");
    assert_eq!(line["cluster"], "a", "{line}");

    stage.xds().apply(&open.clone().reached_from(&[])).await;
    office.wait(0, false).await;
    stage
        .xds()
        .apply(&open.clone().reached_from(&["198.51.100.0/24", "127.2.0.7/32"]))
        .await;
    elsewhere.wait(0, true).await;
    office.wait(0, false).await;
    stage.xds().apply(&open).await;
    office.wait(0, true).await;
    let sent = "yoke_ingress_xds_response_bytes_total{type=\"cluster\"}";
    let told = stage.xds().metric(sent);
    stage.xds().apply(&open.clone().reached_from(&[RANGE])).await;
    elsewhere.wait(0, false).await;
    assert_eq!(stage.xds().metric(sent), told, "Envoy need not know");
}

/// An unknown source address is refused, not allowed.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_ranges_admit_nobody() {
    let stage = Stage::with(&[], |_| {}).await;
    let [office, _] = sources(&stage);
    let fixture = stage.clusters[0].clone().reached_from(&[RANGE]);
    stage.xds().apply(&fixture).await;
    office.wait(0, true).await;
    let mut map = fixture.config_map();
    for text in map.data.as_mut().unwrap().values_mut() {
        assert!(text.contains(RANGE));
        *text = text.replace(RANGE, "127.1.0.1/16");
    }
    stage.xds().apply_map(map).await;
    let closed = async || office.by_name(0).await.is_err().then_some(());
    eventually("the name to be closed", PATIENCE, closed).await;
    assert_eq!(office.status(0).await, 401, "and its tokens are nobody's");
    assert_eq!(stage.xds().metric("yoke_ingress_xds_problems"), 1);
    assert!(office.by_name(1).await.is_ok());
}

/// One source cannot take what all share, for either kind of connection.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_rate_of_a_source_is_limited() {
    let rate = Rate {
        per_second: 1,
        burst: 10,
    };
    let stage = Stage::with(&[], |site| site.gate.source = rate).await;
    let [office, elsewhere] = sources(&stage);
    let (mut tries, mut named, mut pods) = (0, 0, 0);
    eventually("refusals on both paths", PATIENCE, async || {
        tries += 2;
        named += u64::from(office.by_name(0).await.is_err());
        pods += u64::from(office.try_pod().await.is_none());
        (named >= 5 && pods >= 5).then_some(())
    })
    .await;
    assert!(tries - named - pods >= 10, "{named} {pods} of {tries}");
    let counted = "yoke_ingress_xds_gate_verdicts_total{verdict=\"source_rate\"}";
    assert_eq!(stage.xds().metric(counted), named + pods);
    for named in [true, false] {
        office.wait_logged("source_rate", named).await;
    }
    assert!(elsewhere.by_name(0).await.is_ok(), "another has its own");
    assert_eq!(elsewhere.try_pod().await.map(|(status, _)| status), Some(200));
    let again = async || office.try_pod().await;
    eventually("the source to be admitted again", PATIENCE, again).await;
}

/// The open connections of one source count until they end, for either kind of connection.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_one_source_are_counted() {
    let stage = Stage::with(&[], |site| site.gate.source_connections = 4).await;
    let [office, elsewhere] = sources(&stage);
    let (mut named, mut pods) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        named.push(office.by_name(0).await.unwrap());
        pods.push(office.try_pod().await.unwrap().1);
    }
    assert!(office.by_name(0).await.is_err(), "a fifth is closed");
    assert!(office.try_pod().await.is_none(), "and so is a pod's");
    let counted = "yoke_ingress_xds_gate_verdicts_total{verdict=\"source_connections\"}";
    assert_eq!(stage.xds().metric(counted), 2);
    for named in [true, false] {
        office.wait_logged("source_connections", named).await;
    }
    assert!(elsewhere.by_name(0).await.is_ok(), "another has its own");
    assert_eq!(elsewhere.try_pod().await.map(|(status, _)| status), Some(200));
    let bearer = stage.bearer(0);
    for client in named.iter_mut().chain(&mut pods) {
        assert_eq!(
            client.ask(get(Some(&bearer))).await.unwrap().status,
            200,
            "the others live"
        );
    }
    named.pop();
    let again = async || office.try_pod().await;
    let ((_, pod), _) = eventually("the slot of a closed connection", PATIENCE, again).await;
    assert!(office.by_name(0).await.is_err(), "for one");

    let held = "yoke_ingress_xds_held_connections";
    let known = async |count| (stage.xds().metric(held) == count).then_some(());
    eventually("four counted connections", PATIENCE, async || known(4).await).await;
    pods.clear();
    eventually("two counted connections", PATIENCE, async || known(2).await).await;
    drop((named, pod));
    eventually("no counted connection", PATIENCE, async || known(0).await).await;
}

/// An Envoy that is gone cannot report the end of its connections.
#[tokio::test(flavor = "multi_thread")]
async fn connections_of_a_lost_envoy_are_forgotten() {
    let stage = Stage::with(&[], |_| {}).await;
    let [office, _] = sources(&stage);
    drop(office.by_name(0).await.unwrap());
    let _held = (office.by_name(0).await.unwrap(), office.try_pod().await.unwrap());
    let held = "yoke_ingress_xds_held_connections";
    let two = async || (stage.xds().metric(held) == 2).then_some(());
    eventually("two counted connections", PATIENCE, two).await;
    let Stage { xds, envoy, .. } = stage;
    drop(envoy);
    let none = async || (xds.as_ref().unwrap().metric(held) == 0).then_some(());
    eventually("no counted connection", PATIENCE, none).await;
}
