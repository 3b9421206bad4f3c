//! An xDS client other than Envoy: Istio's, in Go, with Envoy's own validation rules for every
//! message (`contract/`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::base::{map, web};
use crate::rustls_provider;
use crate::support::SERVER_NAME;
use crate::support::fixtures::{ClusterFixture, cluster};
use crate::support::pki::Ca;
use crate::support::xds::{Site, Xds};
use crate::support::{PATIENCE, eventually, loopback};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/contract/client.sh");
/// Timeout for building the client when none of its modules is built yet.
const BUILD_LIMIT: Duration = Duration::from_mins(30);
const TYPES: [&str; 5] = [
    "Cluster",
    "ClusterLoadAssignment",
    "Listener",
    "RouteConfiguration",
    "Secret",
];

/// Resource type and name.
type Key = (String, String);

/// One line of the client's output.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    event: String,
    #[serde(rename = "type")]
    kind: String,
    name: String,
    held: BTreeMap<String, String>,
    resources: BTreeMap<String, String>,
    removed: Vec<String>,
    error: String,
    body: Value,
}

/// The client and the resources that it has.
struct Foreign {
    lines: Lines<BufReader<ChildStdout>>,
    served: BTreeMap<Key, Value>,
    /// Output since the last check.
    heard: Vec<Line>,
    log: std::path::PathBuf,
    _process: Child,
    _files: TempDir,
}

impl Foreign {
    /// Connects to the server of `site`, and rejects the resources named `refuse`.
    async fn start(site: &Site, refuse: &str) -> Self {
        let build = tokio::time::timeout(BUILD_LIMIT, Command::new(SCRIPT).status());
        assert!(build.await.unwrap().unwrap().success(), "the client is built");
        let files = TempDir::new().unwrap();
        let leaf = site.client_leaf();
        for (name, text) in [
            ("root-cert.pem", &site.ca.pem),
            ("cert-chain.pem", &leaf.certificate),
            ("key.pem", &leaf.key),
        ] {
            std::fs::write(files.path().join(name), text).unwrap();
        }
        let log = files.path().join("log");
        let mut process = Command::new(SCRIPT)
            .args(["-address", &site.address.to_string(), "-name", SERVER_NAME])
            .arg("-certificates")
            .arg(files.path())
            .args(["-secret", "ingress", "-routes", "web", "-refuse", refuse])
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self {
            lines,
            served: BTreeMap::new(),
            heard: Vec::new(),
            log,
            _process: process,
            _files: files,
        }
    }

    /// Reads output until `enough`.
    async fn wait(&mut self, what: &str, mut enough: impl FnMut(&Self) -> bool) {
        let reading = async {
            while !enough(self) {
                let line = self.lines.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("{what}: the client ended: {}", log(&self.log)));
                let line: Line = serde_json::from_str(&line).unwrap();
                assert!(line.event != "problem", "{what}: {line:?}");
                let key = (line.kind.clone(), line.name.clone());
                match line.event.as_str() {
                    "add" => drop(self.served.insert(key, line.body.clone())),
                    "delete" => drop(self.served.remove(&key)),
                    _ => {}
                }
                self.heard.push(line);
            }
        };
        let done = tokio::time::timeout(PATIENCE, reading).await;
        assert!(
            done.is_ok(),
            "{what}: not yet: {:?}\n{}",
            self.served.keys(),
            log(&self.log)
        );
    }

    /// Waits until the client has exactly these resources.
    async fn wait_names(&mut self, what: &str, expected: &[(&str, &[&str])]) {
        let pairs = expected
            .iter()
            .flat_map(|(kind, names)| names.iter().map(|name| ((*kind).to_owned(), (*name).to_owned())));
        let expected: BTreeSet<_> = pairs.collect();
        self.wait(what, |client| {
            client.served.keys().cloned().collect::<BTreeSet<_>>() == expected
        })
        .await;
    }

    /// Waits until the client has this address for a cluster's public name.
    async fn wait_address(&mut self, public: &str, expected: &str) {
        let what = format!("{public} is at {expected}");
        self.wait(&what, |client| {
            let key = ("ClusterLoadAssignment".to_owned(), format!("name/{public}"));
            let address = "/endpoints/0/lbEndpoints/0/endpoint/address/socketAddress/address";
            client.served.get(&key).and_then(|body| body.pointer(address)) == Some(&expected.into())
        })
        .await;
    }

    /// Resources that were sent since the last check, with their types, and those that were
    /// removed.
    fn sent(&mut self) -> (Vec<Key>, Vec<Key>) {
        let heard = std::mem::take(&mut self.heard);
        let responses = || heard.iter().filter(|line| line.event == "response");
        let with = |line: &Line, name: &String| (line.kind.clone(), name.clone());
        let mut sent: Vec<_> = responses()
            .flat_map(|line| line.resources.keys().map(move |name| with(line, name)))
            .collect();
        let mut removed: Vec<_> = responses()
            .flat_map(|line| line.removed.iter().map(move |name| with(line, name)))
            .collect();
        sent.sort();
        removed.sort();
        (sent, removed)
    }
}

