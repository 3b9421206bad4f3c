//! The SSH server, and what all connections share.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use kube::Client;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{MethodKind, MethodSet, Preferred, SshId, kex};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use yoke_runtime::Drain;

use crate::Error;
use crate::connection::Connection;
use crate::directory::{Directory, Identity};
use crate::gate::Gate;
use crate::leash::Leash;
use crate::listener::{Ends, Listener, ServeError, until_over};
use crate::metrics::Metrics;
use crate::seat::Seat;

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
    /// Folder of `yoke-worker` for several architectures, if there is one.
    pub worker_binaries: Option<PathBuf>,
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

    pub(crate) fn gate(&self) -> MutexGuard<'_, Gate> {
        // The gate is whole after any panic: what counts is changed last.
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The listening server; it answers once [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
}

impl Server {
    /// Listens on `address`; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let listener = Listener::bind(address).await?;
        Ok(Self { listener })
    }

    /// The address that is listened on.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Serves until the drain starts; then what is connected has some seconds to end.
    pub async fn serve(
        self,
        shared: Arc<Shared>,
        key: PrivateKey,
        idle: Duration,
        drain: Drain,
    ) -> Result<(), ServeError> {
        let config = Arc::new(build_config(key, idle));
        let connect = |stream, seat, ends| connect(stream, seat, Arc::clone(&config), ends);
        self.listener.serve(&shared, idle, drain, connect, turn_away).await;
        Ok(())
    }
}

/// Before its version a server may say anything (RFC 4253, 4.2). Not waited for: the listener is everybody's.
async fn turn_away(mut stream: TcpStream, advice: &'static str) {
    let line = format!("{advice}\r\n");
    let _ = tokio::time::timeout(Duration::from_millis(10), stream.write_all(line.as_bytes())).await;
}

async fn connect(stream: TcpStream, seat: Seat, config: Arc<Config>, ends: Ends) {
    let _ = stream.set_nodelay(true);
    let (login, logged_in) = watch::channel(false);
    let over = until_over(logged_in, ends.clone()).boxed().shared();
    let stream = Leash::new(stream, over.clone());
    let seat = Arc::new(seat);
    let connection = Connection::new(Arc::clone(seat.shared()), &seat, login, ends);
    let served = async { russh::server::run_stream(config, stream, connection).await?.await };
    // The session is a task of the library's that nobody can end: should it hang, the seat comes back all the same.
    tokio::select! {
        biased;
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(source = %seat.source(), %error, "connection ended");
            }
        }
        () = over => tracing::debug!(source = %seat.source(), "connection left"),
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
