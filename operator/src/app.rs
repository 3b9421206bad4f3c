//! The process: reads the configuration, connects, starts watches and controllers, and stops them
//! in order.

mod contexts;

pub use crate::app::contexts::Contexts;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use futures::channel::mpsc;
use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use kube::ResourceExt as _;
use kube::runtime::Controller;
use kube::runtime::controller::Config as ControllerConfig;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, JoinToken, Tenant};
use yoke_runtime::host_api::build_client;
use yoke_runtime::{Check, Drain, Endpoint, Metrics, Readiness, Supervisor};

use crate::cluster::resources::stateful_set;
use crate::cluster::tenant_cluster::endpoint_guard::EndpointGuardTask;
use crate::config::Config;
use crate::host_api::Host;
use crate::host_api::cache::{self, CacheMetrics, Named, Triggered};
use crate::host_nodes::{drain, loss};
use crate::leader_election::{Election, LEASE, LeaderMetrics, Leadership, Terms};
use crate::nats::Nats;
use crate::{cluster, join_token, node_reaper, tenant};

/// Grace period after SIGTERM for the reconciliations in progress.
const GRACE: Duration = Duration::from_secs(20);
/// Clusters reconciled concurrently.
const CLUSTERS_AT_ONCE: u16 = 32;
/// Tenants reconciled concurrently.
const TENANTS_AT_ONCE: u16 = 8;
/// JoinTokens reconciled concurrently.
const JOIN_TOKENS_AT_ONCE: u16 = 16;
/// Capacity of the channel of Clusters that a watch of their own API requeues.
const REQUEUES: usize = 64;
/// Interval of checks whether the NATS connection is up, for `/readyz`.
const NATS_CHECK: Duration = Duration::from_secs(2);

/// Command line of the operator.
#[derive(Debug, clap::Parser)]
#[command(
    name = "yoke-operator",
    version,
    about = "Reconciles Tenants and Clusters with their specs"
)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, env = "YOKE_OPERATOR_CONFIG", default_value = "/etc/yoke/operator/config.yaml")]
    pub config: PathBuf,
    /// Address of the listener for metrics and probes.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// Identity of this operator in the Lease: the name of its pod. By default it is random.
    #[arg(long, env = "POD_NAME", value_parser = NonEmptyStringValueParser::new())]
    pub identity: Option<String>,
}

/// Runs the operator until SIGTERM.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    yoke_runtime::init_tracing("yoke-operator")?;
    yoke_runtime::install_crypto();
    let config = Config::load(&arguments.config)?;
    let mut supervisor = Supervisor::new(GRACE);
    let drain = supervisor.drain();
    let metrics = Metrics::new("operator");
    let readiness = Readiness::new();
    let leased = readiness.check("lease");
    let endpoint = Endpoint::bind(arguments.listen).await?;
    supervisor.spawn_background(
        "endpoint",
        endpoint.serve(metrics.clone(), readiness.clone(), drain.clone()),
    );

    let access = kube::Config::infer()
        .await
        .context("finding the configuration of the host API")?;
    let client = build_client(access).context("creating a client of the host API")?;
    let leader_metrics = LeaderMetrics::new(&metrics);
    let identity = arguments.identity;
    let identity = identity.unwrap_or_else(|| format!("{LEASE}-{:016x}", rand::random::<u64>()));
    let mut election = Election::new(client.clone(), &config.namespace, identity, Terms::default(), leased);
    if yoke_runtime::until_signal(election.win()).await?.is_none() {
        return Ok(());
    }
    leader_metrics.acts();
    let (leadership, lease) = (election.leadership(), election.clone());
    supervisor.spawn_background("leader", hold(election));
    let (synced, connected) = (readiness.check("watches"), readiness.check("nats"));
    let ca = config.nats.secret_dir.join("ca.crt");
    let nats_ca = std::fs::read_to_string(&ca).with_context(|| format!("reading {}", ca.display()))?;
    let nats = Nats::connect(&config.nats).await?;
    let (caches, triggered) = cache::start(
        &client,
        &mut supervisor,
        &CacheMetrics::new(&metrics),
        stateful_set::keep_facts,
    );
    let host = Arc::new(Host::new(client, config, caches));
    let (contexts, tasks) = Contexts::new(host, nats, nats_ca, node_reaper::ReapIntervals::default(), &metrics);
    let Contexts { host, cluster, .. } = &contexts;
    supervisor.spawn("nats", watch_nats(cluster.nats.clone(), connected, drain.clone()));
    // Processes what tenants write, so it has a task of its own.
    let signer = tasks.signer.run(Arc::clone(host), tasks.signer_metrics, drain.clone());
    supervisor.spawn("signer", async move {
        signer.await;
        Ok::<_, Infallible>(())
    });
    let phases = cluster::count_phases(Arc::clone(cluster), drain.clone());
    supervisor.spawn("phases", async move {
        phases.await;
        Ok::<_, Infallible>(())
    });
    let reaper = tasks.reaper.run(Arc::clone(host), tasks.reaper_metrics, drain.clone());
    supervisor.spawn("reaper", async move {
        reaper.await;
        Ok::<_, Infallible>(())
    });
    supervisor.spawn(
        "controllers",
        run_controllers(
            contexts,
            tasks.endpoint_guard,
            tasks.due,
            triggered,
            synced,
            leadership,
            drain,
        ),
    );
    let result = supervisor.run().await;
    // All controllers have stopped, so the next leader does not have to wait until the Lease
    // expires.
    lease.release().await;
    Ok(result?)
}

