//! The etcd API. Each service validates a request, forwards it to the store or its writer, and
//! completes the header of the response.

mod backup;
mod cluster;
mod counted;
mod health;
mod kv;
mod lease;
mod maintenance;
mod pages;
mod submit;
mod watch;
pub(crate) mod wire;

pub(crate) use maintenance::is_full;

use crate::metrics::Calls;
use crate::proto::etcdserverpb as pb;
use crate::refusal::Refusal;
use crate::store::{REQUEST_LIMIT, Store};
use crate::validate::MAX_REQUEST;
use counted::Counted;
use pb::cluster_server::ClusterServer;
use pb::kv_server::KvServer;
use pb::lease_server::LeaseServer;
use pb::maintenance_server::MaintenanceServer;
use pb::watch_server::WatchServer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, watch as channel};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

/// Largest message that the server accepts. Like etcd it is `grpcOverheadBytes` more than the
/// largest request, whose limit has an error of its own.
const MAX_MESSAGE: usize = MAX_REQUEST + 512 * 1024;
/// etcd version reported to clients; ≥ 3.5.13 makes them request progress notifications.
pub(crate) const VERSION: &str = "3.6.8";

/// State that all services share.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    store: channel::Receiver<Option<Arc<Store>>>,
    progress_interval: Duration,
    client_urls: Arc<[String]>,
    /// Permits for concurrent backups.
    backups: Arc<Semaphore>,
    /// Held by the call that hashes the store.
    hashes: Arc<Mutex<()>>,
}

impl Node {
    pub(crate) fn new(
        store: channel::Receiver<Option<Arc<Store>>>,
        progress_interval: Duration,
        client_urls: Vec<String>,
    ) -> Self {
        Self {
            store,
            progress_interval,
            client_urls: client_urls.into(),
            backups: Arc::new(Semaphore::new(backup::AT_A_TIME)),
            hashes: Arc::default(),
        }
    }

    /// The store, once this process serves it. A caller that requires a leader waits for one until
    /// the request limit. etcd rejects such a call at once. The watch caches of kube-apiserver
    /// (1.35) then retry without a delay for half a minute, and use a whole core.
    async fn store(&self, metadata: &MetadataMap) -> Result<Arc<Store>, Status> {
        let limit = Instant::now() + REQUEST_LIMIT;
        let known = self.store.borrow().clone();
        let store = match known {
            Some(store) => store,
            None => self.wait(limit).await.ok_or(Refusal::NoLeader)?,
        };
        let needs_leader = needs_leader(metadata);
        if needs_leader {
            // The result does not matter: the check below covers it.
            let _ = timeout_at(limit, store.led()).await;
        }
        find_refusal(&store, needs_leader).map_or(Ok(store), |refusal| Err(refusal.into()))
    }

    /// Waits until there is a store.
    async fn wait(&self, limit: Instant) -> Option<Arc<Store>> {
        let mut receiver = self.store.clone();
        let ready = timeout_at(limit, receiver.wait_for(Option::is_some)).await;
        let store = ready.ok()?.ok()?;
        store.clone()
    }
}

/// Builds all services, with their calls counted.
pub(crate) fn routes(node: &Node, calls: &Arc<Calls>) -> Routes {
    let mut routes = Routes::builder();
    let kv = KvServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let watch = WatchServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let lease = LeaseServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let cluster = ClusterServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    let maintenance = MaintenanceServer::new(node.clone()).max_decoding_message_size(MAX_MESSAGE);
    routes
        .add_service(Counted::new(kv, Arc::clone(calls)))
        .add_service(Counted::new(watch, Arc::clone(calls)))
        .add_service(Counted::new(lease, Arc::clone(calls)))
        .add_service(Counted::new(cluster, Arc::clone(calls)))
        .add_service(Counted::new(maintenance, Arc::clone(calls)))
        .add_service(Counted::new(HealthServer::new(node.clone()), Arc::clone(calls)));
    routes.routes()
}

/// Whether the caller requires that this process knows a leader.
fn needs_leader(metadata: &MetadataMap) -> bool {
    metadata.get("hasleader").is_some_and(|value| value == "true")
}

/// Why the store cannot serve a valid call now, or why a stream must end.
fn find_refusal(store: &Store, needs_leader: bool) -> Option<Refusal> {
    if store.is_stopping() {
        Some(Refusal::Stopped)
    } else if needs_leader && !store.has_leader() {
        Some(Refusal::NoLeader)
    } else {
        None
    }
}

/// The status of a call of etcd's API that has no meaning here, with the reason.
fn unsupported(why: &str) -> Status {
    Status::unimplemented(format!("kine-nats: {why}"))
}
