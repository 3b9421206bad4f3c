//! The real Envoy, with the bootstrap of the chart.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use yoke_test_support::free_port;

use super::pki::{Leaf, write_secret};
use super::{PATIENCE, SERVER_NAME, eventually, loopback};

const DIRECTORY: &str = "YOKE_BIN";
/// Configuration files of the chart.
const FILES: [(&str, &str); 3] = [
    ("bootstrap.yaml", include_str!("../../envoy/bootstrap.yaml")),
    ("sds-tls.yaml", include_str!("../../envoy/sds-tls.yaml")),
    ("sds-ca.yaml", include_str!("../../envoy/sds-ca.yaml")),
];
const EVERYBODY: &str = r#"{address_prefix: 0.0.0.0, prefix_len: 0}, {address_prefix: "::", prefix_len: 0}"#;

pub struct Envoy {
    directory: TempDir,
    health: SocketAddr,
    admin: SocketAddr,
    pub ingress: SocketAddr,
    process: Child,
}

/// Path of a program: in the directory of the environment variable, or in `PATH` if it is not set.
pub fn find(program: &str) -> PathBuf {
    let given = std::env::var_os(DIRECTORY).map(|directory| vec![PathBuf::from(directory)]);
    let searched = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect());
    let directories: Vec<PathBuf> = given.or(searched).unwrap_or_default();
    let found = directories.iter().map(|directory| directory.join(program));
    found
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("no {program} in {DIRECTORY} nor in PATH: `make tools` has one"))
}

impl Envoy {
    /// Starts an Envoy, which becomes ready with its first configuration.
    pub async fn start(xds: SocketAddr, leaf: &Leaf, ca: &str) -> Self {
        Self::start_with(xds, leaf, ca, &[]).await
    }

    /// Starts an Envoy with replaced texts in its bootstrap, so that tests need less time or data.
    pub async fn start_with(xds: SocketAddr, leaf: &Leaf, ca: &str, changes: &[(&str, &str)]) -> Self {
        Self::start_workers(1, xds, leaf, ca, changes).await
    }

    /// Starts an Envoy with this number of workers.
    pub async fn start_workers(
        workers: usize,
        xds: SocketAddr,
        leaf: &Leaf,
        ca: &str,
        changes: &[(&str, &str)],
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let (ingress, health, admin) = (free_port(), free_port(), free_port());
        let tls = directory.path().join("tls");
        std::fs::create_dir(&tls).unwrap();
        write_secret(&tls, leaf, ca);
        write_config(&directory, &tls, xds, [ingress, health, admin], changes);
        let open = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
        let process = Command::new(find("envoy"))
            .arg("-c")
            .arg(directory.path().join("bootstrap.yaml"))
            .args(["--service-cluster", "yoke-ingress", "--service-node", "test"])
            .args(["--concurrency", &workers.to_string()])
            .args(["--disable-hot-restart", "--log-level", "warning"])
            // Tests wait for lines of the access log.
            .args(["--file-flush-interval-msec", "50"])
            .stdin(Stdio::null())
            .stdout(open("access.log"))
            .stderr(open("envoy.log"))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            directory,
            health: loopback(health),
            admin: loopback(admin),
            ingress: loopback(ingress),
            process,
        }
    }

    pub async fn is_ready(&self) -> bool {
        matches!(get(self.health, "/ready").await, Ok(text) if text.starts_with("HTTP/1.1 200"))
    }

    /// Whether Envoy reports ready within a time limit.
    pub async fn is_ready_within(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.is_ready()).await.unwrap_or(false)
    }

    /// Waits until Envoy is ready. Returns the elapsed time.
    pub async fn wait_ready(&mut self) -> Duration {
        self.wait_ready_within(PATIENCE).await
    }

    /// Waits until Envoy is ready, at most for `limit`. Returns the elapsed time.
    pub async fn wait_ready_within(&mut self, limit: Duration) -> Duration {
        let (_, elapsed) = eventually("Envoy to be ready", limit, async || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "Envoy ended: {}", self.log());
            self.is_ready().await.then_some(())
        })
        .await;
        elapsed
    }

    /// Value of one statistic.
    pub async fn stat(&self, name: &str) -> u64 {
        let value = self.try_stat(name).await;
        value.unwrap_or_else(|| panic!("no {name}"))
    }

    /// Value of one statistic, if Envoy answers and has it.
    pub async fn try_stat(&self, name: &str) -> Option<u64> {
        let text = get(self.admin, &format!("/stats?filter=^{name}$")).await.ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        line.map(|value| value.parse().unwrap())
    }

    /// Makes Envoy record which names of statistics are looked up.
    pub async fn note_lookups(&self) {
        let answer = request("POST", self.admin, "/stats/recentlookups/enable").await;
        assert!(answer.is_ok_and(|text| text.starts_with("HTTP/1.1 200")));
    }

    /// The recorded lookups.
    pub async fn lookups(&self) -> String {
        get(self.admin, "/stats/recentlookups").await.unwrap()
    }

    /// A page of the listener for probes.
    pub async fn health_page(&self, path: &str) -> String {
        get(self.health, path).await.unwrap()
    }

    /// The directory with Envoy's certificates.
    pub fn tls_directory(&self) -> PathBuf {
        self.directory.path().join("tls")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("envoy.log")).unwrap()
    }

    /// The complete lines of the access log: Envoy may be writing the last one.
    pub fn access_log(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.directory.path().join("access.log")).unwrap();
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Kills the process.
    pub async fn kill(&mut self) {
        self.process.kill().await.unwrap();
    }

    pub fn process_id(&self) -> u32 {
        self.process.id().unwrap()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("Envoy's log:\n{}", self.log());
        }
    }
}

