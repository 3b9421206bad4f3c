//! The listener: lets connections in, each with an end, and knows what all of them share.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use kube::Client;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{MethodKind, MethodSet, Preferred, SshId, kex};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use yoke_runtime::{AcceptBackoff, Drain};

use crate::Error;
use crate::connection::Connection;
use crate::directory::{Directory, Identity};
use crate::gate::Gate;
use crate::leash::Leash;
use crate::metrics::Metrics;

/// How long somebody may take to show a key.
const LOGIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a connection may live, used or not: keys that were taken away do not stay connected.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// How long connections have to end when the process does, or when they are too old.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Keys that one may try. Agents offer all that they hold.
const ATTEMPTS: usize = 20;
/// Bytes that a client may send ahead on a channel: it has little to say here.
const WINDOW: u32 = 256 * 1024;
const PACKET: u32 = 32 * 1024;
/// How two sides agree on keys. Only what costs a server next to nothing: the groups of plain Diffie-Hellman take it up to
/// a fifth of a second of work, before anybody has shown a key. No client has these alone since OpenSSH 6.5 (2014).
const KEY_EXCHANGE: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// The server could not be opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listening on {address} for SSH")]
    Bind {
        /// The address as given.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
}

/// What all connections share.
pub struct Shared {
    /// The host API, with this process's own rights.
    pub host: Client,
    /// Whose a key is. Nobody is let in before its first change.
    pub directory: watch::Receiver<Directory>,
    /// Who may come in, and how often.
    pub gate: Mutex<Gate>,
    /// Whom to ask whose key is not known.
    pub contact: Option<String>,
    /// How long a client has to take a piece of an answer.
    pub write_limit: Duration,
    /// What is counted.
    pub metrics: Metrics,
}

impl Shared {
    /// Whether somebody may do one more thing now: the key is not used too often, and still theirs. Everything else comes
    /// after this, and of what comes too fast nothing is written down.
    pub fn permit(&self, identity: &Identity) -> Result<(), Error> {
        if !self.gate().act(&identity.fingerprint, Instant::now()) {
            return Err(Error::TooFast);
        }
        self.know(identity)
    }

    /// Whether somebody's key is still theirs.
    pub fn know(&self, identity: &Identity) -> Result<(), Error> {
        let now = self.directory.borrow().find(&identity.fingerprint);
        match now.is_some_and(|now| now.tenant == identity.tenant) {
            true => Ok(()),
            false => Err(Error::KeyWithdrawn),
        }
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        // The gate is whole after any panic: what counts is changed last.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a connection ends, whatever goes on.
#[derive(Clone, Debug)]
pub struct Ends {
    /// Soon after this has started.
    pub drain: Drain,
    /// After this long without anything from the client.
    pub idle: Duration,
    /// Soon after this.
    pub last: tokio::time::Instant,
}

/// The listening server; it answers once [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, local })
    }

    /// The address that is listened on.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Serves until the drain starts; then what is connected has some seconds to end.
    pub async fn serve(self, shared: Shared, key: PrivateKey, idle: Duration, drain: Drain) -> Result<(), ServeError> {
        let mut directory = shared.directory.clone();
        if drain.until_started(directory.changed()).await.is_none() {
            return Ok(());
        }
        let shared = Arc::new(shared);
        let config = Arc::new(build_config(key, idle));
        let (mut connections, mut backoff) = (JoinSet::new(), AcceptBackoff::default());
        while let Some(accepted) = drain.until_started(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => match Seat::take(&shared, peer.ip()) {
                    Ok(seat) => {
                        let ends = Ends {
                            drain: drain.clone(),
                            idle,
                            last: tokio::time::Instant::now() + LIFETIME,
                        };
                        connections.spawn(connect(stream, seat, Arc::clone(&config), ends));
                    }
                    Err(advice) => turn_away(stream, advice).await,
                },
                Err(error) => backoff.wait(&error).await,
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
        Ok(())
    }
}

/// A connection's place, given back when it is dropped.
pub struct Seat {
    shared: Arc<Shared>,
    source: IpAddr,
    tenant: OnceLock<String>,
}

impl Seat {
    fn take(shared: &Arc<Shared>, source: IpAddr) -> Result<Self, &'static str> {
        let source = source.to_canonical();
        if let Err(refusal) = shared.gate().enter(source, Instant::now()) {
            shared.metrics.count_refusal(refusal);
            tracing::debug!(%source, reason = refusal.as_str(), "connection refused");
            return Err(refusal.advice());
        }
        shared.metrics.add_connections(1);
        Ok(Self {
            shared: Arc::clone(shared),
            source,
            tenant: OnceLock::new(),
        })
    }

