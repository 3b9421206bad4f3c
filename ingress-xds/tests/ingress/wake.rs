//! Sleeping clusters: the activator answers their clients in place of the API server, and wakes a
//! cluster for its own clients.

mod activators;
mod agents;
mod limits;
mod places;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::body::Body;
use http::{Request, StatusCode};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use yoke_api::ingress::{Asleep, Callers, IgnoredAgents};

use crate::support::api::WATCH;
use crate::support::client::{Answer, BOTH, Client, Http, get};
use crate::support::envoy::find;
use crate::support::fixtures::{ClusterFixture, Signer, claims, since, waking};
use crate::support::pki::{CLIENT, Leaf, SERVER};
use crate::support::tenant::open_over;
use crate::support::xds::Site;
use crate::support::{PATIENCE, eventually};
use crate::terminated::Stage;

/// Arguments of kubectl. `get namespaces` first requests the API's resources, and shows no `Status`
/// of that request.
const ASKED: [&[&str]; 2] = [&["get", "--raw", "/api/v1/namespaces"], &["get", "namespaces"]];

fn on_connect(callers: Callers) -> Asleep {
    ignoring(callers, &[])
}

/// The sleep state of a cluster that ignores some user agents.
fn ignoring(callers: Callers, agents: &[&str]) -> Asleep {
    Asleep::OnConnect {
        callers,
        ignored_agents: IgnoredAgents(agents.iter().map(ToString::to_string).collect()),
        since: since(),
        uid: "u-1".into(),
    }
}

/// The sleep state of a cluster that began to wake just now.
fn woken(problem: Option<&str>) -> Asleep {
    waking(Time(Timestamp::now()), problem)
}

/// Both clusters of a stage; the first is asleep.
struct Night {
    stage: Stage,
    a: ClusterFixture,
    /// Number of requests to the API servers before the sleep.
    before: [usize; 2],
}

impl Night {
    async fn new(told: Asleep) -> Self {
        Self::at(told, |_| {}).await
    }

    /// A night with a changed site.
    async fn at(told: Asleep, change: impl FnOnce(&mut Site)) -> Self {
        let stage = Stage::with(&[], change).await;
        let a = stage.clusters[0].clone();
        let mut night = Self {
            stage,
            a,
            before: [0; 2],
        };
        night.tell(Some(told)).await;
        let name = night.a.public_name();
        eventually("an answer of the activator", PATIENCE, async || {
            let answer = night
                .try_ask(&name, &night.stage.root.client(None), Http::One, None)
                .await;
            answer.ok().filter(|answer| {
                answer
                    .headers
                    .get("content-type")
                    .is_some_and(|kind| kind == "application/json")
            })
        })
        .await;
        while night.stage.xds().has_woken().await {}
        night.before = night.stage.requests();
        night
    }

    /// Number of requests to the API servers since the sleep began.
    fn requests(&self) -> [usize; 2] {
        let now = self.stage.requests();
        [now[0] - self.before[0], now[1] - self.before[1]]
    }

    /// The operator publishes another sleep state of the cluster.
    async fn tell(&self, told: Option<Asleep>) {
        let cluster = match told {
            // The pod has an address before its API answers.
            Some(told) => self.a.clone().asleep(told),
            None => self.a.clone(),
        };
        self.stage.xds().apply(&cluster).await;
    }

    /// Waits until unauthenticated clients are refused again.
    async fn sleep(&self) {
        self.tell(Some(on_connect(Callers::Authenticated))).await;
        let nobody = self.stage.root.client(None);
        eventually("the cluster to be asleep", PATIENCE, async || {
            let answer = self.try_ask(&self.a.public_name(), &nobody, Http::One, None).await;
            answer.ok().filter(|answer| answer.status == StatusCode::UNAUTHORIZED)
        })
        .await;
        while self.stage.xds().has_woken().await {}
    }

    /// Wakes the cluster as an operator does after a wake request.
    async fn wake_up(&self) {
        self.stage.xds().wake().await;
        self.tell(Some(woken(None))).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.tell(None).await;
    }

