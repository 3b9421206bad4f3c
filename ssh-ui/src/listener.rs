//! A listener: lets connections in, each with a seat and an end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use yoke_runtime::{AcceptBackoff, Drain};

use crate::seat::Seat;
use crate::server::Shared;

/// How long somebody may take to show a key.
const LOGIN_LIMIT: Duration = Duration::from_secs(30);
/// How long a connection may live, used or not: keys that were taken away do not stay connected.
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// How long connections have to end when the process does, or when they are too old.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A client that says nothing for so long is asked whether it is there, and again after each interval. A vanished one would hold
/// its Tenant's seat for as long as a command takes.
const SILENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_secs(10);
const TRIES: u32 = 6;

/// The server could not be opened or kept.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("listening on {address} for clients")]
    Bind {
        /// The address as given.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
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

/// The listening socket.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    local: SocketAddr,
}

impl Listener {
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

    /// Lets connections in until the drain starts, once all Tenants are known; then what is connected has some seconds to end.
    /// Who gets no seat is turned away with a word.
    pub(crate) async fn serve<C, T, F, G>(
        self,
        shared: &Arc<Shared>,
        idle: Duration,
        drain: Drain,
        connect: C,
        turn_away: T,
    ) where
        C: Fn(TcpStream, Seat, Ends) -> F,
        T: Fn(TcpStream, &'static str) -> G,
        F: Future<Output = ()> + Send + 'static,
        G: Future<Output = ()>,
    {
        let mut directory = shared.directory.clone();
        if drain.until_started(directory.changed()).await.is_none() {
            return;
        }
        let (mut connections, mut backoff) = (JoinSet::new(), AcceptBackoff::default());
        while let Some(accepted) = drain.until_started(self.listener.accept()).await {
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => match Seat::take(shared, peer.ip()) {
                    Ok(seat) => {
                        if let Err(error) = keep_alive(&stream) {
                            tracing::debug!(%error, "connection without keepalive");
                        }
                        let ends = Ends {
                            drain: drain.clone(),
                            idle,
                            last: tokio::time::Instant::now() + LIFETIME,
                        };
                        connections.spawn(connect(stream, seat, ends));
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

/// Waits until a connection must end: nobody logged in, it is too old, or the process ends.
pub(crate) async fn until_over(mut logged_in: watch::Receiver<bool>, ends: Ends) {
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
