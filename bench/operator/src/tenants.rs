//! The APIs of the awake Clusters: one server on all their addresses, with a certificate for each
//! Cluster. All Clusters share one set of objects, because the operator writes the same objects to
//! each. Watches never receive an event.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use axum::body::Body;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use yoke_api::names::API_PORT;
use yoke_operator::testing::cluster::resources::secrets::Leaf;

/// An object that the controllers create in every cluster.
const ACCOUNT: &str = "/api/v1/namespaces/default/serviceaccounts/default";

/// The server of all APIs.
#[derive(Clone, Default)]
pub(crate) struct Tenants(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    configs: HashMap<String, Arc<ServerConfig>>,
    /// Objects by API path.
    objects: BTreeMap<String, Value>,
}

impl Tenants {
    /// Serves until the process exits.
    pub(crate) async fn serve() -> Result<Self> {
        let tenants = Self::default();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}});
        tenants.lock().objects.insert(ACCOUNT.to_owned(), account);
        let listener = TcpListener::bind(("0.0.0.0", API_PORT))
            .await
            .context("listening for all Clusters")?;
        let serving = tenants.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tenants = serving.clone();
                // An error means that the client disconnected.
                tokio::spawn(async move { tenants.converse(stream).await.ok() });
            }
        });
        Ok(tenants)
    }

    /// Adds a Cluster's API with its server name and certificate.
    pub(crate) fn add(&self, name: String, leaf: &Leaf) -> Result<()> {
        let chain = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes())?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        self.lock().configs.insert(name, Arc::new(config));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn converse(&self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let start = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let name = start.client_hello().server_name().unwrap_or_default().to_owned();
        let config = self
            .lock()
            .configs
            .get(&name)
            .cloned()
            .context("nobody has the server name")?;
        let stream = start.into_stream(config).await?;
        let tenants = self.clone();
        let service = service_fn(move |request| {
            let tenants = tenants.clone();
            async move { Ok::<_, Infallible>(tenants.answer(request).await) }
        });
        let served = Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
        served.map_err(|error| anyhow::anyhow!(error))
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        match (&parts.method, path.as_str()) {
            (&Method::GET, "/readyz") => Response::new("ok".into()),
            (&Method::GET, "/version") => to_answer(
                &json!({"major": "1", "minor": "35", "gitVersion": "v1.35.4", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            (&Method::GET, _) if parts.uri.query().is_some_and(|query| query.contains("watch=true")) => {
                Response::new(Body::from_stream(stream::pending::<Result<&'static str, Infallible>>()))
            }
            (&Method::GET, _) => self.find(&path),
            (&Method::PATCH, _) => {
                let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let object: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let answer = to_answer(&object);
                self.lock().objects.insert(path, object);
                answer
            }
            _ => to_error(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }

    /// Answers with an object, or with all objects of a resource.
    fn find(&self, path: &str) -> Response<Body> {
        let inside = self.lock();
        if let Some(object) = inside.objects.get(path) {
            return to_answer(object);
        }
        let folder = format!("{path}/");
        let items: Vec<_> = inside
            .objects
            .iter()
            .filter(|(path, _)| path.starts_with(&folder))
            .map(|(_, object)| object)
            .collect();
        // A path that has objects below it, or that names a resource, is a list.
        let is_list = !items.is_empty() || is_kind(path);
        if !is_list {
            return to_error(StatusCode::NOT_FOUND, "NotFound");
        }
        to_answer(&json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
    }
}

/// Whether a path names a resource and not an object: `/api/v1/RESOURCE` or
/// `/apis/GROUP/VERSION/RESOURCE`, each also with a namespace.
fn is_kind(path: &str) -> bool {
    let mut parts: Vec<_> = path.split('/').skip(1).collect();
    parts.drain(..parts.len().min(if parts.first() == Some(&"api") { 2 } else { 3 }));
    match parts.as_slice() {
        ["namespaces", _, _] => true,
        parts => parts.len() == 1,
    }
}

fn to_answer(value: &Value) -> Response<Body> {
    Response::builder()
        .header("content-type", "application/json")
        .body(value.to_string().into())
        .expect("a status and a header that are valid")
}

fn to_error(code: StatusCode, reason: &str) -> Response<Body> {
    let status = json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16()});
    let mut answer = to_answer(&status);
    *answer.status_mut() = code;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_from_objects() {
        for (path, expected) in [
            ("/api/v1/nodes", true),
            ("/api/v1/nodes/a", false),
            ("/api/v1/namespaces/default/endpoints", true),
            ("/api/v1/namespaces/default/endpoints/kubernetes", false),
            ("/apis/certificates.k8s.io/v1/certificatesigningrequests", true),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles/a", false),
        ] {
            assert_eq!(is_kind(path), expected, "{path}");
        }
    }
}
