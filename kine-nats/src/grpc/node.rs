//! The state behind all services, and the checks that every call starts with.

use crate::error::RpcError;
use crate::limits::REQUEST_LIMIT;
use crate::store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, watch as channel};
use tokio::time::{Instant, timeout_at};
use tonic::Status;
use tonic::metadata::MetadataMap;

/// Backups that may be sent concurrently: each keeps its content in memory until it is sent.
pub(super) const BACKUPS: usize = 2;

/// State that all services share.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(super) store: channel::Receiver<Option<Arc<Store>>>,
    pub(super) progress_interval: Duration,
    pub(super) client_urls: Arc<[String]>,
    /// Permits for concurrent backups.
    pub(super) backups: Arc<Semaphore>,
    /// Held by the call that hashes the store.
    pub(super) hashes: Arc<Mutex<()>>,
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
            backups: Arc::new(Semaphore::new(BACKUPS)),
            hashes: Arc::default(),
        }
    }

    /// The store, once this process serves it. A caller that requires a leader waits for one until
    /// the request limit. etcd rejects such a call at once. The watch caches of kube-apiserver
    /// (1.35) then retry without a delay for half a minute, and use a whole core.
    pub(super) async fn store(&self, metadata: &MetadataMap) -> Result<Arc<Store>, Status> {
        let limit = Instant::now() + REQUEST_LIMIT;
        let known = self.store.borrow().clone();
        let store = match known {
            Some(store) => store,
            None => self.wait(limit).await.ok_or(RpcError::NoLeader)?,
        };
        let needs_leader = needs_leader(metadata);
        if needs_leader {
            // The result does not matter: the check below covers it.
            let _ = timeout_at(limit, store.wait_for_leader()).await;
        }
        unavailable_error(&store, needs_leader).map_or(Ok(store), |error| Err(error.into()))
    }

    /// Waits until there is a store.
    async fn wait(&self, limit: Instant) -> Option<Arc<Store>> {
        let mut receiver = self.store.clone();
        let ready = timeout_at(limit, receiver.wait_for(Option::is_some)).await;
        let store = ready.ok()?.ok()?;
        store.clone()
    }
}

/// Whether the caller requires that this process knows a leader.
pub(super) fn needs_leader(metadata: &MetadataMap) -> bool {
    metadata.get("hasleader").is_some_and(|value| value == "true")
}

/// Why the store cannot serve a valid call now, or why a stream must end.
pub(super) fn unavailable_error(store: &Store, needs_leader: bool) -> Option<RpcError> {
    if store.is_stopping() {
        Some(RpcError::Stopped)
    } else if needs_leader && !store.has_leader() {
        Some(RpcError::NoLeader)
    } else {
        None
    }
}

/// The status of a call of etcd's API that has no meaning here, with the reason.
pub(super) fn unsupported(why: &str) -> Status {
    Status::unimplemented(format!("kine-nats: {why}"))
}