/// Writes the files of the chart with values for a test.
fn write_config(
    directory: &TempDir,
    tls: &Path,
    xds: SocketAddr,
    [ingress, health, admin]: [u16; 3],
    changes: &[(&str, &str)],
) {
    for (name, text) in FILES {
        let mut text = text.to_owned();
        for (old, new) in changes.iter().filter(|_| name == "bootstrap.yaml") {
            assert!(text.contains(old), "{old} is in the bootstrap");
            text = text.replace(old, new);
        }
        for (placeholder, value) in [
            ("@XDS_HOST@", xds.ip().to_string()),
            ("@XDS_PORT@", xds.port().to_string()),
            ("@XDS_SAN@", SERVER_NAME.to_owned()),
            ("@INGRESS_ADDRESS@", "127.0.0.1".to_owned()),
            ("@INGRESS_PORT@", ingress.to_string()),
            ("@HEALTH_ADDRESS@", "127.0.0.1".to_owned()),
            ("@HEALTH_PORT@", health.to_string()),
            ("@ADMIN_PORT@", admin.to_string()),
            ("@CONFIG_DIR@", directory.path().display().to_string()),
            ("@TLS_DIR@", tls.display().to_string()),
            ("@CLUSTER_NAMES@", "kubernetes.default.svc.cluster.local".to_owned()),
            ("@MAX_CONNECTIONS@", "50000".to_owned()),
            ("@MAX_HEAP_BYTES@", "1000000000".to_owned()),
            ("@MAX_STREAMS@", "100".to_owned()),
            ("@PEERS@", EVERYBODY.to_owned()),
            ("@PROXY_PROTOCOL@", String::new()),
            ("@MAX_HEADER_KIB@", "32".to_owned()),
        ] {
            text = text.replace(placeholder, &value);
        }
        let left = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .find(|line| line.contains("@X"));
        assert_eq!(left, None, "every placeholder has a value");
        std::fs::write(directory.path().join(name), text).unwrap();
    }
}

/// A page of a server that closes the connection afterwards.
pub async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    request("GET", address, path).await
}

async fn request(method: &str, address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}