    fn with(&self, leaf: &Leaf) -> ClientConfig {
        self.stage.root.client(Some(leaf))
    }

    fn admin(&self) -> ClientConfig {
        self.with(&self.stage.authorities[0].leaf("yoke:admin", &[]))
    }

    async fn try_ask(
        &self,
        name: &str,
        config: &ClientConfig,
        http: Http,
        bearer: Option<&str>,
    ) -> std::io::Result<Answer> {
        let mut client = Client::connect(self.stage.envoy.ingress, name, config, http).await?;
        client.ask(get(bearer)).await.map_err(std::io::Error::other)
    }

    async fn ask(&self, config: &ClientConfig, http: Http, bearer: Option<&str>) -> Answer {
        let name = self.a.public_name();
        self.try_ask(&name, config, http, bearer).await.unwrap()
    }

    /// A token of one of the clusters, with other claims.
    fn token(&self, index: usize, change: impl FnOnce(&mut serde_json::Value)) -> String {
        let issuer = self.stage.clusters[index].config.issuer.clone();
        let mut claims = claims(&issuer, &[&issuer], Timestamp::now().as_second());
        change(&mut claims);
        format!("Bearer {}", self.stage.signers[index].token(&claims))
    }
}

/// A token as an OIDC provider issues it.
fn foreign_token(header: serde_json::Value) -> String {
    let claims = json!({"iss": "https://login.example.org", "aud": "kubernetes", "exp": i64::MAX, "sub": "alice"});
    let encode = |part: &serde_json::Value| data_encoding::BASE64URL_NOPAD.encode(part.to_string().as_bytes());
    format!("Bearer {}.{}.c2lnbmF0dXJl", encode(&header), encode(&claims))
}

/// The answer, possibly of a later try: Envoy may be the last to learn that the cluster is awake.
async fn ask_again(pod: &mut Client, request: impl Fn() -> Request<Body>) -> Answer {
    let answered = eventually("an answer of the API", PATIENCE, async || {
        let answer = pod.ask(request()).await.unwrap();
        let comes_again = answer.status == StatusCode::SERVICE_UNAVAILABLE && told(&answer).1.is_some();
        (!comes_again).then_some(answer)
    });
    answered.await.0
}

