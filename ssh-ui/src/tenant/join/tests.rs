//! The life of a JoinToken, against a host in memory.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tower::service_fn;
use yoke_test_support::eventually;
use yoke_view::progress::PATIENCE;

use super::*;

/// A host with one Cluster and its JoinTokens.
struct Host {
    /// State and conditions of the Cluster, if there is one.
    cluster: Option<(&'static str, Value)>,
    /// Status, reason and message of the JoinToken's condition.
    ready: [&'static str; 3],
    /// Number of requests for the Secret that are still refused.
    refusals: usize,
    /// Whether deletions fail.
    keeps: bool,
    /// The methods of the requests for JoinTokens.
    methods: Vec<Method>,
}

type Seen = Arc<Mutex<Host>>;

impl Host {
    /// A host whose JoinToken is ready at once, and that refuses its Secret for a number of times.
    fn new(refusals: usize) -> Self {
        Self {
            cluster: Some(("Running", json!([]))),
            ready: ["True", "AsExpected", ""],
            refusals,
            keeps: false,
            methods: Vec::new(),
        }
    }

    /// A host whose JoinToken is not ready.
    fn unready(reason: &'static str, message: &'static str) -> Self {
        let ready = ["False", reason, message];
        Self { ready, ..Self::new(0) }
    }

    /// Replaces the Cluster.
    fn with_cluster(self, cluster: Option<(&'static str, Value)>) -> Self {
        Self { cluster, ..self }
    }

    fn answer(&mut self, request: &Request<Body>) -> (u16, Value) {
        let (path, method) = (request.uri().path(), request.method());
        if path.ends_with("/clusters/a") {
            return match &self.cluster {
                Some((state, conditions)) => (
                    200,
                    json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
                    "metadata": {"name": "a", "namespace": "t"}, "spec": {"state": state}, "status": {"conditions": conditions}}),
                ),
                None => refuse(404, "clusters \"a\" not found"),
            };
        }
        if path.contains("/secrets/") {
            if self.refusals > 0 {
                self.refusals -= 1;
                return refuse(403, "no");
            }
            let keys = ["server", "ca.crt", "client-ca.crt", "token", "version"];
            let data: Map<_, _> = keys.map(|key| (key.to_owned(), "eA==".into())).into_iter().collect();
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a-1-join"}, "data": data});
            return (200, secret);
        }
        self.methods.push(method.clone());
        if method == Method::DELETE && self.keeps {
            return refuse(500, "not now");
        }
        let [status, reason, message] = self.ready;
        let token = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": "a-1", "namespace": "t"}, "spec": {"clusterName": "a"},
            "status": {"expirationTime": "2026-01-01T00:15:00Z",
                "conditions": [condition("Ready", status, reason, message)]}});
        let list = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinTokenList",
            "metadata": {"resourceVersion": "1"}, "items": [token]});
        (200, if method == Method::GET { list } else { token })
    }

    /// Returns a Tenant's client for this host, and the host.
    fn start(self) -> (TenantHost, Seen) {
        let asked = Arc::new(Mutex::new(self));
        let seen = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                if request.uri().query().unwrap_or_default().contains("watch=") {
                    std::future::pending::<()>().await;
                }
                let (status, answer) = seen.lock().unwrap().answer(&request);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, kube::Error>(Response::builder().status(status).body(body).unwrap())
            }
        });
        (TenantHost::of(&Client::new(service, "t"), "t").unwrap(), asked)
    }

    /// Runs a join. Returns its result, the methods of the requests for JoinTokens, and the
    /// duration.
    async fn join(self) -> (Joined, Vec<Method>, Duration) {
        let (host, seen) = self.start();
        let (progress, _lines) = mpsc::channel(16);
        let begun = Instant::now();
        let joined = host.join(spec(), &progress).await;
        let methods = std::mem::take(&mut seen.lock().unwrap().methods);
        (joined, methods, begun.elapsed())
    }
}

