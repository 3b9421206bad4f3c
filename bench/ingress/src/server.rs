//! The process `yoke-ingress-xds`, as the chart starts it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use yoke_bench_harness::metrics;
use yoke_test_support::{Process, free_port};

use crate::support::envoy::get;
use crate::support::fixtures::BASE_DOMAIN;
use crate::support::pki::{Ca, Leaf, write_secret};
use crate::support::{CLIENT_NAME, PATIENCE, SERVER_NAME, eventually, loopback};

/// The process and its arguments.
pub(crate) struct Server {
    /// Address of the xDS port.
    pub(crate) address: SocketAddr,
    /// Signs the certificates of the server and of Envoy.
    pub(crate) ca: Ca,
    metrics: SocketAddr,
    dir: PathBuf,
    arguments: Vec<String>,
    process: Option<Process>,
}

impl Server {
    pub(crate) async fn start(dir: &Path, kubeconfig: &Path) -> Result<Self> {
        let ca = Ca::new("yoke-system");
        let tls = dir.join("xds-tls");
        std::fs::create_dir(&tls)?;
        write_secret(&tls, &ca.leaf("xds", &[SERVER_NAME]), &ca.pem);
        let (address, metrics) = (loopback(free_port()), loopback(free_port()));
        let arguments = vec![
            format!("--listen-xds={address}"),
            format!("--metrics={metrics}"),
            format!("--tls-dir={}", tls.display()),
            format!("--client-ca={}", tls.join("ca.crt").display()),
            format!("--client-name={CLIENT_NAME}"),
            format!("--base-domain={BASE_DOMAIN}"),
            format!("--kubeconfig={}", kubeconfig.display()),
        ];
        let mut server = Self {
            address,
            ca,
            metrics,
            dir: dir.to_owned(),
            arguments,
            process: None,
        };
        server.begin().await;
        Ok(server)
    }

    /// Client certificate that Envoy presents to the server.
    pub(crate) fn client_leaf(&self) -> Leaf {
        self.ca.leaf("envoy", &[CLIENT_NAME])
    }

    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Starts the process and waits until it is ready, which means that it has read the host.
    /// Returns how long that took.
    pub(crate) async fn begin(&mut self) -> Duration {
        self.process = Some(Process::spawn(&self.dir, "yoke-ingress-xds", &self.arguments));
        let ready = async || {
            let page = get(self.metrics, "/readyz").await.ok()?;
            page.starts_with("HTTP/1.1 200").then_some(())
        };
        eventually("yoke-ingress-xds is ready", PATIENCE, ready).await.1
    }

    pub(crate) fn id(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the server does not run")?.id())
    }

    /// Value of a metric; 0 if the server does not report it yet.
    pub(crate) async fn metric(&self, name: &str) -> Result<f64> {
        let page = get(self.metrics, "/metrics").await?;
        Ok(metrics::find(&page, name)?.unwrap_or(0.0))
    }
}
