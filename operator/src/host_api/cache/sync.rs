//! The first lists of the watches.

use std::hash::Hash;
use std::time::Duration;

use kube::runtime::reflector::{Lookup, Store};

use crate::host_api::compact_store::Ended;

/// Timeout of the first lists, after which the process exits. There may be hundreds of thousands of
/// objects.
pub(super) const SYNC_LIMIT: Duration = Duration::from_secs(180);

/// The first lists are not complete.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// A watch ended before its first list.
    #[error("a watch of the host API ended before its first list")]
    Ended(#[source] Ended),
    /// The timeout passed. Contains the kinds that the host API does not serve.
    #[error(
        "waiting for the first lists of the host API: not complete within {SYNC_LIMIT:?}; kinds that it does \
         not serve: {0}; install the CustomResourceDefinitions of Yoke and cert-manager"
    )]
    Limit(String),
}

/// Waits for the first list of a store.
pub(super) async fn wait_for<K>(store: &Store<K>) -> Result<(), Ended>
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    store.wait_until_ready().await.map_err(|_| Ended)
}
