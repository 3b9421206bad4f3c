//! The process: reads the configuration, connects, starts watches and controllers, and ends them in order.

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

use crate::apply::Applier;
use crate::cache::{self, Named, Triggered};
use crate::config::Config;
use crate::context::Context;
use crate::events::Events;
use crate::leader::{Election, Held, LEASE, Terms};
use crate::metrics::OperatorMetrics;
use crate::nats::Nats;
use crate::slots::Slots;
use crate::tenant_api::{TenantApis, build_base};
use crate::{cluster, join_token, loss, notice, reaper, signer, tenant};

/// Reconciliations that end soon after SIGTERM are waited for this long.
const GRACE: Duration = Duration::from_secs(20);
/// Clusters that are reconciled at once.
const CLUSTERS_AT_ONCE: u16 = 32;
/// Tenants that are reconciled at once.
const TENANTS_AT_ONCE: u16 = 8;
/// JoinTokens that are reconciled at once.
const JOIN_TOKENS_AT_ONCE: u16 = 16;
/// Clusters that were called for by a watch of their own API, and wait to be taken.
const CALLS: usize = 64;
/// Pace of looking whether the connection to NATS is up, for `/readyz`.
const NATS_CHECK: Duration = Duration::from_secs(2);

/// Command line of the operator.
#[derive(Debug, clap::Parser)]
#[command(
    name = "yoke-operator",
    version,
    about = "Brings Tenants and Clusters to what their specs ask for"
)]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, env = "YOKE_OPERATOR_CONFIG", default_value = "/etc/yoke/operator/config.yaml")]
    pub config: PathBuf,
    /// Where metrics and probes are served.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// The name by which this operator holds the Lease: its pod's. One is drawn without.
    #[arg(long, env = "POD_NAME", value_parser = NonEmptyStringValueParser::new())]
    pub identity: Option<String>,
}

/// Runs the operator until it is told to end.
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
        .context("looking for a way to the host API")?;
    let client = build_client(access).context("making a client of the host API")?;
    let counters = OperatorMetrics::new(&metrics);
    let identity = arguments.identity;
    let identity = identity.unwrap_or_else(|| format!("{LEASE}-{:016x}", rand::random::<u64>()));
    let mut election = Election::new(client.clone(), &config.namespace, identity, Terms::default(), leased);
    if yoke_runtime::until_signal(election.win()).await?.is_none() {
        return Ok(());
    }
    counters.acts();
    let (held, leaving) = (election.held(), election.clone());
    supervisor.spawn_background("leader", hold(election));
    let (synced, connected) = (readiness.check("watches"), readiness.check("nats"));
    let ca = config.nats.secret_dir.join("ca.crt");
    let nats_ca = std::fs::read_to_string(&ca).with_context(|| format!("reading {}", ca.display()))?;
    let nats = Nats::connect(&config.nats).await?;
    let (caches, triggered) = cache::start(&client, &mut supervisor, &counters);
    let (guard, keeper) = cluster::Guard::new();
    let (turns, made) = cluster::Turns::new(cluster::Rule::MADE);
    let (restarts, restarted) = cluster::Turns::new(cluster::Rule::RESTARTED);
    let (starts, started) = cluster::Turns::new(cluster::Rule::of_starts(0));
    let (signer, signing) = signer::Signer::new();
    let (reaper, reaping) = reaper::Reaper::new(reaper::Pace::default());
    let context = Arc::new(Context {
        base: build_base(&config.ingress.address, config.ingress.port),
        clusters: Applier::new(client.clone(), cluster::CONTROLLER),
        tenants: Applier::new(client.clone(), tenant::CONTROLLER),
        guard,
        signer,
        reaper,
        turns,
        restarts,
        starts,
        losses: loss::Losses::default(),
        notices: notice::Notices::default(),
        join_token_slots: Slots::new(join_token::AT_ONCE),
        late_slots: Slots::new(cluster::LATE_AT_ONCE),
        join_tokens: Applier::new(client.clone(), join_token::CONTROLLER),
        apis: TenantApis::default(),
        events: Events::new(client.clone()),
        metrics: counters,
        root: tokio::sync::Mutex::default(),
        copying: tokio::sync::Semaphore::new(cluster::COPIED_AT_ONCE),
        seen: std::sync::Mutex::default(),
        awake: std::sync::Mutex::default(),
        client,
        config,
        nats_ca,
        nats,
        caches,
    });
    supervisor.spawn("nats", watch_nats(Arc::clone(&context), connected, drain.clone()));
    // What tenants write is read there: it has a task to itself.
    let signing = signing.run(Arc::clone(&context), drain.clone());
    supervisor.spawn("signer", async move {
        signing.await;
        Ok::<_, std::convert::Infallible>(())
    });
    let counting = cluster::count_phases(Arc::clone(&context), drain.clone());
    supervisor.spawn("phases", async move {
        counting.await;
        Ok::<_, std::convert::Infallible>(())
    });
    let reaping = reaping.run(Arc::clone(&context), drain.clone());
    supervisor.spawn("reaper", async move {
        reaping.await;
        Ok::<_, std::convert::Infallible>(())
    });
    supervisor.spawn(
        "controllers",
        run_controllers(
            context,
            keeper,
            triggered,
            stream::select_all([made, restarted, started]).boxed(),
            synced,
            held,
            drain,
        ),
    );
    let ended = supervisor.run().await;
    // Nothing acts any more: the next one need not wait.
    leaving.leave().await;
    Ok(ended?)
}

