//! The APIs of the awake Clusters. All Clusters share one set of objects, because the operator
//! writes the same objects to each. Watches never receive an event.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use axum::body::Body;
use futures::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use yoke_bench_harness::tenants::{self, TenantApis};
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
    /// Serves the APIs until the process exits.
    pub(crate) async fn serve() -> Result<Self> {
        let tenants = Self::default();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}});
        tenants.lock().objects.insert(ACCOUNT.to_owned(), account);
        tenants::serve(tenants.clone()).await?;
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

impl TenantApis for Tenants {
    fn tls_config(&self, server_name: &str) -> Option<Arc<ServerConfig>> {
        self.lock().configs.get(server_name).cloned()
    }

    async fn answer(&self, _local: IpAddr, request: Request<Incoming>) -> Response<Body> {
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
