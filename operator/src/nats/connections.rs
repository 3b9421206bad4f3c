//! Connections in the accounts of Tenants: one an account, kept while it is used. Clusters have no connection of their own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::connection::State;
use tokio::sync::OnceCell;

use super::account::PROVISIONER_SECONDS;
use super::server::NatsError;

/// How long a connection is used: half the life of the credentials that it was made with.
const LONGEST_USE: Duration = Duration::from_secs(PROVISIONER_SECONDS.unsigned_abs() / 2);
/// A connection that nobody asked for so long is closed. Streams of a Cluster are looked at more often.
const IDLE: Duration = Duration::from_secs(300);

/// The connections.
#[derive(Clone, Default)]
pub(super) struct Connections {
    known: Arc<Mutex<HashMap<Key, Arc<Slot>>>>,
}

/// What a connection is in, and by what it was let in: public keys.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) account: String,
    pub(super) provisioner: String,
}

/// A connection that somebody makes while others wait for it.
struct Slot {
    client: OnceCell<Client>,
    made: Instant,
    used: Mutex<Instant>,
}

impl Connections {
    /// The connection of that key; made if there is none, or none that is up.
    pub(super) async fn get(
        &self,
        key: Key,
        connect: impl Future<Output = Result<Client, NatsError>>,
    ) -> Result<Client, NatsError> {
        let slot = self.find(key);
        slot.client.get_or_try_init(|| connect).await.cloned()
    }

    /// Closes those that nobody uses.
    pub(super) fn close_idle(&self) {
        lock(&self.known).retain(|_, slot| lock(&slot.used).elapsed() < IDLE);
    }

    /// Closes those in an account that is about to end: the server would throw them out, and they would try again.
    pub(super) async fn close(&self, account: &str) {
        let slots: Vec<_> = lock(&self.known)
            .extract_if(|key, _| key.account == account)
            .map(|(_, slot)| slot)
            .collect();
        for client in slots.iter().filter_map(|slot| slot.client.get()) {
            // Errors are of a connection that has ended. What is flushed after the end tells that it came.
            let _ = client.drain().await;
            let _ = client.flush().await;
        }
    }

    fn find(&self, key: Key) -> Arc<Slot> {
        let mut known = lock(&self.known);
        let slot = match known.get(&key).filter(|slot| slot.is_good()) {
            Some(slot) => Arc::clone(slot),
            None => {
                let now = Instant::now();
                let slot = Arc::new(Slot {
                    client: OnceCell::new(),
                    made: now,
                    used: Mutex::new(now),
                });
                known.insert(key, Arc::clone(&slot));
                slot
            }
        };
        *lock(&slot.used) = Instant::now();
        slot
    }
}

impl Slot {
    /// Whether it may be used: it is up, or being made.
    fn is_good(&self) -> bool {
        let is_up = |client: &Client| client.connection_state() == State::Connected;
        self.made.elapsed() < LONGEST_USE && self.client.get().is_none_or(is_up)
    }
}

/// Each change is one insertion, removal or assignment, so what is locked is whole after any panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