fn told(answer: &Answer) -> (StatusCode, Option<&str>) {
    let mut retry = answer.headers.get_all("retry-after").iter();
    let first = retry.next().map(|value| value.to_str().unwrap());
    assert_eq!(retry.next(), None, "it is said once");
    (answer.status, first)
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_clients_wake_nothing() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let [a, b] = &night.stage.authorities;
    let nobody = night.stage.root.client(None);
    let admin = "yoke:admin";
    for http in BOTH {
        for (rule, config, bearer) in [
            ("nothing", nobody.clone(), None),
            ("certificate of B", night.with(&b.leaf(admin, &[])), None),
            (
                "of the root itself",
                night.with(&night.stage.root.leaf(admin, &[])),
                None,
            ),
            (
                "by a CA under A, of which there is none",
                night.with(&a.under("j").leaf(admin, &[])),
                None,
            ),
            ("of A, expired", night.with(&a.valid(admin, 2000, CLIENT)), None),
            ("of A, not valid yet", night.with(&a.valid(admin, 2100, CLIENT)), None),
            ("of A, a server's", night.with(&a.valid(admin, 2020, SERVER)), None),
            (
                "signed by B for A",
                nobody.clone(),
                Some(night.token(1, |claims| claims["iss"] = night.a.config.issuer.clone().into())),
            ),
            (
                "of A, expired",
                nobody.clone(),
                Some(night.token(0, |claims| claims["exp"] = 1.into())),
            ),
            (
                "for konnectivity",
                nobody.clone(),
                Some(night.token(0, |claims| claims["aud"] = json!(["system:konnectivity-server"]))),
            ),
            ("a password", nobody.clone(), Some("Basic YTpi".into())),
        ] {
            let answer = night.ask(&config, http, bearer.as_deref()).await;
            assert_eq!(told(&answer), (StatusCode::UNAUTHORIZED, None), "{rule}, {http:?}");
            assert_eq!(answer.body["kind"], "Status", "{rule}, {http:?}");
        }
        // First callers whose credentials only the cluster can verify, for whom a retry does not
        // help; then authenticated callers that do not wake it.
        for (rule, config, bearer) in [
            ("token of another issuer", nobody.clone(), Some(night.token(1, |_| {}))),
            (
                "by an algorithm that clusters do not have",
                nobody.clone(),
                Some(foreign_token(json!({"alg": "PS512"}))),
            ),
            (
                "the token of a Secret",
                nobody.clone(),
                Some(night.token(0, |claims| {
                    *claims = json!({"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot"});
                })),
            ),
            (
                "a bootstrap token",
                nobody.clone(),
                Some("Bearer abcdef.0123456789abcdef".into()),
            ),
        ] {
            let answer = night.ask(&config, http, bearer.as_deref()).await;
            assert_eq!(
                told(&answer),
                (StatusCode::SERVICE_UNAVAILABLE, None),
                "{rule}, {http:?}"
            );
        }
        for (rule, config, bearer) in [
            (
                "no service account's",
                nobody.clone(),
                Some(night.token(0, |claims| claims["sub"] = "alice".into())),
            ),
            (
                "nobody's",
                nobody.clone(),
                Some(night.token(0, |claims| {
                    claims.as_object_mut().unwrap().remove("sub");
                })),
            ),
            ("a node", night.with(&a.leaf("system:node:worker", &[])), None),
            ("the operator", night.with(&a.leaf("yoke:operator", &[])), None),
            (
                "a controller",
                nobody.clone(),
                Some(night.token(0, |claims| {
                    claims["sub"] = "system:serviceaccount:kube-system:coredns".into();
                })),
            ),
        ] {
            let answer = night.ask(&config, http, bearer.as_deref()).await;
            let expected = (StatusCode::SERVICE_UNAVAILABLE, Some("10"));
            assert_eq!(told(&answer), expected, "{rule}, {http:?}");
        }
    }
    assert!(!night.stage.xds().has_woken().await);
    assert_eq!(night.requests(), [0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_wake_once_and_reach_the_api() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let (admin, token) = (night.admin(), night.token(0, |_| {}));
    let nobody = night.stage.root.client(None);
    let soon = (StatusCode::SERVICE_UNAVAILABLE, Some("1"));
    let (ingress, name) = (night.stage.envoy.ingress, night.a.public_name());
    let callers = (0..100).map(|number| {
        let (http, name) = (BOTH[number % 2], name.as_str());
        let (config, bearer) = match number % 4 {
            0 | 1 => (&admin, None),
            _ => (&nobody, Some(token.as_str())),
        };
        async move { (Client::connect(ingress, name, config, http).await.unwrap(), bearer) }
    });
    // After some seconds the wake request would be repeated, and handshakes may take as long.
    let callers = futures::future::join_all(callers).await.into_iter();
    let calls = callers.map(async |(mut client, bearer)| told(&client.ask(get(bearer)).await.unwrap()).0);
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(|status| *status == soon.0), "{answers:?}");
    let wake = night.stage.xds().wake().await;
    assert_eq!((wake.tenant.as_str(), wake.cluster.as_str()), ("tenant", "a"));
    assert_eq!(wake.uid, "u-1");
    assert!(wake.time.0 > since().0);
    assert!(!night.stage.xds().has_woken().await, "once");

    night.tell(Some(woken(None))).await;
    eventually("the answer of a waking cluster", PATIENCE, async || {
        (told(&night.ask(&nobody, Http::One, None).await) == soon).then_some(())
    })
    .await;
    assert_eq!(night.requests(), [0, 0], "an address is no API");
    night.tell(None).await;
    eventually("an answer of the API", PATIENCE, async || {
        let answer = night.ask(&admin, Http::Two, None).await;
        (answer.status == StatusCode::OK && answer.body["cluster"] == "a").then_some(())
    })
    .await;
    assert_eq!(night.requests()[1], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_may_wake_is_answered_when_awake() {
    for http in BOTH {
        let night = Night::new(on_connect(Callers::Authenticated)).await;
        let admin = night.admin();
        let asking = async {
            // On a busy machine the wake takes longer than the maximum wait.
            let mut answer = night.ask(&admin, http, None).await;
            let awake = "the cluster was asleep and is awake now; retry";
            while answer.body["message"] != awake {
                assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")), "{http:?}");
                answer = night.ask(&admin, http, None).await;
            }
            assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")), "{http:?}");
            eventually("Envoy to lead to the API", PATIENCE, async || {
                let answer = night.ask(&admin, http, None).await;
                (answer.status == StatusCode::OK).then_some(answer)
            })
            .await
        };
        let waking = async {
            night.stage.xds().wake().await;
            night.tell(Some(woken(None))).await;
            night.tell(None).await;
        };
        let ((answer, _), ()) = tokio::join!(asking, waking);
        assert_eq!(answer.body["cluster"], "a", "{http:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waited_retries_at_once() {
    let since = Timestamp::now() - SignedDuration::from_secs(10);
    let night = Night::new(waking(Time(since), None)).await;
    let (admin, nobody) = (night.admin(), night.stage.root.client(None));
    let (held, stranger) = tokio::join!(night.ask(&admin, Http::Two, None), night.ask(&nobody, Http::Two, None));
    assert_eq!(told(&held), (StatusCode::SERVICE_UNAVAILABLE, Some("0")));
    let (status, later) = told(&stranger);
    let later: i32 = later.unwrap().parse().unwrap();
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && later > 1, "{later}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_ends_with_another_sleep_state() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let why = "the cluster is asleep until its owner wakes it";
    let holding = async {
        night.stage.xds().wake().await;
        night.tell(Some(Asleep::Held { why: why.into() })).await;
    };
    let admin = night.admin();
    let (answer, ()) = tokio::join!(night.ask(&admin, Http::One, None), holding);
    assert_eq!(
        (answer.status, &answer.body["message"]),
        (StatusCode::FORBIDDEN, &json!(why))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_ends_with_its_answers() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let name = night.a.public_name();
    for http in BOTH {
        let ingress = night.stage.envoy.ingress;
        let mut client = Client::connect(ingress, &name, &night.admin(), http).await.unwrap();
        let post = Request::post("https://10.96.0.1/api/v1/namespaces").body(Body::from(vec![b'a'; 10_000]));
        let answer = client.ask(post.unwrap()).await.unwrap();
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        eventually("the connection to close", PATIENCE, async || {
            client.ask(get(None)).await.err()
        })
        .await;
    }
    // The name of another cluster on a connection of this one.
    let other = format!("https://{}/api", night.stage.clusters[1].public_name());
    let ingress = night.stage.envoy.ingress;
    let mut client = Client::connect(ingress, &name, &night.admin(), Http::Two)
        .await
        .unwrap();
    let answer = client
        .ask(Request::get(other).body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test(flavor = "multi_thread")]
async fn authenticated_callers_see_the_owners_message() {
    let why = "the cluster is asleep until its owner wakes it";
    let night = Night::new(Asleep::Held { why: why.into() }).await;
    for http in BOTH {
        let answer = night.ask(&night.admin(), http, None).await;
        assert_eq!(told(&answer), (StatusCode::FORBIDDEN, None));
        assert_eq!(answer.body["message"], why);
        let answer = night.ask(&night.stage.root.client(None), http, None).await;
        assert_eq!(told(&answer), (StatusCode::UNAUTHORIZED, None));
        let mut pod = night.stage.client(http).await;
        let answer = pod.ask(get(Some(&night.stage.bearer(0)))).await.unwrap();
        assert_eq!(told(&answer), (StatusCode::FORBIDDEN, None));
        assert_eq!(answer.body["message"], why);
        assert_eq!(answer.headers["warning"], format!("299 - \"{why}\""));
    }
    for asked in ASKED {
        let stderr = kubectl(&night, asked).await.1;
        assert!(stderr.contains(why), "{asked:?}: {stderr}");
    }
    assert!(!night.stage.xds().has_woken().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_any_lets_unauthenticated_clients_wake() {
    let night = Night::new(on_connect(Callers::Any)).await;
    // The first request came from an unauthenticated client.
    let woken = night
        .stage
        .xds()
        .metric("yoke_ingress_xds_wakes_total{outcome=\"told\"}");
    assert_eq!(woken, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_pods_wait() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let system = night.token(0, |claims| {
        claims["sub"] = "system:serviceaccount:kube-system:coredns".into()
    });
    let mut pod = night.stage.client(Http::Two).await;
    let answer = pod.ask(get(Some(&system))).await.unwrap();
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("10")));
    assert!(!night.stage.xds().has_woken().await);

    let bearer = night.stage.bearer(0);
    let mut pods = Vec::new();
    for number in 0..20 {
        pods.push(night.stage.client(BOTH[number % 2]).await);
    }
    let requests = pods.iter_mut().map(async |pod| {
        let answer = ask_again(pod, || get(Some(&bearer))).await;
        (answer.status, answer.body["cluster"].clone())
    });
    let waking = async {
        let wake = night.stage.xds().wake().await;
        assert_eq!(wake.cluster, "a");
        eventually("twenty pending requests", PATIENCE, async || {
            (night.stage.xds().metric("yoke_ingress_xds_held_requests") == 20).then_some(())
        })
        .await;
        night.tell(Some(woken(None))).await;
        night.tell(None).await;
    };
    let (answers, ()) = tokio::join!(futures::future::join_all(requests), waking);
    for answer in answers {
        assert_eq!(answer, (StatusCode::OK, json!("a")));
    }
    assert!(!night.stage.xds().has_woken().await, "once");
    assert_eq!(night.requests()[1], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_caller_waits_for_a_cluster_that_does_not_wake() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let bearer = night.stage.bearer(0);
    let held = async {
        let mut pod = night.stage.client(Http::Two).await;
        pod.ask(get(Some(&bearer))).await.unwrap()
    };
    let telling = async {
        eventually("a pending request", PATIENCE, async || {
            (night.stage.xds().metric("yoke_ingress_xds_held_requests") == 1).then_some(())
        })
        .await;
        night.tell(Some(woken(Some("There is no room.")))).await;
    };
    let (answer, ()) = tokio::join!(held, telling);
    // A caller that is shown the problem does not retry.
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, None));
    let advice = "There is no room. Ask the cluster's owner; the conditions of the Cluster object say more.";
    assert_eq!(answer.body["message"], advice);
    for http in BOTH {
        let answer = night.ask(&night.admin(), http, None).await;
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, None));
        assert_eq!(answer.body["message"], advice);
        let answer = night.ask(&night.stage.root.client(None), http, None).await;
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("1")));
        assert_ne!(answer.body["message"], advice, "strangers are told nothing");
        let mut pod = night.stage.client(http).await;
        let answer = pod.ask(get(Some(&bearer))).await.unwrap();
        assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, None));
    }
    let stuck = "yoke_ingress_xds_sleeper_answers_total{answer=\"stuck\"}";
    for asked in ASKED {
        let before = night.stage.xds().metric(stuck);
        let stderr = kubectl(&night, asked).await.1;
        assert!(stderr.contains(advice), "{asked:?}: {stderr}");
        // kubectl repeats the request up to ten times when the answer has `Retry-After`.
        let count = night.stage.xds().metric(stuck) - before;
        assert!((1..10).contains(&count), "{asked:?}: {count}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_arrives_despite_a_large_body() {
    const BODY: usize = 512 * 1024;
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let mut config = night.admin();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    for config in [config, night.stage.root.client(None)] {
        let stream = TcpStream::connect(night.stage.xds().activator).await.unwrap();
        let mut stream = open_over(stream, &night.a.public_name(), &config).await.unwrap();
        let head = format!("POST /api HTTP/1.1\r\nhost: a\r\ncontent-length: {BODY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&vec![b'a'; BODY]).await.unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("\"kind\":\"Status\""), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_certificates_are_limited_in_size() {
    let night = Night::new(Asleep::Held { why: "No.".into() }).await;
    let name = night.a.public_name();
    let leaf = night.stage.authorities[0].leaf("yoke:admin", &[]);
    for http in BOTH {
        for (length, code) in [(28_000, 403), (33_000, 431)] {
            let ingress = night.stage.envoy.ingress;
            let mut client = Client::connect(ingress, &name, &night.with(&leaf), http).await.unwrap();
            let groups = Request::get("https://10.96.0.1/api").header("impersonate-group", "a".repeat(length));
            match client.ask(groups.body(Body::empty()).unwrap()).await {
                Ok(answer) => assert_eq!(answer.status, code, "{http:?} {length}"),
                Err(error) => assert_eq!(code, 431, "{http:?} {length}: {error}"),
            }
        }
        let other = night.stage.authorities[1].leaf("other", &[]).certificate;
        let size = CertificateDer::pem_slice_iter(other.as_bytes()).map(|der| der.unwrap().len());
        let size = size.sum::<usize>();
        for (bytes, is_answered) in [(14_000, true), (20_000, false)] {
            let mut long = night.stage.authorities[0].leaf("yoke:admin", &[]);
            long.certificate += &other.repeat(bytes / size);
            let answer = night.try_ask(&name, &night.with(&long), http, None).await;
            assert_eq!(answer.is_ok(), is_answered, "{http:?} {bytes}: {answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_tokens_may_change() {
    let mut night = Night::new(on_connect(Callers::Authenticated)).await;
    let nobody = night.stage.root.client(None);
    let old = night.token(0, |_| {});
    let signer = Signer::p256();
    night.a.config.service_account_keys = vec![signer.pem.clone()];
    night.tell(Some(on_connect(Callers::Authenticated))).await;
    eventually("the old key to be refused", PATIENCE, async || {
        let answer = night.ask(&nobody, Http::One, Some(&old)).await;
        (told(&answer) == (StatusCode::UNAUTHORIZED, None)).then_some(())
    })
    .await;
    night.stage.signers[0] = signer;
    let answer = night.ask(&nobody, Http::One, Some(&night.token(0, |_| {}))).await;
    assert_eq!(told(&answer), (StatusCode::SERVICE_UNAVAILABLE, Some("0")));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_only_sees_slower_answers() {
    let night = Night::new(on_connect(Callers::Authenticated)).await;
    let asking = ["get", "--raw", "/api/v1/namespaces"];
    let ((stdout, stderr), ()) = tokio::join!(kubectl(&night, &asking), night.wake_up());
    assert!(stdout.contains("\"cluster\":\"a\""), "{stdout} {stderr}");
    night.sleep().await;
    let watching = async {
        let directory = tempfile::tempdir().unwrap();
        let mut child = start_kubectl(&night, directory.path(), &["get", "--raw", WATCH])
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line()).await;
        line.expect("a watch says something").unwrap()
    };
    let (line, ()) = tokio::join!(watching, night.wake_up());
    assert_eq!(line.as_deref(), Some("0"));
}

/// The output of kubectl for a request with the kubeconfig of an administrator.
async fn kubectl(night: &Night, arguments: &[&str]) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    let output = start_kubectl(night, directory.path(), arguments).output();
    let output = tokio::time::timeout(Duration::from_secs(60), output).await;
    let output = output.expect("kubectl ends").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn start_kubectl(night: &Night, directory: &Path, arguments: &[&str]) -> Command {
    let path = directory.join("kubeconfig");
    let admin = night.stage.authorities[0].leaf("yoke:admin", &[]);
    let encode = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", night.stage.envoy.ingress),
            "tls-server-name": night.a.public_name(), "certificate-authority-data": encode(&night.stage.root.pem)}}],
        "users": [{"name": "u", "user": {"client-certificate-data": encode(&admin.certificate),
            "client-key-data": encode(&admin.key)}}]});
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut command = Command::new(find("kubectl"));
    command
        .arg("--cache-dir")
        .arg(directory)
        .args(arguments)
        .env("KUBECONFIG", &path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}