fn log(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn names_of(kinds: &[&str], names: &[&str]) -> Vec<Key> {
    let pairs = kinds.iter().flat_map(|kind| names.iter().map(move |name| (kind, name)));
    pairs
        .map(|(kind, name)| ((*kind).to_owned(), (*name).to_owned()))
        .collect()
}

fn refused(xds: &Xds, kind: &str) -> u64 {
    xds.metric(&format!("yoke_ingress_xds_refused_responses_total{{type=\"{kind}\"}}"))
}

fn assert_nothing_refused(xds: &Xds) {
    for kind in ["cluster", "endpoints", "listener", "routes", "secret"] {
        assert_eq!(refused(xds, kind), 0, "{kind}");
    }
}

async fn stage() -> (Site, [ClusterFixture; 2]) {
    rustls_provider();
    let mut site = Site::new(6443).await;
    site.certificate = Some(Ca::new("public").leaf("ingress", &["kubernetes.default.svc"]));
    let clusters = [cluster("a", "bcdfghjk24"), cluster("b", "zzzzzzzz24")];
    (site, clusters)
}

const OF_A: [&str; 1] = ["name/a-bcdfghjk.yoke.test"];
const OF_B: [&str; 1] = ["name/b-zzzzzzzz.yoke.test"];
const OF_TENANTS: [&str; 2] = ["Cluster", "ClusterLoadAssignment"];
/// The resources without any tenant cluster.
const OWN: [(&str, &[&str]); 5] = [
    ("Cluster", &["one", "two"]),
    ("ClusterLoadAssignment", &["two"]),
    ("Listener", &["web"]),
    ("RouteConfiguration", &["web"]),
    ("Secret", &["ingress"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn istio_client_gets_resources_and_resumes() {
    let (site, [a, b]) = stage().await;
    let public = a.public_name();
    let base = map(&web(9080, loopback(9081), "one"));
    let xds = site.start().await;
    xds.list_with(&[&a, &b], Some(&base)).await;
    let mut client = Foreign::start(&site, "").await;

    assert!(!xds.notice().await.refused);

    // All types, over mutual TLS.
    let both = [&OF_A[..], &OF_B[..]].concat();
    let mut all = OWN.to_vec();
    all.extend(OF_TENANTS.map(|kind| (kind, &both[..])));
    client.wait_names("it has everything", &all).await;
    client.wait_address(&public, "10.0.0.1").await;
    let body = |client: &Foreign, kind: &str, name: &str| client.served[&(kind.to_owned(), name.to_owned())].clone();
    let tls = body(&client, "Cluster", OF_A[0])["transportSocket"]["typedConfig"].clone();
    assert_eq!(tls["sni"], a.config.upstream.server_name.as_str(), "{tls}");
    let names = &tls["commonTlsContext"]["validationContext"]["matchTypedSubjectAltNames"];
    assert_eq!(
        names[0]["matcher"]["exact"],
        a.config.upstream.server_name.as_str(),
        "{tls}"
    );
    let shown = body(&client, "Secret", "ingress")["tlsCertificate"]["certificateChain"]["inlineString"].clone();
    assert_eq!(shown, site.certificate.as_ref().unwrap().certificate.as_str());
    client.sent();

    // A change of one cluster sends only that cluster, and its removal removes only that one.
    let moved = a.clone().at(&["10.0.0.9"], 6443);
    xds.apply(&moved).await;
    client.wait_address(&public, "10.0.0.9").await;
    let change = names_of(&["ClusterLoadAssignment"], &OF_A);
    assert_eq!(client.sent(), (change.clone(), vec![]));
    xds.delete(&b).await;
    let mut left = OWN.to_vec();
    left.extend(OF_TENANTS.map(|kind| (kind, &OF_A[..])));
    client.wait_names("B is gone", &left).await;
    assert_eq!(client.sent(), (vec![], names_of(&OF_TENANTS, &OF_B)));
    assert_nothing_refused(&xds);
    xds.stop().await;

    // The client reports its versions to another server, which sends only what has changed since.
    let xds = site.start().await;
    xds.list_with(&[&moved], Some(&base)).await;
    xds.apply(&a.clone().at(&["10.0.0.10"], 6443)).await;
    client.wait_address(&public, "10.0.0.10").await;
    for kind in TYPES {
        let says = |line: &&Line| line.event == "request" && line.kind == kind && !line.held.is_empty();
        let first = client.heard.iter().find(says);
        let held = first.map(|line| line.held.keys().map(String::as_str).collect::<BTreeSet<_>>());
        let names = left.iter().filter(|(of, _)| *of == kind).flat_map(|(_, names)| *names);
        assert_eq!(held, Some(names.copied().collect()), "{kind}");
    }
    assert_eq!(client.sent(), (change, vec![]));
    assert_nothing_refused(&xds);
    xds.stop().await;

    // Resources that were deleted meanwhile are removed, and nothing is sent.
    let xds = site.start().await;
    xds.list_with(&[], Some(&base)).await;
    client.wait_names("A is gone", &OWN).await;
    assert_eq!(client.sent(), (vec![], names_of(&OF_TENANTS, &OF_A)));
    assert_nothing_refused(&xds);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_resource_of_istios_client_waits_for_a_change() {
    let (site, [a, b]) = stage().await;
    let xds = site.start().await;
    xds.list(&[&a, &b]).await;
    let mut client = Foreign::start(&site, OF_B[0]).await;
    let both = [&OF_A[..], &OF_B[..]].concat();
    let mut all = vec![("Secret", &["ingress"][..])];
    all.extend(OF_TENANTS.map(|kind| (kind, &both[..])));
    client.wait_names("it was sent everything", &all).await;
    let refusals = |client: &Foreign| client.heard.iter().filter(|line| !line.error.is_empty()).count();
    // The Cluster and its endpoints.
    client.wait("both are refused", |client| refusals(client) == 2).await;
    let counted = async |xds: &Xds, expected: u64| {
        eventually("the refused resources to be counted", PATIENCE, async || {
            (refused(xds, "cluster") == expected && refused(xds, "endpoints") == expected).then_some(())
        })
        .await;
    };
    counted(&xds, 1).await;
    client.wait_address(&a.public_name(), "10.0.0.1").await;
    client.sent();

    xds.apply(&a.clone().at(&["10.0.0.9"], 6443)).await;
    client.wait_address(&a.public_name(), "10.0.0.9").await;
    assert_eq!(
        client.sent(),
        (names_of(&["ClusterLoadAssignment"], &OF_A), vec![]),
        "B's are not sent again"
    );
    xds.apply(&b.clone().with_extra_names(&["b.example.org"])).await;
    client.wait("a change is sent", |client| refusals(client) == 2).await;
    counted(&xds, 2).await;
}
