//! Runs the process: from the command line to a running store, and a clean stop.

use crate::grpc;
use crate::grpc::clients::Clients;
use crate::grpc::listen;
use crate::grpc::node::Node;
use crate::grpc::tls;
use crate::http;
use crate::http::audit_webhook::{self, Activity};
use crate::log::jetstream::JetStream;
use crate::log::stream::{Stream, StreamLimits};
use crate::metrics::Metrics;
use crate::nats;
use crate::nats::NatsArgs;
use crate::peer::nats::NatsPeers;
use crate::process::args::{Args, LogFormat};
use crate::process::role_loop::{CycleEnd, ProcessConfig, StoreSender, retry, run_cycle};
use crate::quota::{DEFAULT_QUOTA, RESERVE};
use crate::role;
use crate::snapshot::Snapshots;
use crate::store::leader::watch_leader;
use crate::writer::SnapshotConfig;
use anyhow::{Context, bail};
use async_nats::Client;
use axum::Router;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::service::Routes;
use tracing_subscriber::EnvFilter;
use yoke_runtime::tls::Reload;

/// Timeout of a clean stop.
const DRAIN: Duration = Duration::from_secs(8);

/// Serves until a signal stops the process, or until it may no longer write.
pub async fn run(args: Args) -> anyhow::Result<()> {
    init(args.log_format);
    allow_files();

    let metrics = Metrics::new();
    let (stores, store) = watch::channel(None);
    let (stop, stopped) = watch::channel(false);
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    let clients = Clients::default();
    let probes = http::admin::routes(store.clone(), metrics.clone(), clients.clone());
    let node = Node::new(store.clone(), args.progress_interval, args.client_urls());
    let routes = Routes::from(
        grpc::routes(&node, &metrics.calls)
            .into_axum_router()
            .merge(probes.clone()),
    );
    listen(&args, &routes, &clients, &stopped, &mut tasks).await?;
    serve_http(&args, probes).await?;

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = run_store(args, stores, stopped, metrics);
    tokio::pin!(running);
    tokio::select! {
        result = &mut running => return result,
        Some(result) = tasks.join_next() => return result?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("Stopping");
    let ready = store.borrow().clone();
    let _ = stop.send(true);
    let Some(store) = ready else { return Ok(()) };
    store.stop();
    match timeout(DRAIN, &mut running).await {
        Ok(result) => result?,
        Err(_) => tracing::warn!("Timed out waiting for the log while stopping; no acknowledged write is lost"),
    }
    let _ = timeout(Duration::from_secs(1), async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
    Ok(())
}

/// Serves metrics and probes, and receives audit events.
async fn serve_http(args: &Args, mut probes: Router) -> anyhow::Result<()> {
    let bind = async |address| {
        let bound = TcpListener::bind(address).await;
        bound.with_context(|| format!("listen on {address}"))
    };
    if let Some(address) = args.audit {
        let activity = Activity::new(args.ignore_user_agent.clone());
        probes = probes.merge(audit_webhook::routes(activity.clone()));
        tokio::spawn(audit_webhook::serve(bind(address).await?, activity));
    }
    if let Some(address) = args.metrics {
        tokio::spawn(http::admin::serve(bind(address).await?, probes));
    }
    Ok(())
}

/// Serves the etcd API. It starts before there is a store: clients then wait in their requests
/// instead of backing off.
async fn listen(
    args: &Args,
    routes: &Routes,
    clients: &Clients,
    stop: &watch::Receiver<bool>,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let tls = match args.tls_files()? {
        Some(files) => {
            let (reload, configs) = Reload::load(files).await.context("load the certificates")?;
            let stop = stop.clone();
            tasks.spawn(async move {
                tls::reload_certificates(reload, stop).await;
                Ok(())
            });
            Some(configs)
        }
        None => None,
    };
    for address in &args.listen {
        let bound = listen::bind(address, tls.as_ref())
            .await
            .with_context(|| format!("listen on {}", address.url()))?;
        let serving = listen::serve(bound, routes.clone(), clients.clone(), stop.clone());
        tasks.spawn(async move { serving.await.context("serve the etcd API") });
    }
    Ok(())
}

/// Connects to NATS, and runs cycles until stopped.
async fn run_store(
    args: Args,
    stores: StoreSender,
    stop: watch::Receiver<bool>,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let (client, connected) = nats::connect(&args.nats).await?;
    let leader = watch_leader(stores.subscribe());
    tokio::select! {
        result = run_with_peers(args, client.clone(), stores, stop, metrics) => result,
        () = leader => Ok(()),
        error = nats::until_unfit(&client, &connected) => Err(error),
    }
}

async fn run_with_peers(
    args: Args,
    client: Client,
    stores: StoreSender,
    stop: watch::Receiver<bool>,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let mut config = ProcessConfig {
        member: role::member(rand::random()),
        incarnation: args.incarnation,
        name: std::env::var("HOSTNAME").unwrap_or_default(),
        quota: args.quota,
        snapshot_config: SnapshotConfig {
            bytes: args.snapshot_bytes,
            ..SnapshotConfig::default()
        },
        strict_reads: args.strict_reads,
        metrics,
        peers: None,
        end_when_replaced: args.end_when_replaced,
    };
    if !args.follow {
        return run_cycles(args, client, config, &stores, stop).await;
    }
    let (subject, name) = (args.nats.stream.peers_subject(), config.name.clone());
    let opened = NatsPeers::open(client.clone(), subject, config.member, name, args.client_urls());
    let (peers, mut subscriptions) = opened.await?;
    config.peers = Some(Arc::clone(&peers) as _);
    let result = tokio::select! {
        result = run_cycles(args, client, config, &stores, stop) => result,
        result = peers.run(&mut subscriptions, stores.subscribe()) => result.context("communicate with other processes"),
    };
    peers.leave(&mut subscriptions, &stores.subscribe()).await;
    result
}

async fn run_cycles(
    args: Args,
    client: Client,
    config: ProcessConfig,
    stores: &StoreSender,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let log = Stream::new(client.clone(), args.nats.stream.log());
    if args.create {
        create(&args, &client, &log).await?;
    }
    for cycle in 0..u16::MAX {
        let (log, acks) = JetStream::open(log.clone(), args.nats.stream.log_subject()).await?;
        let log = Arc::new(log);
        let snapshots = snapshots(&args.nats, &client, &log);
        let end = run_cycle(log, acks, snapshots, &config, cycle, stores, stop.clone()).await?;
        if end == CycleEnd::Stopped {
            return Ok(());
        }
    }
    bail!("this process was replaced too often; restart it")
}

/// Opens the streams of the snapshots.
pub(crate) fn snapshots(args: &NatsArgs, client: &Client, log: &Arc<JetStream>) -> Snapshots<Stream, JetStream> {
    let names = &args.stream;
    let stream = |name| Stream::new(client.clone(), name);
    let snapshots = Snapshots::new(stream(names.snapshots()), names.snapshot_subject(), Arc::clone(log));
    if args.spare {
        snapshots.with_spare(stream(names.spare()), names.spare_subject())
    } else {
        snapshots
    }
}

async fn create(args: &Args, client: &Client, log: &Stream) -> anyhow::Result<()> {
    let quota = args.quota.unwrap_or(DEFAULT_QUOTA);
    let log_bytes = args.max_bytes.unwrap_or(2 * quota + RESERVE);
    let limits = |bytes: u64| StreamLimits {
        replicas: args.replicas,
        max_bytes: bytes.cast_signed(),
    };
    let subject = args.nats.stream.log_subject();
    retry(|| log.create(&subject, limits(log_bytes)))
        .await
        .context("create the log's stream")?;
    let names = &args.nats.stream;
    // The first stream holds two snapshots while a third is written; the second stream holds one.
    let mut streams = vec![(names.snapshots(), names.snapshot_subject(), 3 * quota)];
    if args.nats.spare {
        streams.push((names.spare(), names.spare_subject(), 2 * quota));
    }
    for (name, subject, bytes) in streams {
        let (stream, subject) = (Stream::new(client.clone(), name), format!("{subject}.>"));
        retry(|| stream.create(&subject, limits(bytes + RESERVE)))
            .await
            .context("create a stream for snapshots")?;
    }
    Ok(())
}

/// Initialization that every command needs.
pub(crate) fn init(format: LogFormat) {
    init_tracing(format);
    end_on_panic();
    yoke_runtime::install_crypto();
}

/// Raises the soft limit of open files to the hard limit. A kube-apiserver has a connection for
/// each resource, and systemd and containerd set the soft limit to 1,024. At the limit no further
/// client can connect.
fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, limit = limit.current, "Cannot raise the limit of open files");
    }
}

fn init_tracing(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,async_nats=warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second call, in a test, leaves the first one's settings in force.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// Exits on a panic: a task that died must not leave a store that serves only in part.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::exit(101);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_is_raised_to_the_hard_limit() {
        let before = getrlimit(Resource::Nofile);
        let lowered = Rlimit {
            current: Some(512),
            ..before
        };
        setrlimit(Resource::Nofile, lowered).unwrap();
        allow_files();
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
    }
}
