//! The control planes: each answers with its own address, or with a watch.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use futures::stream;
use http::{Request, Response};
use hyper::body::Incoming;
use rustls::ServerConfig;
use yoke_bench_harness::tenants::TenantApis;

use crate::fleet::Fleet;

/// Path of a response that never ends and sends an event every `PACE`.
pub(crate) const WATCH: &str = "/watch";
const PACE: Duration = Duration::from_millis(500);

/// The control planes.
#[derive(Clone)]
pub(crate) struct Tenants {
    fleet: Arc<Fleet>,
    /// TLS configuration by cluster index, created on first use.
    configs: Arc<Mutex<HashMap<usize, Arc<ServerConfig>>>>,
}

impl Tenants {
    pub(crate) fn new(fleet: Arc<Fleet>) -> Self {
        Self {
            fleet,
            configs: Arc::default(),
        }
    }
}

impl TenantApis for Tenants {
    fn tls_config(&self, server_name: &str) -> Option<Arc<ServerConfig>> {
        let index = self.fleet.find(server_name)?;
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        let config = configs.entry(index).or_insert_with(|| {
            let (ca, leaf) = self.fleet.certify(index);
            let mut config = ca.server(&leaf);
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            Arc::new(config)
        });
        Some(Arc::clone(config))
    }

    async fn answer(&self, local: IpAddr, request: Request<Incoming>) -> Response<Body> {
        answer(local, &request)
    }
}

/// Answers with the address on which the request arrived.
fn answer(local: IpAddr, request: &Request<Incoming>) -> Response<Body> {
    if request.uri().path() != WATCH {
        return Response::new(Body::from(local.to_string()));
    }
    let lines = stream::unfold((), |()| async {
        tokio::time::sleep(PACE).await;
        Some((Ok::<_, Infallible>("event\n"), ()))
    });
    Response::new(Body::from_stream(lines))
}