fn condition(name: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": name, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn refuse(code: u16, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code});
    (code, status)
}

fn spec() -> JoinTokenSpec {
    JoinTokenSpec {
        cluster_name: "a".into(),
        ..JoinTokenSpec::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_given_just_now_is_waited_for() {
    let (joined, methods, _) = Host::new(5).join().await;
    let created = joined.unwrap();
    assert_eq!(created.name, "a-1");
    assert_eq!(created.expires, "2026-01-01T00:15:00Z".parse().ok());
    assert_eq!(methods, [Method::POST, Method::GET], "it stays");
}

#[tokio::test(start_paused = true)]
async fn unprinted_token_is_deleted() {
    let (joined, methods, _) = Host::new(usize::MAX).join().await;
    assert!(matches!(joined, Err(Error::Refused { status, .. }) if status.code == 403));
    assert_eq!(methods.last(), Some(&Method::DELETE));
}

#[tokio::test(start_paused = true)]
async fn of_a_wait_that_runs_out_nothing_goes_on() {
    let said = "The API of Cluster a does not answer.";
    for keeps in [false, true] {
        let host = Host::unready("ClusterNotReady", said);
        let (joined, methods, took) = Host { keeps, ..host }.join().await;
        match joined {
            Err(Error::JoinTimeout {
                name,
                cluster,
                last,
                is_deleted,
                ..
            }) => assert_eq!(
                (name.as_str(), cluster.as_str(), last.as_deref(), is_deleted),
                ("a-1", "a", Some(said), !keeps)
            ),
            other => panic!("{other:?}"),
        }
        assert_eq!(methods, [Method::POST, Method::GET, Method::DELETE]);
        assert!(took >= LIMIT, "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_waited_through_only_if_it_may_pass() {
    for (reason, least, most) in [
        ("QuotaExceeded", Duration::ZERO, Duration::from_secs(1)),
        // The operator may not have seen the Cluster yet.
        ("ClusterMissing", PATIENCE, PATIENCE + Duration::from_secs(1)),
    ] {
        let (joined, methods, took) = Host::unready(reason, "m").join().await;
        let is_refused = matches!(&joined, Err(Error::JoinRefused { refusal, .. }) if refusal.reason == reason);
        assert!(is_refused, "{reason}: {joined:?}");
        assert_eq!(methods.last(), Some(&Method::DELETE), "{reason}");
        assert!((least..most).contains(&took), "{reason}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_come_about_is_not_begun_with() {
    let refused = json!([condition("Accepted", "False", "UnknownClass", "no")]);
    for (rule, cluster, word) in [
        ("there is none", None, "not_found"),
        ("it sleeps", Some(("Asleep", json!([]))), "asleep"),
        ("it is refused", Some(("Running", refused)), "refused"),
    ] {
        let host = Host::unready("ClusterNotReady", "m").with_cluster(cluster);
        let (joined, methods, took) = host.join().await;
        assert_eq!(joined.map_err(|error| error.as_str()).err(), Some(word), "{rule}");
        assert_eq!(methods, [] as [Method; 0], "{rule}");
        assert!(took < Duration::from_secs(1), "{rule}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn token_is_deleted_when_the_client_disconnects() {
    for (rule, refusals, hears) in [
        ("the channel is closed", usize::MAX, false),
        ("the line has come, and the connection is gone", 8, true),
    ] {
        let (host, seen) = Host::new(refusals).start();
        let (progress, lines) = mpsc::channel(16);
        let joining = host.join(spec(), &progress);
        let ended = tokio::time::timeout(Duration::from_secs(1), joining).await;
        assert!(ended.is_err(), "{rule}");
        let _lines = hears.then_some(lines);
        let last = async || Ok::<_, Infallible>(seen.lock().unwrap().methods.last().cloned());
        let what = format!("the deletion of the JoinToken: {rule}");
        eventually(&what, PATIENCE / 2, last, |last| *last == Some(Method::DELETE))
            .await
            .unwrap();
    }
}
