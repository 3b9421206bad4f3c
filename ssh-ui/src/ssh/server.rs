//! The SSH server: builds its configuration and runs one session per connection.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use russh::keys::PrivateKey;
use russh::server::Config;
use russh::{MethodKind, MethodSet, Preferred, SshId, kex};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::watch;
use yoke_runtime::Drain;

use crate::limits::slots::ConnectionSlot;
use crate::shared::Shared;
use crate::ssh::connection::Connection;
use crate::ssh::deadline_stream::DeadlineStream;
use crate::ssh::listener::{Deadlines, Listener, ServeError, until_over};

/// Maximum number of keys that a client may offer. SSH agents offer all their keys.
const ATTEMPTS: usize = 20;
/// Receive window of a channel in bytes; clients send little data to this server.
const WINDOW: u32 = 256 * 1024;
const PACKET: u32 = 32 * 1024;
/// Key exchange methods that are cheap for the server. The groups of plain Diffie-Hellman cost up
/// to a fifth of a second of CPU time before the client authenticates. All clients support one of
/// the others since OpenSSH 6.5 (2014).
const KEY_EXCHANGE: &[kex::Name] = &[
    kex::MLKEM768X25519_SHA256,
    kex::CURVE25519,
    kex::CURVE25519_PRE_RFC_8731,
    kex::EXTENSION_SUPPORT_AS_SERVER,
    kex::EXTENSION_OPENSSH_STRICT_KEX_AS_SERVER,
];

/// The listening server; it answers once [`Server::serve`] runs.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
}

impl Server {
    /// Listens on `address`; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let listener = Listener::bind(address).await?;
        Ok(Self { listener })
    }

    /// Returns the address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.listener.local_address()
    }

    /// Serves until the drain starts. Open connections then have a few seconds to finish.
    pub async fn serve(
        self,
        shared: Arc<Shared>,
        key: PrivateKey,
        idle: Duration,
        drain: Drain,
    ) -> Result<(), ServeError> {
        let config = Arc::new(build_config(key, idle));
        let connect = |stream, slot, deadlines| connect(stream, slot, Arc::clone(&config), deadlines);
        self.listener.serve(&shared, idle, drain, connect, turn_away).await;
        Ok(())
    }
}

/// Sends the reason, which a server may do before its version line (RFC 4253, 4.2). The short
/// timeout protects the listener, which waits here.
async fn turn_away(mut stream: TcpStream, advice: &'static str) {
    let line = format!("{advice}\r\n");
    let _ = tokio::time::timeout(Duration::from_millis(10), stream.write_all(line.as_bytes())).await;
}

async fn connect(stream: TcpStream, slot: ConnectionSlot, config: Arc<Config>, deadlines: Deadlines) {
    let _ = stream.set_nodelay(true);
    let (login, logged_in) = watch::channel(false);
    let over = until_over(logged_in, deadlines.clone()).boxed().shared();
    let stream = DeadlineStream::new(stream, over.clone());
    let slot = Arc::new(slot);
    let connection = Connection::new(Arc::clone(slot.shared()), &slot, login, deadlines);
    let served = async { russh::server::run_stream(config, stream, connection).await?.await };
    // The library runs the session in a task that cannot be cancelled. If it hangs, the slot is
    // returned all the same.
    tokio::select! {
        biased;
        ended = served => {
            if let Err(error) = ended {
                tracing::debug!(source = %slot.source(), %error, "connection ended");
            }
        }
        () = over => tracing::debug!(source = %slot.source(), "connection reached its deadline"),
    }
}

fn build_config(key: PrivateKey, idle: Duration) -> Config {
    Config {
        server_id: SshId::Standard("SSH-2.0-yoke".into()),
        methods: MethodSet::from(&[MethodKind::PublicKey, MethodKind::KeyboardInteractive][..]),
        // A constant rejection time would hide nothing: the protocol itself tells a client whether
        // its key is known.
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
