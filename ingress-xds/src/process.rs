//! Assembles the process from its parts and runs it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kube::Client;
use tokio::sync::{mpsc, watch};
use yoke_api::names::is_domain;
use yoke_runtime::host_api::{build_client, configure};
use yoke_runtime::tls::{Reload, TlsConfigs};
use yoke_runtime::{Drain, Endpoint, Metrics as Registry, Readiness, Supervisor};

use crate::activator::tls::{Certificates, build_configs, update_certificates};
use crate::activator::wake::Waker;
use crate::activator::wake::write::write_wakes;
use crate::activator::{Activator, ActivatorContext, ActivatorLimits};
use crate::announce::announce;
use crate::arguments::Arguments;
use crate::base::{Input, Tracker};
use crate::metrics::{Metrics, PROCESS};
use crate::model::observation::Event;
use crate::routing::Routing;
use crate::server::{Server, ServerContext};
use crate::snapshot::Snapshots;
use crate::tls::{files_in, reload_certificates};
use crate::traffic::TrafficCollector;
use crate::watch::{
    watch_activator_certificates, watch_base, watch_certificate, watch_configs, watch_replicas, watch_slices,
};

const GRACE: Duration = Duration::from_secs(10);
/// Capacity of the channels for observations; the watches wait when one is full.
const EVENTS: usize = 1024;
/// Capacity of the channel for Kubernetes events; further ones are only logged.
const NOTICES: usize = 16;

/// Runs the process until it receives a termination signal or a part fails.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    anyhow::ensure!(
        is_domain(&arguments.base_domain),
        "--base-domain is {:?} and must be a DNS name",
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

    let tls = spawn_certificates(&mut supervisor, &arguments, &metrics, &drain).await?;
    let rules = arguments.rules();
    let base = match &arguments.base_config_map {
        Some(_) => Tracker::new(&arguments.envoy_port),
        None => Tracker::disabled(),
    };
    let series = arguments.series();
    let other = Arc::clone(series.other());
    let (routing, snapshots) = Routing::new(rules, base, arguments.envoy_limits(), series, metrics.clone(), synced);
    Metrics::register_traffic(&registry, TrafficCollector::new(snapshots.clone(), other));
    let (events, observed) = mpsc::channel(EVENTS);
    let (base, inputs) = mpsc::channel(EVENTS);
    let (notices, published) = mpsc::channel(NOTICES);
    supervisor.spawn("routing", routing.run(observed, inputs, notices, drain.clone()));

    let client = connect(arguments.kubeconfig.as_deref()).await?;
    supervisor.spawn("events", announce(client.clone(), published, drain.clone()));
    let parts = SharedParts {
        client,
        events,
        snapshots: snapshots.clone(),
        metrics: metrics.clone(),
        drain: drain.clone(),
    };
    spawn_watches(&mut supervisor, &arguments, &parts, base.clone());
    let waker = spawn_waker(&mut supervisor, &arguments, parts).await?;
    let context = ServerContext {
        snapshots,
        base,
        tls,
        limits: arguments.gate_limits(),
        waker,
        client_names: arguments.client_name,
        metrics,
        drain,
    };
    supervisor.spawn("xds", server.serve(context));
    Ok(supervisor.run().await?)
}

/// Loads the server's certificate and the CA of its clients, and starts to follow changes of their files.
async fn spawn_certificates(
    supervisor: &mut Supervisor,
    arguments: &Arguments,
    metrics: &Metrics,
    drain: &Drain,
) -> anyhow::Result<TlsConfigs> {
    let files = files_in(&arguments.tls_dir, &arguments.client_ca);
    let (reload, tls) = Reload::load(files).await?;
    let reloading = reload_certificates(reload, metrics.clone(), drain.clone());
    supervisor.spawn("certificates", reloading);
    Ok(tls)
}

/// Starts the watches of host objects whose events the routing table needs in any case.
fn spawn_watches(supervisor: &mut Supervisor, arguments: &Arguments, parts: &SharedParts, base: mpsc::Sender<Input>) {
    let SharedParts {
        client,
        events,
        metrics,
        drain,
        ..
    } = parts;
    let configs = watch_configs(client.clone(), events.clone(), metrics.clone(), drain.clone());
    supervisor.spawn("config-watch", configs);
    let certificate = watch_certificate(client.clone(), events.clone(), metrics.clone(), drain.clone());
    supervisor.spawn("certificate-watch", certificate);
    if let Some(name) = arguments.base_config_map.clone() {
        let watched = watch_base(client.clone(), name, base, metrics.clone(), drain.clone());
        supervisor.spawn("base-watch", watched);
    }
    let slices = watch_slices(client.clone(), events.clone(), metrics.clone(), drain.clone());
    supervisor.spawn("slice-watch", slices);
}

/// Dependencies that the watches and the activator share with the rest of the process.
struct SharedParts {
    client: Client,
    events: mpsc::Sender<Event>,
    snapshots: Snapshots,
    metrics: Metrics,
    drain: Drain,
}

/// Starts the writer of wake requests, and the activator if it is configured.
async fn spawn_waker(supervisor: &mut Supervisor, arguments: &Arguments, parts: SharedParts) -> anyhow::Result<Waker> {
    let metrics = parts.metrics.clone();
    let (waker, requests) = Waker::new(arguments.wake_limits(), metrics.clone(), Instant::now());
    let writing = write_wakes(parts.client.clone(), requests, metrics);
    supervisor.spawn("wakes", async move {
        writing.await;
        Ok::<_, Infallible>(())
    });
    if arguments.sleeper.is_some() {
        spawn_activator(supervisor, arguments, waker.clone(), parts).await?;
    }
    Ok(waker)
}

async fn spawn_activator(
    supervisor: &mut Supervisor,
    arguments: &Arguments,
    waker: Waker,
    parts: SharedParts,
) -> anyhow::Result<()> {
    let SharedParts {
        client,
        events,
        snapshots,
        metrics,
        drain,
    } = parts;
    let port = arguments.sleeper_port;
    let address = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let activator = match Activator::bind(address).await {
        Ok(activator) => activator,
        // The node has no IPv6.
        Err(_) => Activator::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
            .await
            .context("listening for clients of sleeping clusters")?,
    };
    if let Some(service) = arguments.sleeper_service.clone() {
        let replicas = watch_replicas(client.clone(), service, events.clone(), metrics.clone(), drain.clone());
        supervisor.spawn("replica-watch", replicas);
    }
    let (secrets, seen) = mpsc::channel(EVENTS);
    let (certificates, loaded) = watch::channel(Certificates::new());
    let watched = watch_activator_certificates(client, secrets, metrics.clone(), drain.clone());
    supervisor.spawn("sleeper-watch", watched);
    let keeping = update_certificates(seen, certificates, events, drain.clone());
    supervisor.spawn("sleeper-certificates", async move {
        keeping.await;
        Ok::<_, Infallible>(())
    });
    let serving = activator.serve(ActivatorContext {
        tls: build_configs(loaded, snapshots.clone())?,
        limits: ActivatorLimits::default(),
        snapshots,
        waker,
        metrics,
        drain,
    });
    supervisor.spawn("sleeper", async move {
        serving.await;
        Ok::<_, Infallible>(())
    });
    Ok(())
}

async fn connect(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    build_client(configure(kubeconfig).await?).context("creating a client for the host API")
}
