//! https listeners: admission of clients, and reloading of files.

use yoke_test_support::free_port;

use crate::harness::{Kine, Nats, etcdctl, eventually, http_get};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout for connections that are rejected.
const SOON: &str = "--command-timeout=2s";

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A certificate and its key.
    fn leaf(&self, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// Certificates in files.
struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces a file atomically.
    fn write(&self, name: &str, text: &str) -> &Self {
        let new = self.path("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
        self
    }

    /// Writes `<name>.crt` and `<name>.key`.
    fn pair(&self, name: &str, (certificate, key): &(String, String)) -> &Self {
        self.write(&format!("{name}.crt"), certificate)
            .write(&format!("{name}.key"), key)
    }

    fn option(&self, option: &str, name: &str) -> String {
        format!("{option}={}", self.path(name).display())
    }

    /// A process with an https listener, and the listener's URL.
    async fn serve(&self, nats: &Nats, stream: &str, client_ca: bool) -> (Kine, String) {
        let url = format!("https://127.0.0.1:{}", free_port());
        let mut options = vec![
            format!("--listen={url}"),
            format!("--advertise={}", url.replace("127.0.0.1", "localhost")),
            self.option("--tls-cert", "server.crt"),
            self.option("--tls-key", "server.key"),
        ];
        if client_ca {
            options.push(self.option("--tls-client-ca", "clients.crt"));
        }
        let options: Vec<_> = options.iter().map(String::as_str).collect();
        (Kine::start(nats, stream, &options).await, url)
    }

    /// Runs etcdctl with a CA to trust and, if given, a client certificate.
    fn etcdctl(&self, url: &str, client: Option<&str>, arguments: &[&str]) -> Result<String, String> {
        let mut options = vec![self.option("--cacert", "servers.crt")];
        if let Some(client) = client {
            options.push(self.option("--cert", &format!("{client}.crt")));
            options.push(self.option("--key", &format!("{client}.key")));
        }
        let options = options.iter().map(String::as_str).chain(arguments.iter().copied());
        etcdctl(url, &options.collect::<Vec<_>>())
    }

    /// Returns why the connection is rejected; etcdctl retries until its timeout.
    fn refused(&self, url: &str, client: Option<&str>, arguments: &[&str]) -> String {
        self.etcdctl(url, client, &[&[SOON], arguments].concat()).unwrap_err()
    }
}

#[tokio::test]
async fn a_client_needs_a_certificate_with_a_client_ca() {
    let (servers, clients, others) = (Ca::new("servers"), Ca::new("clients"), Ca::new("others"));
    let files = Files::new();
    files
        .write("servers.crt", &servers.pem)
        .write("clients.crt", &clients.pem)
        .pair("server", &servers.leaf(ExtendedKeyUsagePurpose::ServerAuth))
        .pair("client", &clients.leaf(ExtendedKeyUsagePurpose::ClientAuth))
        .pair("stranger", &others.leaf(ExtendedKeyUsagePurpose::ClientAuth))
        .pair("misused", &clients.leaf(ExtendedKeyUsagePurpose::ServerAuth));
    let nats = Nats::start().await;
    let (mut kine, url) = files.serve(&nats, "mtls", true).await;
    files.etcdctl(&url, Some("client"), &["put", "/r", "1"]).unwrap();
    let advertised = ["endpoint", "health", "--cluster", "-w", "json"];
    let advertised = files.etcdctl(&url, Some("client"), &advertised).unwrap();
    assert!(advertised.contains("https://localhost:") && !advertised.contains("127.0.0.1"));
    for (client, why) in [
        (None, "peer sent no certificates"),
        (Some("stranger"), "UnknownIssuer"),
        (
            Some("misused"),
            "does not allow extended key usage for client authentication",
        ),
    ] {
        files.refused(&url, client, &["put", "/r", "2"]);
        let is_refusal = |line: &str| line.contains("client was not admitted") && line.contains(why);
        let what = format!("the reason {why:?} in the log");
        eventually(&what, || {
            std::future::ready(kine.log().lines().any(is_refusal).then_some(()))
        })
        .await;
    }
    let plain = etcdctl(&url.replace("https", "http"), &[SOON, "put", "/r", "2"]);
    assert!(plain.is_err(), "{plain:?}");
    assert_eq!(kine.client().await.get("/r").await.unwrap().value, "1");

    // Silent connections, however many, delay neither other clients nor the exit.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(url.trim_start_matches("https://")).await.unwrap());
    }
    files.etcdctl(&url, Some("client"), &["get", "/r"]).unwrap();
    println!("with silent clients it ends in {:?}", kine.terminate().await);
}

