//! The host cluster, as every controller sees it.

use kube::Client;

use crate::config::Config;
use crate::host_api::cache::Caches;
use crate::host_api::events::Events;
use crate::host_api::root_ca::{RootCa, RootError};

/// The host cluster, as every controller sees it.
pub struct Host {
    /// Client of the host API.
    pub client: Client,
    /// Configuration of the operator.
    pub config: Config,
    /// Watch caches.
    pub caches: Caches,
    /// Publisher of events.
    pub events: Events,
    /// The root certificate.
    root_ca: RootCa,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Host {
    /// Creates the view of the host from its parts.
    pub fn new(client: Client, config: Config, caches: Caches) -> Self {
        Self {
            events: Events::new(client.clone()),
            root_ca: RootCa::default(),
            client,
            config,
            caches,
        }
    }

    /// Returns the root certificate, PEM. At most a minute old.
    pub async fn root_certificate(&self) -> Result<String, RootError> {
        self.root_ca.get(&self.client).await
    }

    /// Replaces the root certificate until it is read again. For tests of the key's loss.
    #[doc(hidden)]
    pub async fn replace_root_certificate(&self, pem: String) {
        self.root_ca.replace(pem).await;
    }
}
