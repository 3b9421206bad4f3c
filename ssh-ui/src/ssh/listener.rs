//! A TCP listener: gives each connection a slot and a deadline.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use yoke_runtime::{AcceptBackoff, Drain};

use crate::limits::slots::ConnectionSlot;
use crate::shared::Shared;

/// How long a client may take to authenticate.
const LOGIN_LIMIT: Duration = Duration::from_secs(30);
/// Maximum age of a connection, so that a key that was removed does not stay connected.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Grace period of a connection after the process drains or its maximum age is reached.
const END_LIMIT: Duration = Duration::from_secs(10);

/// TCP keepalive: probes start after this silence. Without them a vanished client would keep a slot
/// of its Tenant for as long as its command runs.
const SILENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(10);
const TRIES: u32 = 6;

/// Failure of a server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("listening on {address} for clients")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// The deadlines of a connection.
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// The drain of the process; the connection ends soon after its start.
    pub drain: Drain,
    /// Idle timeout.
    pub idle: Duration,
    /// Maximum age; the connection ends soon after it.
    pub last: tokio::time::Instant,
}

/// The listening socket.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener {
    /// Listens on `address`; port 0 selects a free port.
    pub async fn bind(address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, local })
    }

    /// Returns the address of the listener.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Accepts connections until the drain starts, but not before the first list of all Tenants.
    /// After the drain, open connections have a few seconds to finish. A connection without a slot
    /// is passed to `turn_away` with the reason.
    pub(crate) async fn serve<C, T, F, G>(
        self,
        shared: &Arc<Shared>,
        idle: Duration,
        drain: Drain,
        connect: C,
        turn_away: T,
    ) where
        C: Fn(TcpStream, ConnectionSlot, Deadlines) -> F,
        T: Fn(TcpStream, &'static str) -> G,
        F: Future<Output = ()> + Send + 'static,
        G: Future<Output = ()>,
    {
        let mut keys = shared.keys.clone();
        if drain.until_started(keys.changed()).await.is_none() {
            return;
        }
        let (mut connections, mut backoff) = (JoinSet::new(), AcceptBackoff::default());
        while let Some(accepted) = drain.until_started(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => match ConnectionSlot::take(shared, peer.ip()) {
                    Ok(slot) => {
                        if let Err(error) = keep_alive(&stream) {
                            tracing::debug!(%error, "connection without keepalive");
                        }
                        let deadlines = Deadlines {
                            drain: drain.clone(),
                            idle,
                            last: tokio::time::Instant::now() + LIFETIME,
                        };
                        connections.spawn(connect(stream, slot, deadlines));
                    }
                    Err(advice) => turn_away(stream, advice).await,
                },
                Err(error) => backoff.wait(&error).await,
            }
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(INTERVAL);
    SockRef::from(stream).set_tcp_keepalive(&keepalive.with_retries(TRIES))
}

/// Waits until a connection must end: it has not authenticated in time, it is too old, or the
/// process ends.
pub(crate) async fn until_over(mut logged_in: watch::Receiver<bool>, deadlines: Deadlines) {
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
            () = deadlines.drain.started() => {}
            () = tokio::time::sleep_until(deadlines.last) => {}
        }
        tokio::time::sleep(END_LIMIT).await;
    };
    tokio::select! {
        () = login => {}
        () = told => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_vanished_client_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        keep_alive(&stream).unwrap();
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        drop(client);
    }
}
