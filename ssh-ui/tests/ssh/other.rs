//! A second server for the same host, which a test can end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use yoke_runtime::DrainTrigger;
use yoke_ssh_ui::identity::key_registry::KeyRegistry;
use yoke_ssh_ui::limits::admission::{Admission, Limits};
use yoke_ssh_ui::metrics::Metrics;
use yoke_ssh_ui::shared::Shared;
use yoke_ssh_ui::ssh::host_key;
use yoke_ssh_ui::ssh::listener::ServeError;
use yoke_ssh_ui::ssh::server::Server;

use crate::world::{HOST_KEY, NAMESPACE, World};

/// The server.
pub(crate) struct Other {
    pub(crate) port: u16,
    trigger: DrainTrigger,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Other {
    pub(crate) async fn start(
        world: &World,
        host: Client,
        keys: watch::Receiver<KeyRegistry>,
        limits: Limits,
        idle: Duration,
    ) -> Self {
        let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let port = server.local_address().port();
        let shared = Arc::new(Shared {
            host,
            keys,
            admission: Admission::new(limits, Instant::now()).into(),
            contact: None,
            worker_binaries: None,
            write_limit: Duration::from_secs(1),
            metrics: Metrics::default(),
        });
        let key = host_key::load(world.server.clone(), NAMESPACE, HOST_KEY).await.unwrap();
        let (trigger, drain) = DrainTrigger::new();
        let serving = tokio::spawn(server.serve(shared, key, idle, drain));
        Self { port, trigger, serving }
    }

    /// Ends it as a termination signal would.
    pub(crate) async fn end(self) {
        self.trigger.start();
        self.serving.await.unwrap().unwrap();
    }
}