/// Renews the Lease, and exits the process when another operator holds it. The exit is immediate:
/// the new leader works on the same objects now.
async fn hold(mut election: Election) -> Result<(), Infallible> {
    let lost = election.hold().await;
    tracing::error!(error = %lost, "exiting: another operator is the leader");
    std::process::exit(1)
}

/// Starts the controllers when the watches have their first lists. Before that, a missing object
/// looks like one that is not listed yet.
///
/// All controllers share one wait: if several tasks wait for one store, kube 5.0 wakes only the
/// last.
async fn run_controllers(
    contexts: Contexts,
    endpoint_guard: EndpointGuardTask,
    due: BoxStream<'static, ObjectRef<Cluster>>,
    triggered: Triggered,
    synced: Check,
    leadership: Leadership,
    drain: Drain,
) -> Result<(), cache::SyncError> {
    let Contexts {
        host,
        cluster,
        tenant,
        join_token,
        loss,
    } = contexts;
    let triggered = match drain.until_started(triggered.wait(&host.caches)).await {
        Some(result) => result?,
        None => return Ok(()),
    };
    synced.set_ready();
    let orphans = cluster::lifecycle::orphans::collect_orphans(Arc::clone(&cluster), drain.clone());
    let (requeues, requeued) = mpsc::channel(REQUEUES);
    let endpoint_guard = endpoint_guard.run(
        Arc::clone(&cluster.memory),
        cluster.base_objects.clone(),
        requeues.clone(),
        drain.clone(),
    );
    let losses = loss::run(loss, requeues.clone(), drain.clone());
    // Before the first reconciliation, which would otherwise revert the takeover of a previous
    // leader.
    cluster.notices.check(&host);
    let notices = drain::run(host, Arc::clone(&cluster.notices), requeues, drain.clone());
    let triggers = stream::select_all([triggered.clusters, requeued.boxed(), due]).boxed();
    let clusters = run_clusters(cluster, triggers, leadership.clone(), drain.clone());
    let join_tokens = run_join_tokens(join_token, triggered.join_tokens, leadership.clone(), drain.clone());
    let tenants = run_tenants(tenant, triggered.tenants, leadership, drain);
    let (_, (), (), (), (), (), ()) =
        tokio::join!(orphans, endpoint_guard, losses, notices, clusters, join_tokens, tenants);
    Ok(())
}

async fn run_clusters(
    context: Arc<cluster::context::Context>,
    triggers: BoxStream<'static, ObjectRef<Cluster>>,
    leadership: Leadership,
    drain: Drain,
) {
    // NATS may have recovered without the streams that were seen there.
    let reconnected = stream::unfold(
        (context.nats.connected(), Arc::clone(&context)),
        async |(mut connected, context)| {
            connected.changed().await.ok()?;
            context.memory.forget_stores();
            Some(((), (connected, context)))
        },
    );
    // The controller's store has only names. The reconciliation reads the Cluster.
    let to_named = |key: ObjectRef<Cluster>| {
        ObjectRef::<Named>::new(&key.name).within(key.namespace.as_deref().unwrap_or_default())
    };
    let to_key =
        |named: &Named| ObjectRef::<Cluster>::new(&named.name_any()).within(&named.namespace().unwrap_or_default());
    Controller::for_shared_stream(stream::pending::<Arc<Named>>(), context.host.caches.clusters.named())
        .with_config(ControllerConfig::default().concurrency(CLUSTERS_AT_ONCE))
        .reconcile_on(triggers.map(to_named))
        .reconcile_all_on(reconnected)
        .graceful_shutdown_on(drain_started(drain.clone()))
        .run(
            move |named, context| leadership.run_while_held(&drain, cluster::reconcile(to_key(&named), context)),
            move |named, error, context| cluster::on_error(&to_key(&named), error, &context),
            context,
        )
        .for_each(async |_| ())
        .await;
}

async fn run_tenants(
    context: Arc<tenant::Context>,
    triggers: BoxStream<'static, ObjectRef<Tenant>>,
    leadership: Leadership,
    drain: Drain,
) {
    Controller::for_shared_stream(stream::pending::<Arc<Tenant>>(), context.host.caches.tenants.clone())
        .with_config(ControllerConfig::default().concurrency(TENANTS_AT_ONCE))
        .reconcile_on(triggers)
        .graceful_shutdown_on(drain_started(drain.clone()))
        .run(
            move |tenant, context| leadership.run_while_held(&drain, tenant::reconcile(tenant, context)),
            tenant::on_error,
            context,
        )
        .for_each(async |_| ())
        .await;
}

async fn run_join_tokens(
    context: Arc<join_token::Context>,
    triggers: BoxStream<'static, ObjectRef<JoinToken>>,
    leadership: Leadership,
    drain: Drain,
) {
    Controller::for_shared_stream(
        stream::pending::<Arc<JoinToken>>(),
        context.host.caches.join_tokens.clone(),
    )
    .with_config(ControllerConfig::default().concurrency(JOIN_TOKENS_AT_ONCE))
    .reconcile_on(triggers)
    .graceful_shutdown_on(drain_started(drain.clone()))
    .run(
        move |token, context| leadership.run_while_held(&drain, join_token::reconcile(token, context)),
        join_token::on_error,
        context,
    )
    .for_each(async |_| ())
    .await;
}

async fn drain_started(drain: Drain) {
    drain.started().await;
}

/// Keeps `/readyz` in sync with the NATS connection.
async fn watch_nats(nats: Nats, check: Check, drain: Drain) -> Result<(), Infallible> {
    loop {
        if nats.is_connected() {
            check.set_ready();
        } else {
            check.set_not_ready("not connected");
        }
        if drain.until_started(tokio::time::sleep(NATS_CHECK)).await.is_none() {
            return Ok(());
        }
    }
}