/// Holds on to the Lease, and ends the process when another has it: at once, for what is under way is the other's now.
async fn hold(mut election: Election) -> Result<(), Infallible> {
    let lost = election.hold().await;
    tracing::error!(error = %lost, "this operator ends");
    std::process::exit(1)
}

/// Controllers start when the watches hold their first lists: what is missing is told from what is not known yet.
///
/// The waiting is done once for both: of several that wait for one store, kube 5.0 wakes only the last.
async fn run_controllers(
    context: Arc<Context>,
    keeper: cluster::Keeper,
    triggered: Triggered,
    due: BoxStream<'static, ObjectRef<Cluster>>,
    synced: Check,
    held: Held,
    drain: Drain,
) -> Result<(), cache::SyncError> {
    let triggered = match drain.until_started(triggered.wait(&context.caches)).await {
        Some(result) => result?,
        None => return Ok(()),
    };
    synced.set_ready();
    let orphans = cluster::orphans::run(Arc::clone(&context), drain.clone());
    let (calls, called) = mpsc::channel(CALLS);
    let guarded = keeper.run(Arc::clone(&context), calls.clone(), drain.clone());
    let losses = loss::run(Arc::clone(&context), calls.clone(), drain.clone());
    // Before the first reconciliation, which would take back what a predecessor has begun.
    context.notices.look(&context);
    let notices = notice::run(Arc::clone(&context), calls, drain.clone());
    let triggers = stream::select_all([triggered.clusters, called.boxed(), due]).boxed();
    let clusters = run_clusters(Arc::clone(&context), triggers, held.clone(), drain.clone());
    let join_tokens = run_join_tokens(Arc::clone(&context), triggered.join_tokens, held.clone(), drain.clone());
    let tenants = run_tenants(context, triggered.tenants, held, drain);
    let (_, (), (), (), (), (), ()) = tokio::join!(orphans, guarded, losses, notices, clusters, join_tokens, tenants);
    Ok(())
}

async fn run_clusters(
    context: Arc<Context>,
    triggers: BoxStream<'static, ObjectRef<Cluster>>,
    held: Held,
    drain: Drain,
) {
    // NATS may have come back without what was seen there.
    let reconnected = stream::unfold(
        (context.nats.connected(), Arc::clone(&context)),
        async |(mut connected, context)| {
            connected.changed().await.ok()?;
            context.forget_stores();
            Some(((), (connected, context)))
        },
    );
    // The controller knows them by name, and looks them up.
    let to_named = |key: ObjectRef<Cluster>| {
        ObjectRef::<Named>::new(&key.name).within(key.namespace.as_deref().unwrap_or_default())
    };
    let to_key =
        |named: &Named| ObjectRef::<Cluster>::new(&named.name_any()).within(&named.namespace().unwrap_or_default());
    Controller::for_shared_stream(stream::pending::<Arc<Named>>(), context.caches.clusters.named())
        .with_config(ControllerConfig::default().concurrency(CLUSTERS_AT_ONCE))
        .reconcile_on(triggers.map(to_named))
        .reconcile_all_on(reconnected)
        .graceful_shutdown_on(ended(drain.clone()))
        .run(
            move |named, context| held.carry_out(&drain, cluster::reconcile(to_key(&named), context)),
            move |named, error, context| cluster::on_error(&to_key(&named), error, &context),
            context,
        )
        .for_each(async |_| ())
        .await;
}

async fn run_tenants(context: Arc<Context>, triggers: BoxStream<'static, ObjectRef<Tenant>>, held: Held, drain: Drain) {
    Controller::for_shared_stream(stream::pending::<Arc<Tenant>>(), context.caches.tenants.clone())
        .with_config(ControllerConfig::default().concurrency(TENANTS_AT_ONCE))
        .reconcile_on(triggers)
        .graceful_shutdown_on(ended(drain.clone()))
        .run(
            move |tenant, context| held.carry_out(&drain, tenant::reconcile(tenant, context)),
            tenant::on_error,
            context,
        )
        .for_each(async |_| ())
        .await;
}

async fn run_join_tokens(
    context: Arc<Context>,
    triggers: BoxStream<'static, ObjectRef<JoinToken>>,
    held: Held,
    drain: Drain,
) {
    Controller::for_shared_stream(stream::pending::<Arc<JoinToken>>(), context.caches.join_tokens.clone())
        .with_config(ControllerConfig::default().concurrency(JOIN_TOKENS_AT_ONCE))
        .reconcile_on(triggers)
        .graceful_shutdown_on(ended(drain.clone()))
        .run(
            move |token, context| held.carry_out(&drain, join_token::reconcile(token, context)),
            join_token::on_error,
            context,
        )
        .for_each(async |_| ())
        .await;
}

async fn ended(drain: Drain) {
    drain.started().await;
}

/// Keeps `/readyz` in step with the connection to NATS.
async fn watch_nats(context: Arc<Context>, check: Check, drain: Drain) -> Result<(), Infallible> {
    loop {
        if context.nats.is_connected() {
            check.set_ready();
        } else {
            check.set_not_ready("not connected");
        }
        if drain.until_started(tokio::time::sleep(NATS_CHECK)).await.is_none() {
            return Ok(());
        }
    }
}
