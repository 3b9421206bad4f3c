//! Waits until the API server beside this process is alive: it serves, and its start-up work is
//! done. kube-controller-manager waits ten seconds for that and exits, and the kubelet restarts it
//! a minute later (`WaitForAPIServer`, k8s.io/controller-manager 0.35.4). If many start at once it
//! would never start.

use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream};
use yoke_runtime::{install_crypto, trust};

/// Probe intervals: while nothing listens, and while the server is not ready. In the second case
/// each probe costs a TLS handshake.
const ABSENT: Duration = Duration::from_millis(50);
const BUSY: Duration = Duration::from_millis(500);
/// Length of a response up to its status code.
const HEAD: usize = "HTTP/1.0 200".len();

/// The argument with which this program only waits.
pub(super) const AWAIT: &str = "await";

/// Address of the API server, the name in its certificate, and the CA file.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) name: ServerName<'static>,
    pub(super) ca: PathBuf,
}

impl Server {
    /// Waits in a process of its own until the server is alive, so that the memory used by TLS is
    /// freed with it.
    pub(super) fn wait_apart(&self) -> Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.args([AWAIT, &self.address.to_string(), &self.name.to_str()]);
        match command.arg(&self.ca).status()?.success() {
            true => Ok(()),
            false => Err(Error::other("cannot probe the API server beside this process")),
        }
    }

    /// Probes until the server is alive. Exits with the parent process. It prints the reason for
    /// waiting to standard error whenever that changes. An error means that the CA file cannot be
    /// read.
    #[allow(clippy::disallowed_methods, reason = "there is no runtime here")]
    #[allow(clippy::print_stderr, reason = "this goes to a container's log")]
    pub(super) fn wait_until_alive(&self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        install_crypto();
        let config = Arc::new(read_trusted(&self.ca)?);
        let mut reported = String::new();
        loop {
            let Err(error) = self.probe(Arc::clone(&config)) else {
                return Ok(());
            };
            let is_absent = error.kind() == ErrorKind::ConnectionRefused;
            let why = error.to_string();
            if why != reported {
                eprintln!(
                    "yoke-launch: waiting until the API server at {} is alive: {why}",
                    self.address
                );
                reported = why;
            }
            sleep(if is_absent { ABSENT } else { BUSY });
        }
    }

    /// Probes `/livez` with HTTP/1.0, where the response ends with the connection. The server
    /// listens long before it answers; the probe then waits.
    fn probe(&self, config: Arc<ClientConfig>) -> Result<()> {
        let mut tls = ClientConnection::new(config, self.name.clone()).map_err(Error::other)?;
        let mut stream = TcpStream::connect(self.address)?;
        let mut stream = Stream::new(&mut tls, &mut stream);
        stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n")?;
        let mut head = [0; HEAD];
        stream.read_exact(&mut head)?;
        match head.strip_suffix(b" 200") {
            Some(_) => Ok(()),
            None => Err(Error::other(format!("/livez: {}", head.escape_ascii()))),
        }
    }
}

fn read_trusted(ca: &Path) -> Result<ClientConfig> {
    let with_path = |kind, error: &dyn std::fmt::Display| Error::new(kind, format!("{}: {error}", ca.display()));
    let text = std::fs::read(ca).map_err(|error| with_path(error.kind(), &error))?;
    trust(&text).map_err(|error| with_path(ErrorKind::InvalidData, &error))
}
