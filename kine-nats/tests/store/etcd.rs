//! etcd itself, and its tool for files.

use yoke_test_support::free_port;

use crate::harness::{Client, etcdctl, etcdutl, eventually, find, http_get};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::{NamedTempFile, TempDir};
use tonic::transport::{Channel, Endpoint};

/// An etcd of one member.
pub(crate) struct Etcd {
    child: Child,
    port: u16,
    dir: TempDir,
}

impl Etcd {
    /// Starts with an empty store.
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with an empty store and more arguments.
    pub(crate) async fn start_with(more: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), free_port(), more).await
    }

    /// Starts with a saved snapshot.
    pub(crate) async fn restore(file: &Path) -> Self {
        let (dir, peer) = (tempfile::tempdir().unwrap(), free_port());
        let url = url(peer);
        let restored = etcdutl(&[
            "snapshot",
            "restore",
            &file.display().to_string(),
            &format!("--data-dir={}", dir.path().join("data").display()),
            &format!("--initial-cluster=default={url}"),
            &format!("--initial-advertise-peer-urls={url}"),
        ]);
        restored.unwrap();
        Self::start_in(dir, peer, &[]).await
    }

    async fn start_in(dir: TempDir, peer: u16, more: &[&str]) -> Self {
        let port = free_port();
        let log = std::fs::File::create(dir.path().join("etcd.log")).unwrap();
        let mut command = Command::new(find("etcd"));
        command
            .args(["--data-dir".as_ref(), dir.path().join("data").as_os_str()])
            .args(["--listen-client-urls", &url(port)])
            .args(["--advertise-client-urls", &url(port)])
            .args(["--listen-peer-urls", &url(peer)])
            .args(["--initial-advertise-peer-urls", &url(peer)])
            .args(["--initial-cluster", &format!("default={}", url(peer))])
            .args(["--unsafe-no-fsync", "--log-level=warn", "--metrics=extensive"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let etcd = Self {
            child: command.spawn().unwrap(),
            port,
            dir,
        };
        let client = etcd.client();
        eventually("an answer of etcd", || {
            let mut client = client.clone();
            async move { client.range("a", "", 0).await.ok() }
        })
        .await;
        etcd
    }

    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from_shared(self.url()).unwrap().connect_lazy()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.channel())
    }

    /// Its metrics, with the head of the response.
    pub(crate) async fn scrape(&self) -> String {
        let stream = tokio::net::TcpStream::connect(self.address()).await.unwrap();
        http_get(stream, "/metrics").await.unwrap()
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("etcd.log")).unwrap()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn url(port: u16) -> String {
    format!("http://127.0.0.1:{port}")
}

/// Saves a server's store with `etcdctl`.
pub(crate) fn save(endpoint: &str) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    etcdctl(endpoint, &["snapshot", "save", &file.path().display().to_string()]).unwrap();
    file
}
