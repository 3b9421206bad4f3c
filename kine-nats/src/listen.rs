//! The listeners of the etcd API.

use crate::args::Listen;
use futures::stream::unfold;
use futures::{Stream, StreamExt};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use yoke_runtime::AcceptBackoff;
use yoke_runtime::tls::{self, TlsConfigs};

/// A client that is silent for so long is asked whether it is still there, and has hyper's 20 s to answer.
const PING: Duration = Duration::from_secs(60);

/// A socket that is open, but not served yet.
#[derive(Debug)]
pub(crate) enum Bound {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
    Tls(TcpListener, TlsConfigs),
}

/// Opens a socket. A unix socket that a dead process left behind is replaced; a living one's is not.
pub(crate) async fn bind(listen: &Listen, tls: Option<&TlsConfigs>) -> io::Result<Bound> {
    match listen {
        Listen::Tcp(address) => TcpListener::bind(address.as_str()).await.map(Bound::Tcp),
        Listen::Tls(address) => {
            let configs = tls.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "there is no certificate"))?;
            let listener = TcpListener::bind(address.as_str()).await?;
            Ok(Bound::Tls(listener, configs.clone()))
        }
        Listen::Unix(path) => {
            if UnixStream::connect(path).await.is_ok() {
                return Err(io::Error::new(
                    io::ErrorKind::AddrInUse,
                    "another process serves this socket",
                ));
            }
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            UnixListener::bind(path).map(|listener| Bound::Unix(listener, path.clone()))
        }
    }
}

/// Serves until told to stop, and until the open requests are answered.
pub(crate) async fn serve(
    bound: Bound,
    routes: Routes,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    // Who reaches this by a network may go without a word; a process at the other end of a unix socket cannot.
    let ping = (!matches!(bound, Bound::Unix(..))).then_some(PING);
    let mut server = Server::builder()
        // Metrics and probes; etcd answers them here, too.
        .accept_http1(true)
        .http2_keepalive_interval(ping)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_concurrent_streams(None)
        .tcp_nodelay(true);
    let router = server.add_routes(routes);
    let stopped = |mut stop: watch::Receiver<bool>| async move {
        // The sender lives as long as the process does.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    match bound {
        Bound::Tcp(listener) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let incoming = patient(incoming);
            router.serve_with_incoming_shutdown(incoming, stopped(stop)).await
        }
        Bound::Tls(listener, configs) => {
            let (connections, accepting) = tls::accept(listener, configs, (), stopped(stop.clone()));
            let serving = router.serve_with_incoming_shutdown(ReceiverStream::new(connections), stopped(stop));
            let (served, ()) = tokio::join!(serving, accepting);
            served
        }
        Bound::Unix(listener, path) => {
            let incoming = patient(UnixListenerStream::new(listener));
            let served = router.serve_with_incoming_shutdown(incoming, stopped(stop)).await;
            let _ = std::fs::remove_file(path);
            served
        }
    }
}

/// Passes connections on, and waits for those that cannot be accepted.
fn patient<C>(incoming: impl Stream<Item = io::Result<C>> + Unpin) -> impl Stream<Item = io::Result<C>> {
    unfold(
        (incoming, AcceptBackoff::default()),
        |(mut incoming, mut backoff)| async move {
            loop {
                match incoming.next().await? {
                    Err(error) => backoff.wait(&error).await,
                    connection => return Some((connection, (incoming, backoff))),
                }
            }
        },
    )
}
