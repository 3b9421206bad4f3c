//! Connections to NATS: one as a user of the system account, which pushes and deletes accounts; and in a Cluster's account,
//! for as long as its streams are looked at.
//!
//! While NATS is lost nobody waits for it but for moments: who asks is told at once, and the connection comes back by itself.

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

use super::account;
use super::claims::ClaimsError;
use super::permissions::PROVISIONER_INBOX;
use crate::config::NatsConfig;

const REQUEST_LIMIT: Duration = Duration::from_secs(4);
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// How long the connection may take to come up, at the start or after it was lost, while those who ask wait for it.
const PATIENCE: Duration = Duration::from_secs(4);

/// Something about NATS failed.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// A file of the secret folder cannot be read.
    #[error("reading {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file of the secret folder is not what it should be.
    #[error("{what} in the NATS secret is not usable")]
    Malformed {
        /// The file's name.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No connection.
    #[error("connecting to NATS")]
    Connect(#[source] async_nats::ConnectError),
    /// The connection is lost, and not for moments only.
    #[error("NATS cannot be reached; the operator goes on trying")]
    Lost,
    /// No answer.
    #[error("asking NATS on {subject}")]
    Request {
        /// Where the request went.
        subject: String,
        /// Why there is no answer.
        #[source]
        source: async_nats::RequestError,
    },
    /// The server's answer is a refusal, or is none that is known.
    #[error("NATS refused {what}: {message}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The server's words.
        message: String,
    },
    /// An account is not the Cluster's.
    #[error("NATS account {account} is that of {name:?} and not this Cluster's; delete the Cluster and make it anew")]
    Foreign {
        /// The account.
        account: String,
        /// The name in its claims.
        name: String,
    },
    /// The log of a Cluster is gone.
    #[error(
        "NATS has no stream {stream}, which the Cluster's data is in; restore it from a backup of NATS, or delete the Cluster"
    )]
    LogLost {
        /// The stream.
        stream: String,
    },
    /// A stream holds too much to be made as small as the quota asks for.
    #[error(
        "stream {stream} holds {held} bytes, and at most {most} go with a storage quota of {quota}; \
         ask for more, or delete objects and wait for the store's next snapshots"
    )]
    InUse {
        /// The stream.
        stream: String,
        /// The quota.
        quota: i64,
        /// Bytes that the stream holds.
        held: i64,
        /// Bytes that it may hold to be made that small.
        most: i64,
    },
    /// The server's disk is promised to others.
    #[error("the host's NATS lets the store reserve {given} of {wanted} bytes; its owner can make room")]
    NoRoom {
        /// Bytes that the account's streams reserve.
        wanted: i64,
        /// Bytes that the server lets it have.
        given: i64,
    },
    /// A token cannot be made.
    #[error("making a NATS token")]
    Claims(#[from] ClaimsError),
    /// JetStream refused something.
    #[error("{what}")]
    JetStream {
        /// What was being done.
        what: String,
        /// Code of the server's error, 0 if it gave none.
        code: u64,
        /// Why not.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl NatsError {
    /// Whether a limit of the account, the server or the Cluster forbids it, which trying again at once does not change.
    pub fn is_limit(&self) -> bool {
        // Account storage, no server with room, number of streams, server storage, no
        // JetStream for want of it, no size given: nats-server 2.15.
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

/// The operator's side of NATS.
#[derive(Clone)]
pub struct Nats {
    urls: Vec<String>,
    tls: rustls::ClientConfig,
    system: Client,
    signer: Arc<KeyPair>,
    /// Signs the operator's own users in every account.
    provisioner: Arc<KeyPair>,
    connected: watch::Receiver<u64>,
    /// Since when the connection is not up; `None` while it is.
    lost: watch::Receiver<Option<Instant>>,
    /// Accounts that this process has deleted, which are never pushed again, of Clusters that may not be gone yet.
    deleted: Arc<Mutex<BTreeMap<ClusterId, String>>>,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats").field("urls", &self.urls).finish_non_exhaustive()
    }
}

impl Nats {
    /// Reads the secret folder and starts to connect; goes on in the background for as long as it takes.
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
                async move {
                    let (sender, lost) = senders.as_ref();
                    match event {
                        Event::Connected => {
                            lost.send_replace(None);
                            sender.send_modify(|times| *times += 1);
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

    /// Counts the times that the connection came up; changes with the next one, when NATS may have lost accounts.
    pub fn connected(&self) -> watch::Receiver<u64> {
        let mut connected = self.connected.clone();
        connected.mark_unchanged();
        connected
    }

    /// Whether the connection is up.
    pub fn is_connected(&self) -> bool {
        self.system.connection_state() == async_nats::connection::State::Connected
    }

    /// Connects in an account, as a user that may make and change its streams.
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

    /// Waits until the connection is up, as long as that may take moments only.
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

/// The first attempt of all is counted too.
fn reconnect_delay(attempts: usize) -> Duration {
    match attempts {
        0 | 1 => Duration::ZERO,
        more => Duration::from_millis(100 << more.min(4)),
    }
}
