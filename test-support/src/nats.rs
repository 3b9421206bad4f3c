//! A real nats-server in operator mode with TLS, on a free port, in its own directory.

#![allow(clippy::unwrap_used, reason = "helpers of tests, in which a failure ends the test")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use nkeys::KeyPair;
use yoke_nats_auth::credentials::to_credentials;
use yoke_nats_auth::{AccountClaims, AccountLimits, Envelope, OperatorClaims, UserClaims, UserLimits};

use crate::{Process, eventually, free_port};

/// Timeout of every request to the server.
const LIMIT: Duration = Duration::from_secs(10);
/// Timeout until the server listens.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The limit for all streams of a server that does not test limits.
const ROOM: &str = "1TB";
/// The time of issue of all tokens, in seconds since 1970.
const ISSUED: i64 = 1_700_000_000;

/// The server process, which is killed when this is dropped.
///
/// Every method panics if it fails, because the test has failed then.
#[derive(Debug)]
pub struct Server {
    /// `None` while the server is stopped.
    process: Option<Process>,
    /// The other servers of its NATS cluster.
    _peers: Vec<Process>,
    dir: tempfile::TempDir,
    port: u16,
}

impl Server {
    /// Starts a server, and writes the secret folder that Yoke's operator reads.
    pub async fn start() -> Self {
        Self::start_with_room(ROOM).await
    }

    /// Starts a server with this limit for all streams.
    pub async fn start_with_room(max_file_store: &str) -> Self {
        yoke_runtime::install_crypto();
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let configuration = write_files(dir.path(), port, max_file_store);
        Self::start_in(dir, port, &[configuration]).await
    }

    /// Starts three servers that replicate streams, and returns the first.
    pub async fn start_cluster() -> Self {
        yoke_runtime::install_crypto();
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let configuration = write_files(dir.path(), port, ROOM);
        let configurations = write_cluster(dir.path(), &configuration, port);
        Self::start_in(dir, port, &configurations).await
    }

    async fn start_in(dir: tempfile::TempDir, port: u16, configurations: &[PathBuf]) -> Self {
        let mut processes = configurations.iter().map(|path| spawn(dir.path(), path));
        let process = processes.next();
        let peers = processes.collect();
        wait_until_listening(dir.path(), port).await;
        Self {
            process,
            _peers: peers,
            dir,
            port,
        }
    }

    /// The port for clients, on the loopback interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's URL.
    pub fn url(&self) -> String {
        format!("tls://127.0.0.1:{}", self.port)
    }

    /// The folder with the operator's signing key, the credentials of the system account, and the
    /// CA of the server.
    pub fn secret_dir(&self) -> &Path {
        self.dir.path()
    }

    /// Options of a client that trusts the server.
    pub fn connect_options(&self, credentials: &str) -> async_nats::ConnectOptions {
        async_nats::ConnectOptions::with_credentials(credentials)
            .unwrap()
            .add_root_certificates(self.dir.path().join("ca.crt"))
            .require_tls(true)
            .connection_timeout(LIMIT)
            .request_timeout(Some(LIMIT))
            .max_reconnects(1)
    }

    /// Returns whether the disk has data of an account.
    pub fn has_data(&self, account: &str) -> bool {
        self.dir.path().join("data/jetstream").join(account).exists()
    }

    /// Connects as a user of the system account.
    pub async fn connect_system(&self) -> async_nats::Client {
        let credentials = std::fs::read_to_string(self.dir.path().join("system.creds")).unwrap();
        self.connect_options(&credentials).connect(self.url()).await.unwrap()
    }

    /// Deletes the streams of an account, as with the loss of a disk.
    pub async fn lose_streams(&self, account: &str) {
        let subject = format!("$JS.API.ACCOUNT.PURGE.{account}");
        let system = self.connect_system().await;
        system.request(subject, "".into()).await.unwrap();
    }

    /// Kills the server.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Sets the limit for all streams, from the next start on.
    pub fn set_room(&self, max_file_store: &str) {
        let path = self.dir.path().join("nats.conf");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once("max_file_store: ").unwrap();
        let (_, after) = rest.split_once(' ').unwrap();
        std::fs::write(&path, format!("{before}max_file_store: {max_file_store} {after}")).unwrap();
    }

