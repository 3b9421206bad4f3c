//! The state that all connections share, and the check that every command starts with.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use tokio::sync::watch;

use crate::Error;
use crate::identity::key_registry::{Identity, KeyRegistry};
use crate::limits::admission::Admission;
use crate::metrics::Metrics;

/// State that all connections share.
pub struct Shared {
    /// The host API, with this process's own permissions.
    pub host: Client,
    /// The owners of SSH keys. No client is admitted before its first update.
    pub keys: watch::Receiver<KeyRegistry>,
    /// Limits of connections and rates.
    pub admission: Mutex<Admission>,
    /// Contact for users whose key is unknown.
    pub contact: Option<String>,
    /// Directory with `yoke-worker` for several architectures, if configured.
    pub worker_binaries: Option<PathBuf>,
    /// Timeout of a write: how long a client may take to read one piece of an answer.
    pub write_limit: Duration,
    /// The metrics of the process.
    pub metrics: Metrics,
}

impl Shared {
    /// Checks that the client may execute a command now: its key is within its rate and still
    /// belongs to its Tenant. Every command starts with this check. Callers do not log a
    /// rate-limited command.
    pub fn check_command(&self, identity: &Identity) -> Result<(), Error> {
        if !self.admission().take_command(&identity.fingerprint, Instant::now()) {
            return Err(Error::RateLimited);
        }
        self.check_key(identity)
    }

    /// Checks that the key still belongs to the client's Tenant.
    pub fn check_key(&self, identity: &Identity) -> Result<(), Error> {
        let now = self.keys.borrow().find(&identity.fingerprint);
        match now.is_some_and(|now| now.tenant == identity.tenant) {
            true => Ok(()),
            false => Err(Error::KeyWithdrawn),
        }
    }

    pub(crate) fn admission(&self) -> MutexGuard<'_, Admission> {
        // A panic leaves the counts consistent, because each operation changes them last.
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
