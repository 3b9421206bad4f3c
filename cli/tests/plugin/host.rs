//! A host's API in memory, served over HTTP, and functions to run the plugin against it.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use yoke_test_support::eventually;

use crate::running::{LIMIT, PAUSE, Running, Said};

/// The objects of the host by path, such as `/api/v1/namespaces/t/secrets/a`.
#[derive(Clone)]
pub(crate) struct Host {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    changes: broadcast::Sender<(String, Value)>,
    requests: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    stalled: Arc<Mutex<Option<String>>>,
    failures: Arc<Mutex<Vec<Failures>>>,
    lingers: Arc<AtomicBool>,
    url: String,
    folder: Arc<tempfile::TempDir>,
}

/// Responses that replace those of the host.
struct Failures {
    part: String,
    codes: VecDeque<u16>,
    is_done: bool,
}

impl Host {
    /// Serves an empty host on a port of its own until the test ends.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = Self::new(&format!("http://{}", listener.local_addr().unwrap()));
        host.serve(listener);
        host
    }

    /// Creates a host with this URL that serves nothing yet.
    pub(crate) fn new(url: &str) -> Self {
        let host = Self {
            objects: Arc::default(),
            changes: broadcast::channel(64).0,
            requests: Arc::default(),
            stalled: Arc::default(),
            failures: Arc::default(),
            lingers: Arc::default(),
            url: url.to_owned(),
            folder: Arc::new(tempfile::tempdir().unwrap()),
        };
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: host\nclusters:\n- {{name: host, cluster: {{server: '{url}'}}}}\n\
             users:\n- {{name: me, user: {{token: x}}}}\n- {{name: ann, user: {{token: anns}}}}\n\
             contexts:\n- {{name: host, context: {{cluster: host, user: me, namespace: t}}}}\n"
        );
        std::fs::write(host.path("host.kubeconfig"), kubeconfig).unwrap();
        host
    }

    /// Serves the connections of a listener.
    pub(crate) fn serve<L>(&self, listener: L)
    where
        L: axum::serve::Listener,
        L::Addr: std::fmt::Debug,
    {
        let router = Router::new().fallback(answer).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    }

    /// Returns the URL of the host.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Never answers requests whose line contains this text.
    pub(crate) fn stall(&self, part: &str) {
        *self.stalled.lock().unwrap() = Some(part.to_owned());
    }

    fn is_stalled(&self, line: &str) -> bool {
        let stalled = self.stalled.lock().unwrap();
        stalled.as_ref().is_some_and(|part| line.contains(part))
    }

    /// Answers all requests again.
    pub(crate) fn resume(&self) {
        *self.stalled.lock().unwrap() = None;
    }

    /// Answers requests whose line contains this text with these codes, one each, without executing
    /// them.
    pub(crate) fn fail(&self, part: &str, codes: &[u16]) {
        self.add_failures(part, codes, false);
    }

    /// Answers in the same way, but executes the requests.
    pub(crate) fn do_and_fail(&self, part: &str, codes: &[u16]) {
        self.add_failures(part, codes, true);
    }

    fn add_failures(&self, part: &str, codes: &[u16], is_done: bool) {
        self.failures.lock().unwrap().push(Failures {
            part: part.to_owned(),
            codes: codes.iter().copied().collect(),
            is_done,
        });
    }

    /// Returns the code for a request, and whether to execute it.
    fn next_failure(&self, line: &str) -> Option<(StatusCode, bool)> {
        let mut failures = self.failures.lock().unwrap();
        let failures = failures
            .iter_mut()
            .find(|failures| !failures.codes.is_empty() && line.contains(&failures.part))?;
        let code = failures.codes.pop_front()?;
        Some((StatusCode::from_u16(code).unwrap(), failures.is_done))
    }

    /// Waits for a request whose line contains this text.
    pub(crate) async fn until_asked(&self, part: &str) {
        let requests = async || Ok::<_, Infallible>(self.requests());
        let what = format!("a request with {part:?}");
        eventually(&what, LIMIT, requests, |requests| {
            requests.iter().any(|line| line.contains(part))
        })
        .await
        .unwrap();
    }

    /// Keeps deleted objects, as finalizers do.
    pub(crate) fn linger(&self) {
        self.lingers.store(true, Ordering::Relaxed);
    }

    /// Returns the path of a file of this test.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Stores an object and notifies watches.
    pub(crate) fn set(&self, path: &str, object: Value) {
        let known = self.objects.lock().unwrap().insert(path.to_owned(), object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        let _ = self
            .changes
            .send((path.to_owned(), json!({"type": kind, "object": object})));
    }

    /// Removes an object and notifies watches.
    pub(crate) fn remove(&self, path: &str) -> Option<Value> {
        let object = self.objects.lock().unwrap().remove(path)?;
        let _ = self
            .changes
            .send((path.to_owned(), json!({"type": "DELETED", "object": object})));
        Some(object)
    }

    /// Returns the object at a path.
    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(path).cloned()
    }

    /// Returns the first path with this prefix.
    pub(crate) fn find(&self, begin: &str) -> Option<String> {
        let objects = self.objects.lock().unwrap();
        objects.keys().find(|path| path.starts_with(begin)).cloned()
    }

    /// Returns every request line so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        requests.iter().map(|(line, _)| line.clone()).collect()
    }

    /// Returns the values of a header of the last request, joined by commas.
    pub(crate) fn last_header(&self, name: &str) -> String {
        let requests = self.requests.lock().unwrap();
        let values = requests.last().unwrap().1.get_all(name).iter();
        values
            .map(|value| value.to_str().unwrap())
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Waits until the plugin watches, so that it sees later changes.
    pub(crate) async fn until_watched(&self) {
        let watches = async || Ok::<_, Infallible>(self.changes.receiver_count());
        eventually("a watch of the plugin", LIMIT, watches, |count| *count > 0)
            .await
            .unwrap();
    }

    /// Runs the plugin with arguments split at spaces, and a kubeconfig for this host.
    pub(crate) async fn run(&self, line: &str) -> Said {
        self.begin(line).end().await
    }

    /// Runs the plugin with another KUBECONFIG.
    pub(crate) async fn run_with(&self, line: &str, kubeconfig: &Path) -> Said {
        self.begin_with(line, kubeconfig).end().await
    }

    /// Starts the plugin.
    pub(crate) fn begin(&self, line: &str) -> Running {
        self.begin_with(line, &self.path("host.kubeconfig"))
    }

    /// Starts the plugin on a terminal of its own, which receives its output.
    pub(crate) fn begin_at_terminal(&self, line: &str) -> Running {
        let line = format!("exec {} {line}", env!("CARGO_BIN_EXE_kubectl-yoke"));
        let mut command = tokio::process::Command::new("/usr/bin/script");
        command
            .args(["--quiet", "--return", "--command", &line, "/dev/null"])
            .env_clear()
            .env("KUBECONFIG", self.path("host.kubeconfig"))
            .env("HOME", self.folder.path());
        Running::start_at_terminal(command)
    }

    fn begin_with(&self, line: &str, kubeconfig: &Path) -> Running {
        // `nohup` around the tests would make the plugin ignore SIGHUP.
        let mut command = tokio::process::Command::new("/usr/bin/env");
        command
            .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_kubectl-yoke")])
            .args(line.split(' ').filter(|word| !word.is_empty()))
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", self.folder.path());
        Running::start(command)
    }
}

