//! From the command line to a running store, and back.

use crate::args::{Args, LogFormat};
use crate::boot::{Identity, Replica};
use crate::clock;
use crate::grpc::{self, Node};
use crate::http;
use crate::listen;
use crate::log::Passing;
use crate::log::jetstream::JetStream;
use crate::log::stream::{Stream, StreamLimits};
use crate::metrics::Metrics;
use crate::nats;
use crate::snapshot::Snapshots;
use crate::store::Store;
use crate::tls;
use crate::writer::{Cadence, Parts, RESERVE, Unsaved, Upkeep, Writer};
use anyhow::Context;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing_subscriber::EnvFilter;
use yoke_runtime::tls::Reload;

const QUEUE: usize = 4096;
const DEFAULT_QUOTA: u64 = 512 << 20;
const RETRY: Duration = Duration::from_millis(200);
/// How long stopping may take.
const DRAIN: Duration = Duration::from_secs(8);

type StoreSender = watch::Sender<Option<Arc<Store>>>;

/// Serves until a signal asks to stop, or until this process may not write any more.
pub async fn run(args: Args) -> anyhow::Result<()> {
    init_tracing(args.log_format);
    end_on_panic();
    yoke_runtime::install_crypto();

    let metrics = Metrics::new();
    let (stores, store) = watch::channel(None);
    let (stop, stopped) = watch::channel(false);
    let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
    listen(&args, store.clone(), &stopped, &mut tasks).await?;
    if let Some(address) = args.metrics {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("listen on {address}"))?;
        tokio::spawn(http::serve(listener, store.clone(), metrics.clone()));
    }

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let keeping = keep(args, stores, stopped, metrics);
    tokio::pin!(keeping);
    tokio::select! {
        result = &mut keeping => return result,
        Some(result) = tasks.join_next() => return result?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("Stopping");
    let ready = store.borrow().clone();
    let _ = stop.send(true);
    let Some(store) = ready else { return Ok(()) };
    store.stop();
    match timeout(DRAIN, &mut keeping).await {
        Ok(result) => result?,
        Err(_) => tracing::warn!("The log did not answer in time; nothing acknowledged is lost"),
    }
    let _ = timeout(Duration::from_secs(1), async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
    Ok(())
}

/// Serves the etcd API. This begins before there is anything to serve: clients wait in their requests instead of backing
/// off.
async fn listen(
    args: &Args,
    store: watch::Receiver<Option<Arc<Store>>>,
    stop: &watch::Receiver<bool>,
    tasks: &mut JoinSet<anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let tls = match args.tls_files()? {
        Some(files) => {
            let (reload, configs) = Reload::load(files).await.context("load the certificates")?;
            let stop = stop.clone();
            tasks.spawn(async move {
                tls::keep(reload, stop).await;
                Ok(())
            });
            Some(configs)
        }
        None => None,
    };
    let node = Node::new(store, args.progress_interval, args.client_urls());
    for address in &args.listen {
        let bound = listen::bind(address, tls.as_ref())
            .await
            .with_context(|| format!("listen on {}", address.url()))?;
        let (routes, stop) = (grpc::routes(&node), stop.clone());
        tasks.spawn(async move { listen::serve(bound, routes, stop).await.context("serve the etcd API") });
    }
    Ok(())
}

/// Opens the store, becomes its writer, and writes.
async fn keep(args: Args, stores: StoreSender, stop: watch::Receiver<bool>, metrics: Metrics) -> anyhow::Result<()> {
    let client = nats::connect(&args).await?;
    let log = Stream::new(client.clone(), args.stream.log());
    let snapshots = Stream::new(client, args.stream.snapshots());
    if args.create {
        create(&args, &log, &snapshots).await?;
    }
    let (log, mut acks) = JetStream::open(log, args.stream.log_subject()).await?;
    let log = Arc::new(log);
    let snapshots = Snapshots::new(snapshots, args.stream.snapshot_subject(), Arc::clone(&log));

    let identity = Identity {
        writer: rand::random(),
        incarnation: args.incarnation,
        name: std::env::var("HOSTNAME").unwrap_or_default(),
    };
    let begun = clock::now();
    let mut replica = retry(|| Replica::load(&*log, &snapshots)).await?;
    tracing::info!(
        revision = replica.state.mvcc.visible(),
        keys = replica.state.mvcc.keys(),
        sequence = replica.session.sequence,
        milliseconds = (clock::now() - begun).as_millis() as u64,
        "The log is read"
    );
    let sent = replica.take_over(&*log, &snapshots, &mut acks, &identity).await?;

    let Replica {
        session,
        mut state,
        replayed,
        info,
        recent,
        ..
    } = replica;
    let now = clock::now();
    state.leases.renew_all(now);
    let quota = args.quota.unwrap_or_else(|| match info.limit {
        Some(limit) => limit.saturating_sub(RESERVE).max(limit / 2) / 2,
        None => DEFAULT_QUOTA,
    });
    let (queue, requests) = mpsc::channel(QUEUE);
    let store = Arc::new(Store::new(
        state,
        (session.cluster, session.epoch),
        quota,
        queue,
        metrics,
    ));
    store.extend_lease(sent + crate::writer::LEASE_USED);
    tracing::info!(
        epoch = session.epoch,
        revision = store.revision(),
        milliseconds = (now - begun).as_millis() as u64,
        "This process is the writer"
    );
    let limit = info.limit.unwrap_or(u64::MAX);
    let cadence = Cadence {
        bytes: args.snapshot_bytes.unwrap_or((limit / 4).min(RESERVE)),
        most: limit / 4,
        records: 50_000,
        age: Duration::from_secs(600),
    };
    let unsaved = Unsaved {
        bytes: replayed.0,
        records: replayed.1,
        changed: replayed.1 > 0,
        since: now,
        urgent: false,
    };
    let upkeep = Upkeep::new((Arc::clone(&log), info), snapshots, &store.read(), cadence, unsaved);
    let parts = Parts {
        log,
        acks,
        queue: requests,
        store: Arc::clone(&store),
        incarnation: identity.incarnation,
        session,
        upkeep,
        recent,
    };
    let writer = Writer::new(parts);
    stores.send_replace(Some(store));
    writer.run(stop).await.context("keep the store")
}

async fn create(args: &Args, log: &Stream, snapshots: &Stream) -> anyhow::Result<()> {
    let quota = args.quota.unwrap_or(DEFAULT_QUOTA);
    let log_bytes = args.max_bytes.unwrap_or(2 * quota + RESERVE);
    // Two snapshots are kept while a third is written.
    let snapshot_bytes = 3 * quota + RESERVE;
    let limits = |bytes: u64| StreamLimits {
        replicas: args.replicas,
        max_bytes: bytes.cast_signed(),
    };
    let subject = args.stream.log_subject();
    retry(|| log.create(&subject, limits(log_bytes)))
        .await
        .context("make the log's stream")?;
    let subject = format!("{}.>", args.stream.snapshot_subject());
    retry(|| snapshots.create(&subject, limits(snapshot_bytes)))
        .await
        .context("make the snapshots' stream")
}

async fn retry<T, E, F>(mut work: impl FnMut() -> F) -> Result<T, E>
where
    E: Passing,
    F: Future<Output = Result<T, E>>,
{
    let mut said = false;
    loop {
        match work().await {
            Err(error) if error.is_passing() => {
                if !said {
                    tracing::warn!(error = %error, cause = error.source().map(ToString::to_string), "Waiting for NATS");
                }
                said = true;
                sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

fn init_tracing(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,async_nats=warn"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // A second call, in a test, keeps the first one's settings.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// A task that died must not leave a store behind that serves half.
fn end_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::exit(101);
    }));
}
