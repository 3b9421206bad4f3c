//! The API server beside this process, and whether it lives: it serves, and is done with what it does when it begins.
//! kube-controller-manager waits for that for ten seconds and ends, to be started again by the kubelet a minute later
//! (`WaitForAPIServer`, k8s.io/controller-manager 0.35.4): among many that start at once it would never begin.

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

/// How soon it is asked again: while nothing listens there, and while it is not done. Each question is a handshake then.
const ABSENT: Duration = Duration::from_millis(50);
const BUSY: Duration = Duration::from_millis(500);
/// What an answer begins with up to its status.
const HEAD: usize = "HTTP/1.0 200".len();

/// The word by which this program does nothing but wait.
pub(super) const AWAIT: &str = "await";

/// Where it is, and for what name and by whom it has its certificate.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) name: ServerName<'static>,
    pub(super) ca: PathBuf,
}

impl Server {
    /// Has a process of its own wait until it lives: the memory that TLS takes goes with it.
    pub(super) fn wait_apart(&self) -> Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.args([AWAIT, &self.address.to_string(), &self.name.to_str()]);
        match command.arg(&self.ca).status()?.success() {
            true => Ok(()),
            false => Err(Error::other(
                "the API server beside this process cannot be asked whether it lives",
            )),
        }
    }

    /// Asks until it lives, for as long as who started this process does, and says on the error output what it waits for whenever
    /// that changes. An error is one of the file.
    #[allow(clippy::disallowed_methods, reason = "there is no runtime here")]
    #[allow(clippy::print_stderr, reason = "this goes to a container's log")]
    pub(super) fn wait_until_alive(&self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        install_crypto();
        let config = Arc::new(read_trusted(&self.ca)?);
        let mut said = String::new();
        loop {
            let Err(error) = self.ask(Arc::clone(&config)) else {
                return Ok(());
            };
            let is_absent = error.kind() == ErrorKind::ConnectionRefused;
            let why = error.to_string();
            if why != said {
                eprintln!(
                    "yoke-launch: waits until the API server at {} lives: {why}",
                    self.address
                );
                said = why;
            }
            sleep(if is_absent { ABSENT } else { BUSY });
        }
    }

    /// By HTTP/1.0, with which an answer ends as the connection does. It listens long before it answers, and is waited for.
    fn ask(&self, config: Arc<ClientConfig>) -> Result<()> {
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
    let of_file = |kind, error: &dyn std::fmt::Display| Error::new(kind, format!("{}: {error}", ca.display()));
    let text = std::fs::read(ca).map_err(|error| of_file(error.kind(), &error))?;
    trust(&text).map_err(|error| of_file(ErrorKind::InvalidData, &error))
}