#[tokio::test]
async fn a_client_needs_no_certificate_without_a_client_ca() {
    let servers = Ca::new("servers");
    let files = Files::new();
    files
        .write("servers.crt", &servers.pem)
        .pair("server", &servers.leaf(ExtendedKeyUsagePurpose::ServerAuth));
    let nats = Nats::start().await;
    let (_kine, url) = files.serve(&nats, "tls", false).await;
    assert_eq!(files.etcdctl(&url, None, &["put", "/r", "1"]).unwrap(), "OK\n");
    files.write("servers.crt", &Ca::new("servers").pem);
    let error = files.refused(&url, None, &["put", "/r", "2"]);
    assert!(error.contains("deadline exceeded") || error.contains("x509"), "{error}");
}

#[tokio::test]
async fn probes_are_answered_to_clients_without_http2() {
    let servers = Ca::new("servers");
    let files = Files::new();
    files.pair("server", &servers.leaf(ExtendedKeyUsagePurpose::ServerAuth));
    let nats = Nats::start().await;
    let (_kine, url) = files.serve(&nats, "http1", false).await;
    let mut config = yoke_runtime::trust(servers.pem.as_bytes()).unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(url.trim_start_matches("https://")).await.unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let stream = connector
        .connect("localhost".try_into().unwrap(), stream)
        .await
        .unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = http_get(stream, "/health").await.unwrap();
    assert!(answer.contains(r#""health":"true""#), "{answer}");
}

#[tokio::test]
async fn certificates_are_reloaded() {
    let (old, new) = (Ca::new("old"), Ca::new("new"));
    let files = Files::new();
    files
        .write("servers.crt", &old.pem)
        .write("clients.crt", &old.pem)
        .pair("server", &old.leaf(ExtendedKeyUsagePurpose::ServerAuth))
        .pair("before", &old.leaf(ExtendedKeyUsagePurpose::ClientAuth))
        .pair("after", &new.leaf(ExtendedKeyUsagePurpose::ClientAuth));
    let nats = Nats::start().await;
    let (kine, url) = files.serve(&nats, "reread", true).await;
    let get = ["get", "/r"];
    files.etcdctl(&url, Some("before"), &get).unwrap();

    files.write("server.key", "nonsense");
    eventually("a log line about unusable certificates", || async {
        kine.log().contains("Cannot use the changed certificates").then_some(())
    })
    .await;
    let served = files.etcdctl(&url, Some("before"), &get);
    served.expect("the old certificates stay in use");

    files
        .write("clients.crt", &new.pem)
        .pair("server", &new.leaf(ExtendedKeyUsagePurpose::ServerAuth))
        .write("servers.crt", &new.pem);
    eventually("the new certificates to be in use", || async {
        files.etcdctl(&url, Some("after"), &[SOON, "get", "/r"]).ok()
    })
    .await;
    files.refused(&url, Some("before"), &get);
    assert!(kine.log().contains("Reloaded the certificates"));
}

#[tokio::test]
async fn unusable_certificates_prevent_the_start() {
    let nats = Nats::start().await;
    let missing = Path::new("/does/not/exist").display();
    let (certificate, key) = (format!("--tls-cert={missing}"), format!("--tls-key={missing}"));
    for (options, why) in [
        (
            &["--listen=https://127.0.0.1:0"][..],
            "an https listener needs --tls-cert and --tls-key",
        ),
        (&[&certificate, &key], "need an https listener, and --listen has none"),
        (
            &["--listen=https://127.0.0.1:0", &certificate, &key],
            "reading /does/not/exist",
        ),
    ] {
        let mut kine = Kine::spawn(&nats, "unusable", options);
        let what = format!("an exit of kine-nats with {options:?}");
        eventually(&what, || std::future::ready(kine.exited())).await;
        assert!(kine.log().contains(why), "{}", kine.log());
    }
}
