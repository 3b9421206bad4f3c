//! Puts the process together and runs it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::mpsc;
use yoke_api::names::is_domain;
use yoke_runtime::tls::Reload;
use yoke_runtime::{Endpoint, Metrics as Registry, Readiness, Supervisor};

use crate::announce::announce;
use crate::arguments::Arguments;
use crate::base::Tracker;
use crate::metrics::{Metrics, PROCESS};
use crate::routing::Routing;
use crate::server::{Context, Server};
use crate::tls::{files_in, keep_certificates};
use crate::traffic::Shown;
use crate::validate::Rules;
use crate::watch::{watch_base, watch_certificate, watch_configs, watch_slices};

const GRACE: Duration = Duration::from_secs(10);
/// Observations on their way to the table; the watches wait when it is full.
const EVENTS: usize = 1024;
/// Events to write; more are only logged.
const NOTICES: usize = 16;

/// Runs the process until it is told to end.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    anyhow::ensure!(
        is_domain(&arguments.base_domain),
        "the base domain {:?} is not a DNS name",
        arguments.base_domain
    );
    let mut supervisor = Supervisor::new(GRACE);
    let drain = supervisor.drain();
    let (registry, readiness) = (Registry::new(PROCESS), Readiness::new());
    let metrics = Metrics::new(&registry);
    let synced = readiness.check("host-objects");

    let endpoint = Endpoint::bind(arguments.metrics).await?;
    let server = Server::bind(arguments.listen_xds).await?;
    supervisor.spawn_background("endpoint", endpoint.serve(registry.clone(), readiness, drain.clone()));

    let files = files_in(&arguments.tls_dir, &arguments.client_ca);
    let (reload, tls) = Reload::load(files).await?;
    supervisor.spawn(
        "certificates",
        keep_certificates(reload, metrics.clone(), drain.clone()),
    );

    let rules = Rules::new(&arguments.base_domain);
    let base = match &arguments.base_config_map {
        Some(_) => Tracker::new(&arguments.envoy_port),
        None => Tracker::without(),
    };
    let ledger = arguments.ledger();
    let other = Arc::clone(ledger.other());
    let (routing, snapshots) = Routing::new(rules, base, arguments.envoy_limits(), ledger, metrics.clone(), synced);
    Metrics::show_traffic(&registry, Shown::new(snapshots.clone(), other));
    let (events, observed) = mpsc::channel(EVENTS);
    let (base, inputs) = mpsc::channel(EVENTS);
    let (notices, told) = mpsc::channel(NOTICES);
    supervisor.spawn("routing", routing.run(observed, inputs, notices, drain.clone()));

    let client = connect(arguments.kubeconfig.as_deref()).await?;
    let configs = watch_configs(client.clone(), events.clone(), metrics.clone(), drain.clone());
    supervisor.spawn("config-watch", configs);
    let certificate = watch_certificate(client.clone(), events.clone(), metrics.clone(), drain.clone());
    supervisor.spawn("certificate-watch", certificate);
    if let Some(name) = arguments.base_config_map.clone() {
        let watched = watch_base(client.clone(), name, base.clone(), metrics.clone(), drain.clone());
        supervisor.spawn("base-watch", watched);
    }
    supervisor.spawn("events", announce(client.clone(), told, drain.clone()));
    let slices = watch_slices(client, events, metrics.clone(), drain.clone());
    supervisor.spawn("slice-watch", slices);

    let context = Context {
        snapshots,
        base,
        tls,
        limits: arguments.gate_limits(),
        client_names: arguments.client_name,
        metrics,
        drain,
    };
    supervisor.spawn("xds", server.serve(context));
    Ok(supervisor.run().await?)
}

async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let config = match kubeconfig {
        None => Config::incluster().context("reading the pod's service account")?,
        Some(path) => {
            let read = Kubeconfig::read_from(path).context("reading the kubeconfig")?;
            Config::from_custom_kubeconfig(read, &KubeConfigOptions::default())
                .await
                .context("using the kubeconfig")?
        }
    };
    Client::try_from(config).context("making a client of the host API")
}