    /// Starts the stopped server again, with the same port and data.
    pub fn start_again(&mut self) {
        self.process = Some(spawn(self.dir.path(), &self.dir.path().join("nats.conf")));
    }
}

fn spawn(dir: &Path, configuration: &Path) -> Process {
    Process::spawn(dir, "nats-server", &["-c".into(), configuration.display().to_string()])
}

fn write_files(dir: &Path, port: u16, max_file_store: &str) -> PathBuf {
    let (operator, signer) = (KeyPair::new_operator(), KeyPair::new_operator());
    let (system, user) = (KeyPair::new_account(), KeyPair::new_user());
    let operator_jwt = sign(
        &OperatorClaims::new(vec![signer.public_key()], system.public_key()),
        &operator.public_key(),
        &operator,
    );
    let system_jwt = sign(
        &AccountClaims::new(AccountLimits::unlimited(None), vec![]),
        &system.public_key(),
        &signer,
    );
    let user_claims = UserClaims::signed_by_account(UserLimits::unlimited());
    let user_jwt = sign(&user_claims, &user.public_key(), &system);
    std::fs::write(dir.join("operator-signing.nk"), signer.seed().unwrap()).unwrap();
    std::fs::write(
        dir.join("system.creds"),
        to_credentials(&user_jwt, &user.seed().unwrap()),
    )
    .unwrap();
    write_certificates(dir);
    let dir_text = dir.display();
    let system = system.public_key();
    let configuration = format!(
        "listen: \"127.0.0.1:{port}\"\nserver_name: a\nlog_file: \"{dir_text}/log\"\nmax_payload: 8MB\n\
         tls {{ cert_file: \"{dir_text}/server.crt\", key_file: \"{dir_text}/server.key\" }}\n\
         jetstream {{ store_dir: \"{dir_text}/data\", max_file_store: {max_file_store} }}\n\
         operator: \"{operator_jwt}\"\nsystem_account: {system}\n\
         resolver {{ type: full, dir: \"{dir_text}/jwt\", allow_delete: true, interval: \"2m\" }}\n\
         resolver_preload {{ {system}: \"{system_jwt}\" }}\n"
    );
    let path = dir.join("nats.conf");
    std::fs::write(&path, configuration).unwrap();
    path
}

/// Turns a server's configuration into that of one of three, and writes those of the others.
fn write_cluster(dir: &Path, configuration: &Path, port: u16) -> [PathBuf; 3] {
    let text = std::fs::read_to_string(configuration).unwrap();
    let routes: [u16; 3] = std::array::from_fn(|_| free_port());
    let all = routes.map(|port| format!("nats://127.0.0.1:{port}")).join(", ");
    let dir_text = dir.display();
    std::array::from_fn(|number| {
        let mut own = text.clone();
        if number > 0 {
            own = own.replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{}", free_port()));
            for file in ["log", "data", "jwt"] {
                own = own.replace(
                    &format!("\"{dir_text}/{file}\""),
                    &format!("\"{dir_text}/{file}{number}\""),
                );
            }
            own = own.replace("server_name: a\n", &format!("server_name: a{number}\n"));
        }
        let route = routes[number];
        own.push_str(&format!(
            "cluster {{ name: c, listen: \"127.0.0.1:{route}\", no_advertise: true, routes: [{all}] }}\n"
        ));
        let path = dir.join(format!("nats{number}.conf"));
        std::fs::write(&path, own).unwrap();
        path
    })
}

fn sign<C: serde::Serialize>(claims: &C, subject: &str, signer: &KeyPair) -> String {
    let envelope = Envelope {
        subject,
        name: "test",
        issued: ISSUED,
        expires: None,
    };
    yoke_nats_auth::sign(claims, &envelope, signer).unwrap()
}

fn write_certificates(dir: &Path) {
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "test NATS CA");
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::from_params(&params, &ca_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let server = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    std::fs::write(dir.join("ca.crt"), ca.pem()).unwrap();
    std::fs::write(dir.join("server.crt"), server.pem()).unwrap();
    std::fs::write(dir.join("server.key"), key.serialize_pem()).unwrap();
}

async fn wait_until_listening(dir: &Path, port: u16) {
    let connect = async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
    if let Err(error) = eventually("nats-server to listen", START_LIMIT, connect, |_| true).await {
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        panic!("{error}; its log: {log}");
    }
}