async fn answer(
    State(host): State<Host>,
    method: Method,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let line = format!("{method} {uri}");
    host.requests.lock().unwrap().push((line.clone(), headers));
    while host.is_stalled(&line) {
        tokio::time::sleep(PAUSE).await;
    }
    let Some((code, is_done)) = host.next_failure(&line) else {
        return carry_out(&host, method, &uri, &query, &body);
    };
    if is_done {
        carry_out(&host, method, &uri, &query, &body);
    }
    refuse(code, "", "the host fails", ("", ""))
}

fn carry_out(host: &Host, method: Method, uri: &Uri, query: &BTreeMap<String, String>, body: &str) -> Response {
    let path = uri.path().to_owned();
    if path == "/version" {
        return Json(version()).into_response();
    }
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let known = ["clusters", "jointokens", "tenants", "secrets", "events"];
    let Some(position) = parts.iter().rposition(|part| known.contains(part)) else {
        return refuse(StatusCode::NOT_FOUND, "NotFound", "404 page not found", ("", ""));
    };
    let (name, dry_run) = (parts.get(position + 1).copied(), query.contains_key("dryRun"));
    match (method, name) {
        (Method::GET, None) if query.contains_key("watch") => watch(host, path, query),
        (Method::GET, None) => list(host, &path, parts[position], query),
        (Method::GET, Some(name)) => match host.object(&path) {
            Some(object) => Json(object).into_response(),
            None => missing(parts[position], name),
        },
        (Method::POST, None) if path.contains("/namespaces/absent/") => missing("namespaces", "absent"),
        (Method::POST, None) => {
            let mut object: Value = serde_json::from_str(body).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let path = format!("{path}/{name}");
            if host.object(&path).is_some() {
                let message = format!("{} \"{name}\" already exists", parts[position]);
                return refuse(
                    StatusCode::CONFLICT,
                    "AlreadyExists",
                    &message,
                    (parts[position], &name),
                );
            }
            object["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555".into();
            object["metadata"]["generation"] = 1.into();
            if !dry_run {
                host.set(&path, object.clone());
            }
            (StatusCode::CREATED, Json(object)).into_response()
        }
        (Method::DELETE, Some(name)) if host.lingers.load(Ordering::Relaxed) => match host.object(&path) {
            Some(object) => Json(object).into_response(),
            None => missing(parts[position], name),
        },
        (Method::DELETE, Some(name)) => match host.remove(&path) {
            Some(object) => Json(object).into_response(),
            None => missing(parts[position], name),
        },
        (method, _) => panic!("the fake does not know {method} {path}"),
    }
}

/// Returns whether an object at `path` is in the collection and matches the selectors; the fake
/// supports only `a=b`.
fn is_chosen(path: &str, object: &Value, collection: &str, query: &BTreeMap<String, String>) -> bool {
    let plural = collection.rsplit('/').next().unwrap();
    let (folder, name) = path.rsplit_once('/').unwrap();
    let within =
        folder == collection || (!collection.contains("/namespaces/") && folder.ends_with(&format!("/{plural}")));
    let wanted = query
        .get("fieldSelector")
        .and_then(|selector| selector.strip_prefix("metadata.name="));
    let labelled = query.get("labelSelector").is_none_or(|selector| {
        let (key, value) = selector.split_once('=').unwrap();
        object["metadata"]["labels"][key] == value
    });
    within && labelled && wanted.is_none_or(|wanted| wanted == name)
}

fn list(host: &Host, collection: &str, plural: &str, query: &BTreeMap<String, String>) -> Response {
    let objects = host.objects.lock().unwrap();
    let items: Vec<_> = objects
        .iter()
        .filter(|(path, object)| is_chosen(path, object, collection, query))
        .map(|(_, object)| object)
        .collect();
    Json(json!({"kind": format!("{plural}List"), "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items})).into_response()
}

fn watch(host: &Host, collection: String, query: &BTreeMap<String, String>) -> Response {
    let query = query.clone();
    let changes = futures::stream::unfold(host.changes.subscribe(), |mut changes| async move {
        changes.recv().await.ok().map(|change| (change, changes))
    });
    let lines = changes.filter_map(move |(path, change)| {
        let chosen = is_chosen(&path, &change["object"], &collection, &query);
        std::future::ready(chosen.then(|| Ok::<_, std::io::Error>(format!("{change}\n"))))
    });
    Body::from_stream(lines).into_response()
}

fn missing(plural: &str, name: &str) -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        "NotFound",
        &format!("{plural} \"{name}\" not found"),
        (plural, name),
    )
}

fn refuse(code: StatusCode, reason: &str, message: &str, (kind, name): (&str, &str)) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": message, "details": {"kind": kind, "name": name},
    });
    (code, Json(status)).into_response()
}

fn version() -> Value {
    json!({"major": "1", "minor": "35", "gitVersion": "v1.35.4", "gitCommit": "", "gitTreeState": "", "buildDate": "",
        "goVersion": "", "compiler": "", "platform": ""})
}
