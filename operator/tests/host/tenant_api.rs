//! A fake tenant's API with the endpoints that the operator uses, at the address of the control
//! plane's Service, with its issued certificate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::harness::{Host, PKI};

/// The object that the controller manager creates first.
pub(crate) const ACCOUNT: &str = "/serviceaccounts/default";
const CHUNK: usize = 1 << 16;
const NODES: &str = "/api/v1/nodes";

/// Behavior of the API, and its recorded requests.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// Whether the controller manager has created the first ServiceAccount.
    pub(crate) has_account: bool,
    /// Whether the API server is still in its post-start hooks.
    pub(crate) is_starting: bool,
    /// Whether the API server has not created its namespaces yet.
    pub(crate) lacks_namespaces: bool,
    /// Whether writes wait for a webhook that never answers.
    pub(crate) hangs: bool,
    /// Path suffix of an object whose answer never ends.
    pub(crate) endless: Option<&'static str>,
    /// Bytes of that answer that the client has read.
    pub(crate) taken: usize,
    /// Written objects, by path.
    pub(crate) objects: BTreeMap<String, String>,
    /// Part of the paths at which an existing object is immutable.
    pub(crate) refuses: Option<&'static str>,
    /// Paths of deleted objects.
    pub(crate) deleted: Vec<String>,
    /// Duration of each page of Nodes. If set, the pages never end.
    pub(crate) page_takes: Option<Duration>,
    /// Number of requested pages of Nodes.
    pub(crate) pages: usize,
    /// Nodes of the cluster.
    pub(crate) nodes: Vec<serde_json::Value>,
    /// ValidatingWebhookConfigurations of the cluster.
    pub(crate) webhooks: Vec<serde_json::Value>,
    /// Number of writes.
    pub(crate) writes: usize,
    /// Number of requests.
    pub(crate) requests: usize,
}

/// The API server. It stops listening when dropped.
pub(crate) struct TenantServer {
    pub(crate) behaviour: Arc<Mutex<Behaviour>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for TenantServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TenantServer {
    /// Listens at the address of a Cluster's Service.
    pub(crate) async fn start(host: &Host, cluster: &str) -> Self {
        let hosted = host.hosted(cluster).await;
        let service = host.api::<Service>(&hosted).get(cluster).await.unwrap();
        let address = service.spec.unwrap().cluster_ip.unwrap();
        let id = host.cluster(cluster).await.id().unwrap();
        let issued = host
            .secret(PKI, &format!("{id}-apiserver"))
            .await
            .unwrap()
            .data
            .unwrap();
        let chain = CertificateDer::pem_slice_iter(&issued["tls.crt"].0).map(Result::unwrap);
        let key = PrivateKeyDer::from_pem_slice(&issued["tls.key"].0).unwrap();
        let config = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain.collect(), key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(format!("{address}:6443")).await.unwrap();
        let behaviour = Arc::new(Mutex::new(Behaviour::default()));
        let shared = Arc::clone(&behaviour);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, behaviour) = (acceptor.clone(), Arc::clone(&shared));
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let _ = serve(BufStream::new(stream), &behaviour).await;
                    }
                });
            }
        });
        Self { behaviour, task }
    }
}

async fn serve<S>(mut stream: BufStream<S>, behaviour: &Mutex<Behaviour>) -> std::io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let mut words = first.split_whitespace();
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = target.split('?').next().unwrap_or_default();
        let endless = behaviour.lock().unwrap().endless;
        if method == "GET" && endless.is_some_and(|end| path.ends_with(end)) {
            return send_endless_body(stream, behaviour).await;
        }
        if path == NODES {
            let page_takes = {
                let mut behaviour = behaviour.lock().unwrap();
                behaviour.pages += 1;
                behaviour.page_takes
            };
            tokio::time::sleep(page_takes.unwrap_or_default()).await;
        }
        let is_excluded = target.contains("exclude=poststarthook/rbac/bootstrap-roles");
        let answered = if path == "/readyz" && behaviour.lock().unwrap().is_starting && !is_excluded {
            Some((500, "[-]poststarthook/rbac/bootstrap-roles failed".to_owned()))
        } else {
            answer(method, path, body, behaviour)
        };
        let Some((status, answer)) = answered else {
            return std::future::pending().await;
        };
        let head = format!(
            "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
}

async fn send_endless_body<S>(mut stream: BufStream<S>, behaviour: &Mutex<Behaviour>) -> std::io::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let head = "HTTP/1.1 200 x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    let chunk = format!("{CHUNK:x}\r\n{}\r\n", " ".repeat(CHUNK));
    // More than the memory of a process that reads all of it.
    while behaviour.lock().unwrap().taken < 1 << 30 {
        stream.write_all(chunk.as_bytes()).await?;
        stream.flush().await?;
        behaviour.lock().unwrap().taken += CHUNK;
    }
    Ok(())
}

/// Answers a request. `None` means that there is never an answer.
fn answer(method: &str, path: &str, body: Vec<u8>, behaviour: &Mutex<Behaviour>) -> Option<(u16, String)> {
    let mut behaviour = behaviour.lock().unwrap();
    behaviour.requests += 1;
    let missing = || {
        let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404});
        (404, status.to_string())
    };
    let object = |kind: &str, rest: serde_json::Value| {
        let mut object = serde_json::json!({"kind": kind, "apiVersion": "v1"});
        object
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        (200, object.to_string())
    };
    Some(match (method, path) {
        ("PATCH", _) => {
            behaviour.writes += 1;
            if behaviour.hangs {
                return None;
            }
            let is_refused = behaviour.refuses.is_some_and(|part| path.contains(part));
            if is_refused && behaviour.objects.contains_key(path) {
                let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "denied: not in my cluster", "reason": "Invalid", "code": 422});
                return Some((422, status.to_string()));
            }
            let text = String::from_utf8(body).unwrap();
            behaviour.objects.insert(path.to_owned(), text.clone());
            (200, text)
        }
        ("POST", _) => {
            behaviour.writes += 1;
            if behaviour.hangs {
                return None;
            }
            (201, String::from_utf8(body).unwrap())
        }
        (_, "/api/v1/namespaces/default") if !behaviour.lacks_namespaces => {
            object("Namespace", serde_json::json!({"metadata": {"name": "default"}}))
        }
        ("DELETE", _) => {
            behaviour.objects.remove(path);
            behaviour.deleted.push(path.to_owned());
            object("Status", serde_json::json!({"metadata": {}, "status": "Success"}))
        }
        (_, "/readyz") => (200, "ok".into()),
        (_, "/api/v1/namespaces/default/serviceaccounts/default") if behaviour.has_account => object(
            "ServiceAccount",
            serde_json::json!({"metadata": {"name": "default", "namespace": "default"}}),
        ),
        (_, NODES) => {
            let more = behaviour.page_takes.map(|_| "more");
            object(
                "NodeList",
                serde_json::json!({"metadata": {"continue": more}, "items": behaviour.nodes.clone()}),
            )
        }
        (_, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations") => object(
            "ValidatingWebhookConfigurationList",
            serde_json::json!({"metadata": {}, "items": behaviour.webhooks.clone()}),
        ),
        (_, "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations") => object(
            "MutatingWebhookConfigurationList",
            serde_json::json!({"metadata": {}, "items": []}),
        ),
        _ => behaviour
            .objects
            .get(path)
            .map_or_else(missing, |text| (200, text.clone())),
    })
}
