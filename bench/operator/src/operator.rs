//! The process `yoke-operator`, as the chart starts it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use yoke_bench_harness::clusters::is_at_rest;
use yoke_bench_harness::metrics;
use yoke_operator::testing::{Config, NatsConfig};
use yoke_test_support::{Process, free_port};

const EXAMPLE: &str = include_str!("../../../operator/testdata/config.yaml");
/// Timeout until the operator has reconciled all Clusters.
pub(crate) const PATIENCE: Duration = Duration::from_secs(900);
/// Interval between two reads of the reconcile counter, and how long the operator must be quiet to
/// count as settled.
const LOOK: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_secs(5);

/// The operator process, which can be killed and started again.
pub(crate) struct Operator {
    dir: PathBuf,
    config: PathBuf,
    kubeconfig: PathBuf,
    address: SocketAddr,
    http: Client<HttpConnector, Empty<hyper::body::Bytes>>,
    process: Option<Process>,
}

/// Builds the configuration: that of the example with the NATS server of this run, without the
/// parts that do not run here.
pub(crate) fn build_config(nats: &NatsConfig) -> Result<(Config, String)> {
    let mut value: Value = serde_saphyr::from_str(EXAMPLE)?;
    value["ingress"]["probe"] = false.into();
    value["machineLoss"] = json!({"perMinute": 0});
    value["nats"] = json!({"urls": nats.urls, "cidrs": nats.cidrs, "port": nats.port, "secretDir": nats.secret_dir});
    let text = value.to_string();
    Ok((Config::parse(&text)?, text))
}

impl Operator {
    pub(crate) fn new(dir: &Path, kubeconfig: &Path, config: &str) -> Result<Self> {
        let path = dir.join("operator.yaml");
        std::fs::write(&path, config)?;
        Ok(Self {
            dir: dir.to_owned(),
            config: path,
            kubeconfig: kubeconfig.to_owned(),
            address: ([127, 0, 0, 1], free_port()).into(),
            http: Client::builder(TokioExecutor::new()).build_http(),
            process: None,
        })
    }

    /// Starts the process, and returns its process ID.
    pub(crate) fn start(&mut self) -> u32 {
        let arguments = [
            format!("--config={}", self.config.display()),
            format!("--listen={}", self.address),
        ];
        let kubeconfig = self.kubeconfig.display().to_string();
        // Environment as the chart sets it.
        let environment = [
            ("KUBECONFIG", kubeconfig.as_str()),
            ("MALLOC_ARENA_MAX", "1"),
            ("POD_NAME", "yoke-operator"),
        ];
        let process = Process::spawn_with(&self.dir, "yoke-operator", &arguments, &environment);
        let id = process.id();
        self.process = Some(process);
        id
    }

    pub(crate) fn id(&self) -> Result<u32> {
        Ok(self.process.as_ref().context("the operator does not run")?.id())
    }

    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Waits until the operator has done `clusters` reconciles, and then does at most about `rate`
    /// reconciles a second. Returns when it became quiet.
    pub(crate) async fn settle(&mut self, clusters: usize, rate: f64) -> Result<Instant> {
        let began = Instant::now();
        let (mut seen, mut since) = (0.0, Instant::now());
        loop {
            ensure!(
                began.elapsed() < PATIENCE,
                "not settled within {PATIENCE:?}: {seen} looks"
            );
            let process = self.process.as_mut().context("the operator does not run")?;
            ensure!(process.is_running(), "the operator has ended: {}", process.log());
            tokio::time::sleep(LOOK).await;
            let now = self.looks().await.unwrap_or(0.0);
            if now < clusters as f64 || !is_at_rest(now - seen, rate, LOOK) {
                since = Instant::now();
            }
            seen = now;
            if since.elapsed() >= QUIET {
                return Ok(since);
            }
        }
    }

    /// Number of Cluster reconciles since the operator started.
    async fn looks(&self) -> Result<f64> {
        let uri = format!("http://{}/metrics", self.address).parse()?;
        let body = self.http.get(uri).await?.into_body().collect().await?.to_bytes();
        let page = String::from_utf8(body.to_vec())?;
        Ok(metrics::find(&page, "yoke_operator_reconciles_total{controller=\"cluster\"}")?.unwrap_or(0.0))
    }
}

#[cfg(test)]
mod tests {
    use yoke_operator::testing::nats_config;

    use super::*;

    #[test]
    fn the_example_makes_a_configuration() {
        let nats = nats_config(4222, Path::new("/x"));
        let (config, _) = build_config(&nats).unwrap();
        assert!(!config.ingress.probe && config.machine_loss.per_minute == 0);
    }
}