    /// Where the connection comes from.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Makes it a seat of a Tenant's, whose key was shown. False if the Tenant has as many as it may.
    pub fn admit(&self, tenant: &str) -> bool {
        if let Some(known) = self.tenant.get() {
            return known == tenant;
        }
        let admitted = self.shared.gate().admit(self.source, tenant);
        match admitted {
            Ok(()) => {
                // Only the one connection on this seat calls this.
                let _ = self.tenant.set(tenant.to_owned());
            }
            Err(refusal) => self.shared.metrics.count_refusal(refusal),
        }
        admitted.is_ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let tenant = self.tenant.get().map(String::as_str);
        self.shared.gate().leave(self.source, tenant);
        self.shared.metrics.add_connections(-1);
    }
}

/// A Tenant's interface that is shown, until it is dropped.
pub struct Shown {
    shared: Arc<Shared>,
    tenant: String,
}

impl Shown {
    /// One more, if the Tenant may have it.
    pub fn take(shared: &Arc<Shared>, tenant: &str) -> Option<Self> {
        shared.gate().show(tenant).then(|| Self {
            shared: Arc::clone(shared),
            tenant: tenant.to_owned(),
        })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.shared.gate().hide(&self.tenant);
    }
}

/// Before its version a server may say anything (RFC 4253, 4.2). Not waited for: the listener is everybody's.
async fn turn_away(mut stream: TcpStream, advice: &str) {
    let line = format!("{advice}\r\n");
    let _ = tokio::time::timeout(Duration::from_millis(10), stream.write_all(line.as_bytes())).await;
}

async fn connect(stream: TcpStream, seat: Seat, config: Arc<Config>, ends: Ends) {
    let _ = stream.set_nodelay(true);
    let (login, logged_in) = watch::channel(false);
    let over = until_over(logged_in, ends.clone()).boxed().shared();
    let stream = Leash::new(stream, over.clone());
    let seat = Arc::new(seat);
    let connection = Connection::new(Arc::clone(&seat.shared), &seat, login, ends);
    let served = async { russh::server::run_stream(config, stream, connection).await?.await };
    // The session is a task of the library's that nobody can end: should it hang, the seat comes back all the same.
    tokio::select! {
        biased;
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(source = %seat.source, %error, "connection ended");
            }
        }
        () = over => tracing::debug!(source = %seat.source, "connection left"),
    }
}

/// Waits until a connection must end: nobody logged in, it is too old, or the process ends.
async fn until_over(mut logged_in: watch::Receiver<bool>, ends: Ends) {
    let login = async {
        if matches!(
            tokio::time::timeout(LOGIN_LIMIT, logged_in.wait_for(|yes| *yes)).await,
            Ok(Ok(_))
        ) {
            std::future::pending::<()>().await;
        }
    };
    let told = async {
        tokio::select! {
            () = ends.drain.started() => {}
            () = tokio::time::sleep_until(ends.last) => {}
        }
        tokio::time::sleep(END_LIMIT).await;
    };
    tokio::select! {
        () = login => {}
        () = told => {}
    }
}

fn build_config(key: PrivateKey, idle: Duration) -> Config {
    Config {
        server_id: SshId::Standard("SSH-2.0-yoke".into()),
        methods: MethodSet::from(&[MethodKind::PublicKey, MethodKind::KeyboardInteractive][..]),
        // Which keys are known is no secret that time could tell: the protocol tells it by itself.
        auth_rejection_time: Duration::from_millis(50),
        auth_rejection_time_initial: Some(Duration::ZERO),
        keys: vec![key],
        preferred: Preferred {
            kex: Cow::Borrowed(KEY_EXCHANGE),
            ..Preferred::DEFAULT
        },
        window_size: WINDOW,
        maximum_packet_size: PACKET,
        max_auth_attempts: ATTEMPTS,
        inactivity_timeout: Some(idle),
        ..Config::default()
    }
}
