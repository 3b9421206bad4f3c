//! The listeners of the etcd API.

use crate::grpc::clients::Clients;
use futures::stream::unfold;
use futures::{Stream, StreamExt};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use yoke_runtime::AcceptBackoff;
use yoke_runtime::tls::{self, TlsConfigs};

/// Idle time after which a client is pinged. It then has hyper's 20 s to answer.
const PING: Duration = Duration::from_secs(60);

/// An address of the etcd API, to listen on or to advertise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket.
    Unix(PathBuf),
    /// Host and port, without TLS.
    Tcp(String),
    /// Host and port, with TLS.
    Tls(String),
}

impl Listen {
    /// The address as a URL.
    pub fn url(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix://{}", path.display()),
            Self::Tcp(address) => format!("http://{address}"),
            Self::Tls(address) => format!("https://{address}"),
        }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix://")
            && path.starts_with('/')
        {
            return Ok(Self::Unix(path.into()));
        }
        let (kind, address): (fn(String) -> Self, _) = match text.strip_prefix("https://") {
            Some(address) => (Self::Tls, Some(address)),
            None => (Self::Tcp, text.strip_prefix("http://")),
        };
        match address.map(|rest| rest.trim_end_matches('/')) {
            Some(address) if address.contains(':') => Ok(kind(address.to_owned())),
            _ => Err("use unix:///path, http://host:port or https://host:port".to_owned()),
        }
    }
}

/// A bound socket that is not served yet.
#[derive(Debug)]
pub(crate) enum Bound {
    Unix(UnixListener, Socket),
    Tcp(TcpListener),
    Tls(TcpListener, TlsConfigs),
}

/// The file of a unix socket that this process bound; dropping this removes the file.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Identity of the file: another process may have bound its own socket at the same path.
    file: FileId,
}

impl Socket {
    fn bind(path: PathBuf) -> io::Result<(UnixListener, Self)> {
        let listener = UnixListener::bind(&path)?;
        let file = identify(&path)?;
        Ok((listener, Self { path, file }))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identify(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Device, inode and change time of a file. The change time is needed because a filesystem reuses
/// the inode of a deleted file.
type FileId = (u64, u64, i64, i64);

fn identify(path: &Path) -> io::Result<FileId> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

/// Binds a socket. It replaces a unix socket that a dead process left behind. It replaces neither a
/// live socket nor another kind of file.
pub(crate) async fn bind(listen: &Listen, tls: Option<&TlsConfigs>) -> io::Result<Bound> {
    match listen {
        Listen::Tcp(address) => TcpListener::bind(address.as_str()).await.map(Bound::Tcp),
        Listen::Tls(address) => {
            let configs = tls
                .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an https listener needs a certificate"))?;
            let listener = TcpListener::bind(address.as_str()).await?;
            Ok(Bound::Tls(listener, configs.clone()))
        }
        Listen::Unix(path) => {
            make_room(path).await?;
            Socket::bind(path.clone()).map(|(listener, socket)| Bound::Unix(listener, socket))
        }
    }
}

/// Removes a socket that no process serves.
async fn make_room(path: &Path) -> io::Result<()> {
    let taken = |why| Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return taken("a file that is not a socket exists at this path");
        }
        Ok(_) => {}
    }
    let unserved = match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        // A full accept queue shows that a live process serves the socket.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(_) | Err(_) => return taken("another process serves this socket"),
    };
    match unserved {
        // The process behind the socket was about to exit and removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        unserved => unserved,
    }
}

/// Serves until stopped, and until the open requests are answered.
pub(crate) async fn serve(
    bound: Bound,
    routes: Routes,
    clients: Clients,
    stop: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error> {
    // A network client may disappear silently; a process at the other end of a unix socket cannot.
    let ping = (!matches!(bound, Bound::Unix(..))).then_some(PING);
    let mut server = Server::builder()
        // Metrics and probes; etcd serves them on this port, too.
        .accept_http1(true)
        .http2_keepalive_interval(ping)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_concurrent_streams(None)
        .tcp_nodelay(true);
    let router = server.add_routes(routes);
    let stopped = |mut stop: watch::Receiver<bool>| async move {
        // The sender lives as long as the process.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    match bound {
        Bound::Tcp(listener) => {
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let incoming = clients.count(patient(incoming));
            router.serve_with_incoming_shutdown(incoming, stopped(stop)).await
        }
        Bound::Tls(listener, configs) => {
            let (connections, accepting) = tls::accept(listener, configs, (), stopped(stop.clone()));
            let incoming = clients.count(ReceiverStream::new(connections));
            let serving = router.serve_with_incoming_shutdown(incoming, stopped(stop));
            let (served, ()) = tokio::join!(serving, accepting);
            served
        }
        Bound::Unix(listener, _socket) => {
            let incoming = clients.count(patient(UnixListenerStream::new(listener)));
            router.serve_with_incoming_shutdown(incoming, stopped(stop)).await
        }
    }
}

/// Passes connections on, and backs off after a connection that cannot be accepted.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        assert_eq!(
            "unix:///run/kine.sock".parse(),
            Ok(Listen::Unix("/run/kine.sock".into()))
        );
        assert_eq!(
            "http://127.0.0.1:2379/".parse(),
            Ok(Listen::Tcp("127.0.0.1:2379".into()))
        );
        assert_eq!("https://[::]:2379".parse(), Ok(Listen::Tls("[::]:2379".into())));
        for bad in [
            "unix://relative",
            "https://a",
            "http://a",
            "tls://a:1",
            "127.0.0.1:1",
            "",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    async fn open(path: &Path) -> io::Result<Bound> {
        bind(&Listen::Unix(path.to_owned()), None).await
    }

    #[tokio::test]
    async fn an_unused_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let Bound::Unix(listener, first) = open(&path).await.unwrap() else {
            panic!("another kind of socket")
        };
        let living = open(&path).await.unwrap_err();
        assert_eq!(living.kind(), io::ErrorKind::AddrInUse);
        // Like a process that drains its connections and removes its file last.
        drop(listener);
        // The next file may get the same inode, and some kernels update file times only every tick.
        let probe = dir.path().join("probe");
        let touch = || {
            std::fs::write(&probe, "").unwrap();
            identify(&probe).unwrap()
        };
        let start = touch();
        while touch() == start {}
        let second = open(&path).await.unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).await.is_ok(), "the second one is there");
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_file_that_is_not_a_socket_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "kept").unwrap();
        let refused = open(&path).await.unwrap_err();
        assert!(refused.to_string().contains("not a socket"), "{refused}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    }
}
