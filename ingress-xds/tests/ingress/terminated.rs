//! Pods' requests through a real Envoy: TLS ends there, and the token determines the cluster of
//! each request.

mod attacks;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use aws_lc_rs::rsa::KeySize;
use axum::body::Body;
use http::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rustls_provider;
use crate::support::api::{ApiServer, WATCH};
use crate::support::client::{Answer, BOTH, Client, Http, get};
use crate::support::envoy::Envoy;
use crate::support::fixtures::{BASE_DOMAIN, ClusterFixture, Signer, claims, cluster};
use crate::support::pki::{Ca, Leaf};
use crate::support::xds::{Site, Xds};
use crate::support::{PATIENCE, eventually};

/// Names with which pods address the API of their own cluster.
pub(crate) const NAMES: [&str; 5] = [
    "10.96.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// An extra name that is in the certificates of both API servers.
pub(crate) const FURTHER: &str = "api.example.org";

/// Two clusters behind one Envoy, as their pods see them.
pub(crate) struct Stage {
    pub(crate) site: Site,
    pub(crate) xds: Option<Xds>,
    pub(crate) envoy: Envoy,
    pub(crate) apis: [ApiServer; 2],
    pub(crate) clusters: [ClusterFixture; 2],
    pub(crate) signers: [Signer; 2],
    pub(crate) root: Ca,
    pub(crate) authorities: [Ca; 2],
    public: Ca,
}

fn ingress_leaf(public: &Ca) -> Leaf {
    public.leaf("ingress", &NAMES)
}

impl Stage {
    async fn new() -> Self {
        Self::with(&[], |_| {}).await
    }

    /// A stage with other texts in Envoy's bootstrap, and another site.
    pub(crate) async fn with(changes: &[(&str, &str)], change: impl FnOnce(&mut Site)) -> Self {
        let mut stage = Self::unready(changes, change).await;
        stage.envoy.wait_ready().await;
        // Envoy waits a second for its first connection to the gate, and continues without it where
        // that is allowed.
        eventually("an answer of the authorization server", PATIENCE, async || {
            let mut client = stage.try_client(Http::Two).await.ok()?;
            let answer = client.ask(get(None)).await.ok()?;
            (answer.status == StatusCode::UNAUTHORIZED).then_some(())
        })
        .await;
        stage
    }

    /// A stage whose Envoy is not ready yet.
    pub(crate) async fn unready(changes: &[(&str, &str)], change: impl FnOnce(&mut Site)) -> Self {
        rustls_provider();
        let root = Ca::new("root");
        let names = [&NAMES[1..], &[BASE_DOMAIN]].concat();
        let public = root.permitting("public", &names, NAMES[0].parse().unwrap());
        let signers = [Signer::rsa(KeySize::Rsa2048), Signer::p256()];
        let mut clusters = [cluster("a", "bcdfghjk24"), cluster("b", "zzzzzzzz24")];
        let authorities = [root.under("a-ca"), root.under("b-ca")];
        for ((cluster, signer), ca) in clusters.iter_mut().zip(&signers).zip(&authorities) {
            cluster.config.service_account_keys = vec![signer.pem.clone()];
            cluster.config.upstream.ca.clone_from(&ca.pem);
            cluster.config.client_ca.clone_from(&ca.pem);
        }
        let leaf = |index: usize| {
            let config = &clusters[index].config;
            let names = [
                config.upstream.server_name.as_str(),
                config.public_name.as_str(),
                FURTHER,
            ];
            authorities[index].leaf("apiserver", &names)
        };
        let first: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let api_a = ApiServer::start("a", first, &authorities[0], &leaf(0)).await;
        let port = api_a.address.port();
        let second = SocketAddr::from(([127, 0, 0, 3], port));
        let api_b = ApiServer::start("b", second, &authorities[1], &leaf(1)).await;
        let [a, b] = clusters;
        let clusters = [a.at(&["127.0.0.2"], port), b.at(&["127.0.0.3"], port)];
        let mut site = Site::new(port).await;
        site.certificate = Some(ingress_leaf(&public));
        site.activator = Some(public.leaf("sleeper", &[&format!("*.{BASE_DOMAIN}")]));
        change(&mut site);
        let xds = site.start().await;
        xds.list(&clusters.each_ref()).await;
        let envoy = Envoy::start_with(site.address, &site.client_leaf(), &site.ca.pem, changes).await;
        Self {
            site,
            xds: Some(xds),
            envoy,
            apis: [api_a, api_b],
            clusters,
            signers,
            root,
            authorities,
            public,
        }
    }

    pub(crate) fn xds(&self) -> &Xds {
        self.xds.as_ref().unwrap()
    }

    pub(crate) async fn client(&self, http: Http) -> Client {
        self.client_by(NAMES[0], http).await
    }

    pub(crate) async fn try_client(&self, http: Http) -> std::io::Result<Client> {
        Client::connect(self.envoy.ingress, NAMES[0], &self.root.client(None), http).await
    }

    async fn client_by(&self, name: &str, http: Http) -> Client {
        let config = self.root.client(None);
        Client::connect(self.envoy.ingress, name, &config, http).await.unwrap()
    }

    fn issuer(&self, index: usize) -> String {
        self.clusters[index].config.issuer.clone()
    }

    /// The `authorization` header of a pod in one of the clusters.
    pub(crate) fn bearer(&self, index: usize) -> String {
        let issuer = self.issuer(index);
        let claims = claims(&issuer, &[&issuer], Timestamp::now().as_second());
        format!("Bearer {}", self.signers[index].token(&claims))
    }

    pub(crate) fn requests(&self) -> [usize; 2] {
        self.apis.each_ref().map(ApiServer::requests)
    }

    pub(crate) async fn status(&self, authorization: &str) -> StatusCode {
        let mut client = self.client(Http::Two).await;
        client.ask(get(Some(authorization))).await.unwrap().status
    }

    async fn wait_status(&self, authorization: &str, expected: StatusCode) -> Duration {
        let what = format!("the answer {expected}");
        let check = async || (self.status(authorization).await == expected).then_some(());
        eventually(&what, PATIENCE, check).await.1
    }
}

/// Asserts that an answer is a Kubernetes `Status` with this code and reason.
pub(crate) fn assert_status(rule: &str, answer: &Answer, code: u16, reason: &str) {
    assert_eq!(answer.status, code, "{rule}: {answer:?}");
    let body = &answer.body;
    assert_eq!(
        (&body["kind"], &body["apiVersion"]),
        (&json!("Status"), &json!("v1")),
        "{rule}: {answer:?}"
    );
    assert_eq!(
        (&body["code"], &body["reason"]),
        (&json!(code), &json!(reason)),
        "{rule}: {answer:?}"
    );
    assert_eq!(body["status"], "Failure", "{rule}: {answer:?}");
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/json", "{rule}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_token_leads_to_its_cluster() {
    let stage = Stage::new().await;
    for name in NAMES {
        for http in BOTH {
            let mut client = stage.client_by(name, http).await;
            for (index, expected) in ["a", "b"].into_iter().enumerate() {
                let bearer = stage.bearer(index);
                let answer = client.ask(get(Some(&bearer))).await.unwrap();
                assert_eq!(answer.status, StatusCode::OK, "{name} {http:?}: {answer:?}");
                let told = &answer.body;
                assert_eq!(told["cluster"], expected, "{name} {http:?}");
                let version = if http == Http::One { "HTTP/1.1" } else { "HTTP/2.0" };
                assert_eq!(
                    told["version"], version,
                    "an upgrade can pass, and so can many requests at once"
                );
                assert_eq!(told["certificate"], false, "no identity of the ingress's own is shown");
                let uri = told["uri"].as_str().unwrap();
                assert!(uri.ends_with("/api/v1/namespaces?limit=500"), "{uri}");
                let headers = told["headers"].as_object().unwrap();
                assert_eq!(headers["authorization"], bearer.as_str());
                let source = headers["x-forwarded-for"].as_str().unwrap();
                assert!(source.parse::<IpAddr>().is_ok(), "one address: {source}");
                let ours: Vec<_> = headers.keys().filter(|key| key.starts_with("x-yoke")).collect();
                assert!(ours.is_empty(), "{ours:?}");
            }
        }
    }
    let (line, _) = eventually("the line in the access log", PATIENCE, async || {
        let lines = stage.envoy.access_log();
        lines.into_iter().find(|line| line["cluster"] == "b")
    })
    .await;
    assert_eq!(
        (&line["verdict"], &line["tenant"]),
        (&json!("allowed"), &json!("tenant")),
        "{line}"
    );
    let told = line.to_string();
    assert!(
        !told.contains("Bearer") && !told.contains("limit=500"),
        "nothing secret is logged: {told}"
    );
    assert_eq!(
        stage
            .xds()
            .metric("yoke_ingress_xds_request_verdicts_total{verdict=\"allowed\"}"),
        20
    );
}

/// Each request is decided, not each connection.
#[tokio::test(flavor = "multi_thread")]
async fn requests_on_one_connection_are_decided_one_by_one() {
    let stage = Stage::new().await;
    let bearers = [stage.bearer(0), stage.bearer(1)];
    for http in BOTH {
        let mut client = stage.client(http).await;
        for round in 0..20 {
            for (index, expected) in ["a", "b"].into_iter().enumerate() {
                let answer = client.ask(get(Some(&bearers[index]))).await.unwrap();
                assert_eq!(answer.body["cluster"], expected, "{http:?} {round}");
                let answer = client.ask(get(None)).await.unwrap();
                assert_status("none after a good one", &answer, 401, "Unauthorized");
                let wrong = format!("{}x", bearers[index]);
                let answer = client.ask(get(Some(&wrong))).await.unwrap();
                assert_status("a bad one after a good one", &answer, 401, "Unauthorized");
            }
        }
    }
    let client = stage.client(Http::Two).await;
    let at_once = (0..100).map(|number| {
        let mut client = client.fork();
        let bearer = bearers[number % 2].clone();
        async move { client.ask(get(Some(&bearer))).await.unwrap().body["cluster"].clone() }
    });
    let answers = futures::future::join_all(at_once).await;
    let expected: Vec<_> = (0..100)
        .map(|number| json!(if number % 2 == 0 { "a" } else { "b" }))
        .collect();
    assert_eq!(answers, expected, "at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_pass() {
    let stage = Stage::new().await;
    for protocol in ["websocket", "SPDY/3.1"] {
        for (index, allowed) in [(0, true), (1, true), (0, false)] {
            let mut client = stage.client(Http::One).await;
            let bearer = stage.bearer(index);
            let mut request = get(allowed.then_some(&bearer));
            let headers = request.headers_mut();
            headers.insert(header::CONNECTION, "Upgrade".parse().unwrap());
            headers.insert(header::UPGRADE, protocol.parse().unwrap());
            headers.insert("sec-websocket-version", "13".parse().unwrap());
            headers.insert("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
            let response = client.send(request).await.unwrap();
            if !allowed {
                assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{protocol}");
                continue;
            }
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS, "{protocol}");
            let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
            for text in ["one", "two"] {
                stream.write_all(text.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                let mut heard = vec![0; text.len()];
                let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut heard)).await;
                read.unwrap().unwrap();
                assert_eq!(heard, text.as_bytes(), "{protocol}");
            }
        }
    }
}

/// A watch that receives lines continuously.
pub(crate) async fn watch(client: &mut Client, bearer: &str) -> axum::body::BodyDataStream {
    let request = Request::get(format!("https://10.96.0.1{WATCH}")).header("authorization", bearer);
    let response = client.send(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    Body::new(response.into_body()).into_data_stream()
}

pub(crate) async fn assert_alive(rule: &str, stream: &mut axum::body::BodyDataStream) {
    use futures::StreamExt as _;
    // Data that was in flight before is read first.
    for _ in 0..20 {
        let next = tokio::time::timeout(PATIENCE, stream.next()).await;
        let next = next.unwrap_or_else(|_| panic!("{rule}: silent"));
        next.unwrap_or_else(|| panic!("{rule}: ended")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_certificate_cuts_no_connection() {
    let stage = Stage::new().await;
    let mut streams = Vec::new();
    for http in BOTH {
        let mut client = stage.client(http).await;
        let first = client.certificate.clone();
        streams.push((watch(&mut client, &stage.bearer(0)).await, client, first));
    }
    let renewed = ingress_leaf(&stage.public);
    stage.xds().show(&renewed).await;
    let (_, elapsed) = eventually("the new certificate", PATIENCE, async || {
        let client = stage.client(Http::One).await;
        (client.certificate != streams[0].2).then_some(())
    })
    .await;
    println!("shown after {elapsed:?}");

    // Invalid text, and a key that does not match: the last good certificate stays.
    for bad in [
        Leaf {
            certificate: "PEM".into(),
            key: renewed.key.clone(),
        },
        Leaf {
            certificate: renewed.certificate.clone(),
            key: stage.public.leaf("other", &[]).key,
        },
    ] {
        stage.xds().show(&bad).await;
        let seen = async || (stage.xds().metric("yoke_ingress_xds_problems") == 1).then_some(());
        eventually("the unusable certificate to be reported", PATIENCE, seen).await;
        assert_eq!(stage.status(&stage.bearer(1)).await, StatusCode::OK);
    }
    for (stream, ..) in &mut streams {
        assert_alive("after the rotation", stream).await;
    }
    assert_eq!(
        stage
            .xds()
            .metric("yoke_ingress_xds_refused_responses_total{type=\"secret\"}"),
        0
    );
}

/// Changes of one cluster, and added or removed clusters, do not interrupt open watches of others.
#[tokio::test(flavor = "multi_thread")]
async fn changes_of_one_cluster_cut_no_request_of_others() {
    let stage = Stage::new().await;
    let [a, b] = [stage.bearer(0), stage.bearer(1)];
    let mut client = stage.client(Http::Two).await;
    let mut stream = watch(&mut client, &a).await;
    let fixture = &stage.clusters[1];
    for round in 0..10 {
        stage.xds().delete(fixture).await;
        let gone = stage.wait_status(&b, StatusCode::UNAUTHORIZED).await;
        stage.xds().apply(&fixture.clone().at(&[], fixture.port)).await;
        stage.wait_status(&b, StatusCode::SERVICE_UNAVAILABLE).await;
        stage.xds().apply(fixture).await;
        let served = stage.wait_status(&b, StatusCode::OK).await;
        println!("round {round}: refused after {gone:?}, served after {served:?}");
        assert_alive("all the while", &mut stream).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_key_is_refused_at_once() {
    let stage = Stage::new().await;
    let next = Signer::p256();
    let issuer = stage.issuer(0);
    let claims = claims(&issuer, &[&issuer], Timestamp::now().as_second());
    let (old, new) = (stage.bearer(0), format!("Bearer {}", next.token(&claims)));
    assert_eq!(stage.status(&new).await, StatusCode::UNAUTHORIZED);
    let with_keys = |keys: &[&Signer]| {
        let mut fixture = stage.clusters[0].clone();
        fixture.config.service_account_keys = keys.iter().map(|key| key.pem.clone()).collect();
        fixture
    };
    let sent = "yoke_ingress_xds_responses_total{type=\"cluster\"}";
    let before = stage.xds().metric(sent);
    stage.xds().apply(&with_keys(&[&stage.signers[0], &next])).await;
    stage.wait_status(&new, StatusCode::OK).await;
    assert_eq!(
        stage.status(&old).await,
        StatusCode::OK,
        "both are valid during the rotation"
    );
    stage.xds().apply(&with_keys(&[&next])).await;
    let elapsed = stage.wait_status(&old, StatusCode::UNAUTHORIZED).await;
    println!("refused after {elapsed:?}");
    assert_eq!(stage.status(&new).await, StatusCode::OK);
    assert_eq!(stage.xds().metric(sent), before, "Envoy need not know");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_address_is_answered_with_retry_after() {
    let stage = Stage::new().await;
    let fixture = stage.clusters[0].clone();
    let bearer = stage.bearer(0);
    stage.xds().apply(&fixture.clone().at(&[], fixture.port)).await;
    stage.wait_status(&bearer, StatusCode::SERVICE_UNAVAILABLE).await;
    let answer = stage.client(Http::One).await.ask(get(Some(&bearer))).await.unwrap();
    assert_status("no address", &answer, 503, "ServiceUnavailable");
    assert_eq!(answer.headers[header::RETRY_AFTER], "1");
    // An address without a listener.
    stage
        .xds()
        .apply(&fixture.clone().at(&["127.0.0.9"], fixture.port))
        .await;
    let refused = async || {
        let answer = stage.client(Http::Two).await.ask(get(Some(&bearer))).await.unwrap();
        let lines = stage.envoy.access_log();
        let tried = lines
            .iter()
            .any(|line| line["upstream"].to_string().contains("127.0.0.9"));
        (tried && answer.status == 503).then_some(answer)
    };
    let (answer, _) = eventually("Envoy to try the address", PATIENCE, refused).await;
    assert_status("nobody listens", &answer, 503, "ServiceUnavailable");
    assert_eq!(answer.headers[header::RETRY_AFTER], "1");
    assert_eq!(stage.status(&stage.bearer(1)).await, StatusCode::OK);
}

/// The address of a control plane may pass to another cluster's before the ingress learns of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_of_another_cluster_is_not_trusted() {
    let stage = Stage::new().await;
    let bearer = stage.bearer(1);
    // A verified connection stays in Envoy's pool and must not be used for the other cluster.
    assert_eq!(stage.status(&stage.bearer(0)).await, StatusCode::OK);
    let before = stage.requests();
    let fixture = &stage.clusters[1];
    stage
        .xds()
        .apply(&fixture.clone().at(&["127.0.0.2"], fixture.port))
        .await;
    stage.wait_status(&bearer, StatusCode::SERVICE_UNAVAILABLE).await;
    for http in BOTH {
        let answer = stage.client(http).await.ask(get(Some(&bearer))).await.unwrap();
        assert_status("verified by name", &answer, 503, "ServiceUnavailable");
    }
    assert_eq!(stage.requests()[0], before[0], "A saw none of B's requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_gate_nothing_passes() {
    let mut stage = Stage::new().await;
    let bearer = stage.bearer(0);
    let mut client = stage.client(Http::Two).await;
    let mut stream = watch(&mut client, &bearer).await;
    stage.xds.take().unwrap().stop().await;
    let before = stage.requests();
    for http in BOTH {
        let answer = stage.client(http).await.ask(get(Some(&bearer))).await.unwrap();
        assert_status("the gate is away", &answer, 503, "ServiceUnavailable");
        assert_eq!(answer.headers[header::RETRY_AFTER], "1");
    }
    assert_eq!(stage.requests(), before);
    assert_alive("what was decided goes on", &mut stream).await;
    let xds = stage.site.start().await;
    xds.list(&stage.clusters.each_ref()).await;
    stage.xds = Some(xds);
    let elapsed = stage.wait_status(&bearer, StatusCode::OK).await;
    println!("served again after {elapsed:?}");
    for kind in ["cluster", "endpoints", "secret"] {
        let bytes = format!("yoke_ingress_xds_response_bytes_total{{type=\"{kind}\"}}");
        assert_eq!(stage.xds().metric(&bytes), 0, "{kind}: Envoy has it");
    }
    assert_alive("and is not cut", &mut stream).await;
}

/// Passthrough does not need the certificate, so Envoy does not wait for one.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_nothing_is_terminated() {
    rustls_provider();
    let site = Site::new(6443).await;
    let xds = site.start().await;
    xds.list(&[]).await;
    let mut envoy = Envoy::start(site.address, &site.client_leaf(), &site.ca.pem).await;
    envoy.wait_ready().await;
    let (root, public) = (Ca::new("root"), Ca::new("public"));
    let config = root.client(None);
    assert!(
        Client::connect(envoy.ingress, NAMES[0], &config, Http::One)
            .await
            .is_err()
    );
    xds.show(&ingress_leaf(&public)).await;
    let config = public.client(None);
    let connect = async || Client::connect(envoy.ingress, NAMES[0], &config, Http::One).await.ok();
    let (_, elapsed) = eventually("the certificate", PATIENCE, connect).await;
    println!("shown after {elapsed:?}");
}
