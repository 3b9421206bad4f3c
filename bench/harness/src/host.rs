//! The host's API: a real kube-apiserver on etcd.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kube::Client;
use serde_json::json;
use yoke_test_support::kubernetes::Options;
use yoke_test_support::{Process, free_port};

use crate::sandbox::HOST;

/// Limit for the data of etcd, in bytes: enough for ten thousand Clusters.
const ETCD_QUOTA: u64 = 16 << 30;

/// kube-apiserver and its etcd. Both are stopped when this is dropped.
#[derive(Debug)]
pub struct Host {
    /// Process ID of kube-apiserver.
    pub api_id: u32,
    /// URL of etcd.
    pub etcd_url: String,
    url: String,
    // Dropped in this order: the client of etcd before etcd.
    _api: Process,
    _etcd: Process,
}

/// Options of a benchmark for its kube-apiserver, in addition to the common ones.
#[derive(Clone, Debug, Default)]
pub struct HostOptions<'a> {
    /// Users without permissions of their own: token, name. With users, RBAC is on.
    pub users: &'a [(&'a str, &'a str)],
    /// Arguments.
    pub arguments: &'a [String],
    /// Environment variables.
    pub environment: &'a [(&'a str, &'a str)],
}

impl Host {
    /// Starts etcd and kube-apiserver with their files in `dir`, and waits until they are ready.
    /// Returns a client with all permissions. etcd does not fsync: the disk is not measured.
    pub async fn start(dir: &Path, options: &HostOptions<'_>) -> (Self, Client) {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (clients, peers) = (url(free_port()), url(free_port()));
        let etcd = Process::spawn(
            dir,
            "etcd",
            &[
                format!("--data-dir={}", dir.join("etcd").display()),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
                format!("--quota-backend-bytes={ETCD_QUOTA}"),
                "--log-level=error".to_owned(),
                "--unsafe-no-fsync".to_owned(),
            ],
        );
        let arguments = [&[format!("--advertise-address={HOST}")], options.arguments].concat();
        let server = Options {
            users: options.users,
            arguments: &arguments,
            environment: options.environment,
            ..Options::new(&clients)
        };
        let (api, client) = server.start(dir).await;
        let host = Self {
            api_id: api.id(),
            url: server.url(),
            etcd_url: clients,
            _api: api,
            _etcd: etcd,
        };
        (host, client)
    }

    /// Writes a kubeconfig with a token for this API into `dir`, and returns its path.
    pub fn write_kubeconfig(&self, dir: &Path, token: &str) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "host", "cluster": {"server": self.url, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "host", "context": {"cluster": "host", "user": "user"}}],
            "current-context": "host",
        });
        let path = dir.join("kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }
}
