//! A host's API in memory, spoken to by HTTP, and a way to run the plugin against it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::broadcast;

/// The objects of the host by path, such as `/api/v1/namespaces/t/secrets/a`.
#[derive(Clone)]
pub(crate) struct Host {
    objects: Arc<Mutex<BTreeMap<String, Value>>>,
    changes: broadcast::Sender<(String, Value)>,
    requests: Arc<Mutex<Vec<String>>>,
    url: String,
    folder: Arc<tempfile::TempDir>,
}

/// What one run of the plugin said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Host {
    /// Serves an empty host on a port of its own until the test ends.
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = Self {
            objects: Arc::default(),
            changes: broadcast::channel(64).0,
            requests: Arc::default(),
            url: format!("http://{}", listener.local_addr().unwrap()),
            folder: Arc::new(tempfile::tempdir().unwrap()),
        };
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: host\nclusters:\n- {{name: host, cluster: {{server: '{}'}}}}\n\
             users:\n- {{name: me, user: {{token: x}}}}\ncontexts:\n- {{name: host, context: {{cluster: host, user: me, namespace: t}}}}\n",
            host.url
        );
        std::fs::write(host.path("host.kubeconfig"), kubeconfig).unwrap();
        let router = Router::new().fallback(answer).with_state(host.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        host
    }

    /// A file of this test's own.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts an object there and tells watchers.
    pub(crate) fn set(&self, path: &str, object: Value) {
        let known = self.objects.lock().unwrap().insert(path.to_owned(), object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        let _ = self
            .changes
            .send((path.to_owned(), json!({"type": kind, "object": object})));
    }

    /// Takes an object away and tells watchers.
    pub(crate) fn remove(&self, path: &str) -> Option<Value> {
        let object = self.objects.lock().unwrap().remove(path)?;
        let _ = self
            .changes
            .send((path.to_owned(), json!({"type": "DELETED", "object": object})));
        Some(object)
    }

    /// The object at a path.
    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(path).cloned()
    }

    /// Every request line so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    /// Runs the plugin with words split at spaces, as a person whose kubeconfig names this host.
    pub(crate) async fn run(&self, line: &str) -> Said {
        self.run_with(line, &self.path("host.kubeconfig"), "").await
    }

    /// Runs the plugin with another KUBECONFIG, and text on standard input.
    pub(crate) async fn run_with(&self, line: &str, kubeconfig: &Path, input: &str) -> Said {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_kubectl-yoke"))
            .args(line.split(' ').filter(|word| !word.is_empty()))
            .env_clear()
            .env("KUBECONFIG", kubeconfig)
            .env("HOME", self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
        let limit = std::time::Duration::from_secs(30);
        let output = tokio::time::timeout(limit, child.wait_with_output())
            .await
            .expect("the plugin ends")
            .unwrap();
        Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

async fn answer(
    State(host): State<Host>,
    method: Method,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
    body: String,
) -> Response {
    host.requests.lock().unwrap().push(format!("{method} {uri}"));
    let path = uri.path().to_owned();
    if path == "/version" {
        return Json(version()).into_response();
    }
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let known = ["clusters", "tenants", "secrets", "events"];
    let Some(position) = parts.iter().rposition(|part| known.contains(part)) else {
        return refuse(StatusCode::NOT_FOUND, "NotFound", "404 page not found", "");
    };
    let (name, dry_run) = (parts.get(position + 1).copied(), query.contains_key("dryRun"));
    match (method, name) {
        (Method::GET, None) if query.contains_key("watch") => watch(&host, path, &query),
        (Method::GET, None) => list(&host, &path, parts[position], &query),
        (Method::GET, Some(name)) => match host.object(&path) {
            Some(object) => Json(object).into_response(),
            None => missing(parts[position], name),
        },
        (Method::POST, None) => {
            let mut object: Value = serde_json::from_str(&body).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let path = format!("{path}/{name}");
            if host.object(&path).is_some() {
                let message = format!("{} \"{name}\" already exists", parts[position]);
                return refuse(StatusCode::CONFLICT, "AlreadyExists", &message, &name);
            }
            object["metadata"]["uid"] = "11111111-2222-3333-4444-555555555555".into();
            object["metadata"]["generation"] = 1.into();
            if !dry_run {
                host.set(&path, object.clone());
            }
            (StatusCode::CREATED, Json(object)).into_response()
        }
        (Method::DELETE, Some(name)) => match host.remove(&path) {
            Some(object) => Json(object).into_response(),
            None => missing(parts[position], name),
        },
        (method, _) => panic!("the fake does not know {method} {path}"),
    }
}

/// Whether an object at `path` is in the collection and chosen by the selector.
fn is_chosen(path: &str, collection: &str, query: &BTreeMap<String, String>) -> bool {
    let plural = collection.rsplit('/').next().unwrap();
    let (folder, name) = path.rsplit_once('/').unwrap();
    let within =
        folder == collection || (!collection.contains("/namespaces/") && folder.ends_with(&format!("/{plural}")));
    let wanted = query
        .get("fieldSelector")
        .and_then(|selector| selector.strip_prefix("metadata.name="));
    within && wanted.is_none_or(|wanted| wanted == name)
}

fn list(host: &Host, collection: &str, plural: &str, query: &BTreeMap<String, String>) -> Response {
    let objects = host.objects.lock().unwrap();
    let items: Vec<_> = objects
        .iter()
        .filter(|(path, _)| is_chosen(path, collection, query))
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
        let chosen = is_chosen(&path, &collection, &query);
        std::future::ready(chosen.then(|| Ok::<_, std::io::Error>(format!("{change}\n"))))
    });
    Body::from_stream(lines).into_response()
}

fn missing(plural: &str, name: &str) -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        "NotFound",
        &format!("{plural} \"{name}\" not found"),
        name,
    )
}

fn refuse(code: StatusCode, reason: &str, message: &str, name: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(), "reason": reason,
        "message": message, "details": {"name": name},
    });
    (code, Json(status)).into_response()
}

fn version() -> Value {
    json!({"major": "1", "minor": "35", "gitVersion": "v1.35.4", "gitCommit": "", "gitTreeState": "", "buildDate": "",
        "goVersion": "", "compiler": "", "platform": ""})
}
