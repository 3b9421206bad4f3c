//! Connections to NATS:
//!
//! - a permanent one as a user of the system account, which pushes and deletes accounts;
//! - a short one in a Cluster's account, to inspect its streams.
//!
//! While NATS is not reachable, callers wait only for moments and then get an error. The connection
//! recovers by itself.

mod accounts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions, Event};
use k8s_openapi::jiff::Timestamp;
use nkeys::KeyPair;
use tokio::sync::watch;
use yoke_api::ClusterId;
use yoke_nats_auth::ClaimsError;

use crate::config::NatsConfig;
use crate::nats::account;
use crate::nats::permissions::PROVISIONER_INBOX;

const REQUEST_LIMIT: Duration = Duration::from_secs(4);
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// How long callers wait for the connection, at the start or after it was lost.
const PATIENCE: Duration = Duration::from_secs(4);

/// A request to NATS failed.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// A file in the secret folder cannot be read.
    #[error("reading {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// A file in the secret folder is invalid.
    #[error("file {what} in the NATS secret is invalid")]
    Malformed {
        /// Name of the file.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The connection failed.
    #[error("connecting to NATS")]
    Connect(#[source] async_nats::ConnectError),
    /// The connection has been lost for longer than callers wait.
    #[error("NATS is not reachable; the operator continues to retry")]
    Lost,
    /// A request has no answer.
    #[error("sending a NATS request to {subject}")]
    Request {
        /// Subject of the request.
        subject: String,
        /// Cause.
        #[source]
        source: async_nats::RequestError,
    },
    /// The server refused a request, or its answer is unknown.
    #[error("NATS refused {what}: {message}")]
    Refused {
        /// Subject matter of the request.
        what: &'static str,
        /// Message of the server.
        message: String,
    },
    /// The account belongs to another Cluster.
    #[error(
        "NATS account {account} belongs to {name:?}, not to this Cluster; delete the Cluster and create it \
         again"
    )]
    Foreign {
        /// Public key of the account.
        account: String,
        /// Name in its claims.
        name: String,
    },
    /// The log stream of a Cluster does not exist any more.
    #[error(
        "stream {stream} with the Cluster's data does not exist in NATS; restore it from a backup of NATS, \
         or delete the Cluster"
    )]
    LogLost {
        /// Name of the stream.
        stream: String,
    },
    /// A stream holds too much to be reduced to the new quota.
    #[error(
        "stream {stream} has {bytes} bytes, but a storage quota of {quota} allows at most {most}; raise the \
         quota, or delete objects and wait for the store's next snapshots"
    )]
    InUse {
        /// Name of the stream.
        stream: String,
        /// The new quota in bytes.
        quota: i64,
        /// Bytes in the stream.
        bytes: i64,
        /// Maximum bytes in the stream for this quota.
        most: i64,
    },
    /// The server has no disk space left to reserve.
    #[error(
        "NATS grants only {granted} of the {wanted} bytes that the store reserves; the administrator of the \
         host must add storage"
    )]
    NoRoom {
        /// Bytes that the account's streams reserve.
        wanted: i64,
        /// Bytes that the server grants.
        granted: i64,
    },
    /// A token cannot be signed.
    #[error("signing a NATS token")]
    Claims(#[from] ClaimsError),
    /// JetStream refused a request.
    #[error("{what}")]
    JetStream {
        /// Action that failed.
        what: String,
        /// Error code of the server, 0 without one.
        code: u64,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl NatsError {
    /// Returns whether a limit of the account, the server or the Cluster is the cause. An immediate
    /// retry does not help then.
    pub fn is_limit(&self) -> bool {
        // Account storage, no server with room, number of streams, server storage, JetStream
        // disabled for lack of storage, no size given: nats-server 2.15.
        matches!(
            self,
            Self::NoRoom { .. }
                | Self::InUse { .. }
                | Self::JetStream {
                    code: 10002 | 10023 | 10027 | 10039 | 10047 | 10113,
                    ..
                }
        )
    }
}

/// The operator's client of NATS.
#[derive(Clone)]
pub struct Nats {
    urls: Vec<String>,
    tls: rustls::ClientConfig,
    system: Client,
    signer: Arc<KeyPair>,
    /// Signs the operator's own users in every account.
    provisioner: Arc<KeyPair>,
    connected: watch::Receiver<u64>,
    /// Since when the connection is down; `None` while it is up.
    lost: watch::Receiver<Option<Instant>>,
    /// Accounts that this process has deleted and never pushes again. Their Clusters may still
    /// exist.
    deleted: Arc<Mutex<BTreeMap<ClusterId, String>>>,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats").field("urls", &self.urls).finish_non_exhaustive()
    }
}

impl Nats {
    /// Reads the secret folder and starts to connect. Continues in the background for as long as
    /// that takes.
    pub async fn connect(config: &NatsConfig) -> Result<Self, NatsError> {
        let read = |name: &str| {
            let path = config.secret_dir.join(name);
            std::fs::read_to_string(&path).map_err(|source| NatsError::File { path, source })
        };
        let seed = read("operator-signing.nk")?;
        let signer = KeyPair::from_seed(seed.trim()).map_err(|error| NatsError::Malformed {
            what: "operator-signing.nk",
            source: error.into(),
        })?;
        let tls = yoke_runtime::trust(read("ca.crt")?.as_bytes()).map_err(|error| NatsError::Malformed {
            what: "ca.crt",
            source: error.into(),
        })?;
        let (sender, connected) = watch::channel(0);
        let (lost_sender, lost) = watch::channel(Some(Instant::now()));
        let senders = Arc::new((sender, lost_sender));
        let options =
            ConnectOptions::with_credentials(&read("system.creds")?).map_err(|error| NatsError::Malformed {
                what: "system.creds",
                source: error.into(),
            })?;
        let system = options
            .tls_client_config(tls.clone())
            .require_tls(true)
            .name("yoke-operator")
            .connection_timeout(CONNECT_LIMIT)
            .request_timeout(Some(REQUEST_LIMIT))
            .retry_on_initial_connect()
            .reconnect_delay_callback(reconnect_delay)
            .event_callback(move |event| {
                let senders = Arc::clone(&senders);
                async move { record_event(event, &senders.0, &senders.1) }
            })
            .connect(config.urls.as_slice())
            .await
            .map_err(NatsError::Connect)?;
        Ok(Self {
            urls: config.urls.clone(),
            tls,
            system,
            signer: Arc::new(signer),
            provisioner: Arc::new(account::derive_provisioner(seed.trim())?),
            connected,
            lost,
            deleted: Arc::default(),
        })
    }

    /// Number of times that the connection came up. After each, NATS may have lost accounts.
    pub fn connected(&self) -> watch::Receiver<u64> {
        let mut connected = self.connected.clone();
        connected.mark_unchanged();
        connected
    }

    /// Returns whether the connection is up.
    pub fn is_connected(&self) -> bool {
        self.system.connection_state() == async_nats::connection::State::Connected
    }

    /// Connects in an account, as a user that may create and change its streams.
    pub async fn connect_account(&self, account: &str) -> Result<Client, NatsError> {
        self.wait().await?;
        let now = Timestamp::now().as_second();
        let credentials = account::provisioner_credentials(account, &self.provisioner, now)?;
        self.connect_user(&credentials).await
    }

    async fn connect_user(&self, credentials: &str) -> Result<Client, NatsError> {
        ConnectOptions::with_credentials(credentials)
            .map_err(|error| NatsError::Malformed {
                what: "credentials",
                source: error.into(),
            })?
            .tls_client_config(self.tls.clone())
            .require_tls(true)
            .name("yoke-operator")
            .custom_inbox_prefix(PROVISIONER_INBOX)
            .connection_timeout(CONNECT_LIMIT)
            .request_timeout(Some(REQUEST_LIMIT))
            .reconnect_delay_callback(reconnect_delay)
            .connect(self.urls.as_slice())
            .await
            .map_err(NatsError::Connect)
    }

    async fn request(&self, subject: String, payload: String) -> Result<async_nats::Message, NatsError> {
        self.wait().await?;
        self.system
            .request(subject.clone(), payload.into())
            .await
            .map_err(|source| NatsError::Request { subject, source })
    }

    /// Waits for moments until the connection is up.
    async fn wait(&self) -> Result<(), NatsError> {
        let mut lost = self.lost.clone();
        loop {
            let Some(since) = lost.borrow_and_update().map(|since| since.elapsed()) else {
                return Ok(());
            };
            let change = tokio::time::timeout(PATIENCE.saturating_sub(since), lost.changed());
            if !matches!(change.await, Ok(Ok(()))) {
                return Err(NatsError::Lost);
            }
        }
    }
}

/// Publishes whether the connection is up.
fn record_event(event: Event, connected: &watch::Sender<u64>, lost: &watch::Sender<Option<Instant>>) {
    match event {
        Event::Connected => {
            lost.send_replace(None);
            connected.send_modify(|times| *times += 1);
        }
        Event::Disconnected => {
            lost.send_modify(|since| {
                since.get_or_insert_with(Instant::now);
            });
            tracing::warn!("connection to NATS lost");
        }
        other => tracing::debug!(event = %other, "event on the connection to NATS"),
    }
}

/// The count includes the very first attempt.
fn reconnect_delay(attempts: usize) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        more => Duration::from_millis(100 << more.min(4)),
    }
}
