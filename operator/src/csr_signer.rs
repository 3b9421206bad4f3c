//! Signs the certificates of kubelets, and those that tenants approve for users, in each awake
//! cluster, with its CAs in cert-manager.
//!
//! ```text
//!  successful probe of the API ─keep─▶ Keeper: one task per cluster, which watches the CertificateSigningRequests of each signer
//!     budgets ─▶ validate ─▶ Node ─▶ JoinToken ─▶ signing budget (turn) ─▶ one use is counted ─▶ cert-manager (issue)
//!                 │                                └─ waits, or its JoinToken is not known yet       ─▶ compare ─▶ status
//!                 └─ refused: condition Failed, with a reason
//! ```
//!
//! Requests of one cluster are handled one after the other, and only while the cluster and its
//! Tenant have budget left. Until then they stay in the API server. It ends a watch that is not
//! read for long, and the next watch lists all open requests again. A requester with many requests
//! is skipped and answered later, so that it does not delay other requesters.
//!
//! Valid requests wait for the signing budget. Requests of existing nodes come before those of new
//! nodes. No use is counted before that, nor for a request that was deleted meanwhile.
//!
//! After a failure the next watch tries again. The delay doubles with each watch that ends soon.
//! After `MAX_STRIKES` such watches the cluster is not watched until the next successful probe of
//! its API. No permit is held during a request to a tenant's API.

mod context;
mod issue;
pub(crate) mod join_counter;
mod metrics;
pub(crate) mod queue;
pub mod refusal;
pub mod validate;

pub use crate::csr_signer::metrics::SignerMetrics;

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, TryStreamExt as _, stream};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use yoke_api::{Cluster, ClusterId, Lenient, labels};
use yoke_pki::request::Use;
use yoke_runtime::Drain;

use crate::csr_signer::context::Context;
use crate::csr_signer::context::{REFILL, take};
use crate::csr_signer::issue::IssueError;
use crate::csr_signer::join_counter::Joiner;
use crate::csr_signer::queue::{Queue, Skipped, Waiting};
use crate::csr_signer::refusal::Refusal;
use crate::csr_signer::validate::{CertificateRequestFacts, Requester};
use crate::error::ReconcileError;
use crate::host_api::Host;
use crate::model::identity::Identity;
use crate::tenant_client::watch::Change;
use crate::tenant_client::{TenantApi, TenantApiError};

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "signer";

/// Capacity of the channel of clusters to watch. A cluster that does not fit is sent again after
/// the next probe.
const CAPACITY: usize = 256;
/// Maximum length of a requester's name in a budget's key, in characters.
const REQUESTER_MAX: usize = 300;
/// Delay until all requests are listed again, if there was no room for a request that waits for its
/// requester's budget.
const RELIST: Duration = Duration::from_secs(60);
/// A watch that ends sooner than this counts as a failure.
const CALM: Duration = Duration::from_secs(300);
/// Delay of the next watch after one failure. It doubles after each further one.
const BACKOFF: Duration = Duration::from_secs(1);
/// Failures in a row after which there is no next watch.
const MAX_STRIKES: u32 = 5;
/// Maximum number of handled requests that one watch remembers.
const HANDLED_MAX: usize = 1024;

/// Tells the [`SignerTask`] which clusters to watch.
#[derive(Clone, Debug)]
pub struct SignerHandle {
    clusters: mpsc::Sender<WatchedCluster>,
}

/// Owns the watches of all clusters.
#[derive(Debug)]
pub struct SignerTask {
    clusters: mpsc::Receiver<WatchedCluster>,
}

/// A cluster whose requests are answered.
#[derive(Clone, Debug)]
struct WatchedCluster {
    identity: Identity,
    api: TenantApi,
}

/// State of one watch.
#[derive(Default)]
struct WatchState {
    /// UIDs of handled requests. If a tenant reverts an answer, this watch does not repeat it.
    handled: HashSet<String>,
    queue: Queue,
    skipped: Skipped,
    /// Since when a skipped request had no room.
    missed_since: Option<Instant>,
}

/// Result of processing a request.
enum Outcome {
    /// The signed certificate with its chain.
    Signed(Box<CertificateRequestFacts>, String),
    /// The reason of the refusal.
    Refused(Refusal),
    /// The request waits for the signing budget: that of new nodes, or that of existing ones.
    Later { is_new: bool },
    /// The request was deleted or answered meanwhile.
    Deleted,
}

/// A request could not be answered now.
#[derive(Debug, thiserror::Error)]
enum SignError {
    /// The watch ended.
    #[error("the watch of certificate requests ended")]
    Ended,
    /// A request to the tenant's API failed.
    #[error(transparent)]
    Tenant(#[from] TenantApiError),
    /// A request to the host API failed.
    #[error(transparent)]
    Host(#[from] ReconcileError),
    /// No certificate was issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The Cluster was deleted or replaced.
    #[error("the Cluster was deleted or replaced")]
    Deleted,
}

impl SignerHandle {
    /// Creates a signer and its keeper.
    pub fn new() -> (Self, SignerTask) {
        let (clusters, receiver) = mpsc::channel(CAPACITY);
        (Self { clusters }, SignerTask { clusters: receiver })
    }

    /// Answers the requests of a cluster from now on, unless they already are answered. Its API was
    /// probed successfully just now.
    pub(crate) fn keep(&self, identity: &Identity, api: &TenantApi) {
        let target = WatchedCluster {
            identity: identity.clone(),
            api: api.clone(),
        };
        if self.clusters.try_send(target).is_err() {
            tracing::debug!(cluster = %identity.id, "channel of clusters to watch is full; waiting for the next probe");
        }
    }
}

impl SignerTask {
    /// Answers requests until the drain starts.
    pub async fn run(mut self, host: Arc<Host>, metrics: SignerMetrics, drain: Drain) {
        let context = Arc::new(Context::new(host, metrics));
        let mut watched = HashSet::<ClusterId>::new();
        // One task per cluster: a slow tenant's API does not delay the requests of others.
        let mut watches = JoinSet::new();
        let mut sweeping = std::pin::pin!(issue::sweep_often(&context));
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(target) = self.clusters.recv() => {
                    if watched.insert(target.identity.id.clone()) {
                        watches.spawn(watch(Arc::clone(&context), target));
                    }
                }
                Some(finished) = watches.join_next() => match finished {
                    Ok(id) => {
                        watched.remove(&id);
                    }
                    // No task is cancelled before this returns, so the error is a panic.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = &mut sweeping => {}
            }
        }
    }
}

/// Answers requests until too many watches fail, or the Cluster is deleted.
async fn watch(context: Arc<Context>, target: WatchedCluster) -> ClusterId {
    let (mut strikes, mut state) = (0, WatchState::default());
    while strikes < MAX_STRIKES && find_cluster(&context, &target).is_some() {
        let start = Instant::now();
        let Err(error) = answer_all(&context, &target, &mut state).await;
        let is_calm = start.elapsed() >= CALM;
        // A watch has a normal end. Waiting requests stay in the queue for the next one.
        if is_calm && matches!(error, SignError::Ended | SignError::Tenant(TenantApiError::Ended)) {
            state.handled.clear();
        } else {
            context.metrics.signing_failed();
            state = WatchState::default();
        }
        let error = crate::chain(&error);
        tracing::debug!(cluster = %target.identity.id, error, "watching certificate requests again");
        strikes = if is_calm { 1 } else { strikes + 1 };
        tokio::time::sleep(BACKOFF * 2_u32.pow(strikes - 1)).await;
    }
    target.identity.id
}

async fn answer_all(
    context: &Context,
    target: &WatchedCluster,
    state: &mut WatchState,
) -> Result<Infallible, SignError> {
    let mut events = std::pin::pin!(watch_requests(target));
    let mut ticks = tokio::time::interval(REFILL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.try_next() => {
                if let Some(csr) = admit_change(context, target, event?.ok_or(SignError::Ended)?).await {
                    receive(context, target, &csr, state).await?;
                }
            }
            _ = ticks.tick() => {
                answer_next(context, target, state).await?;
                answer_skipped(context, target, state).await?;
                if state.missed_since.is_some_and(|since| since.elapsed() >= RELIST) {
                    state.missed_since = None;
                    events.set(watch_requests(target));
                }
            }
        }
    }
}

/// Streams the requests of each signer: first a list, then the changes.
fn watch_requests(
    target: &WatchedCluster,
) -> impl Stream<Item = Result<Change<Option<CertificateSigningRequest>>, TenantApiError>> + Send + use<> {
    let signers = [validate::CLIENT_SIGNER, validate::SERVING_SIGNER, validate::USER_SIGNER];
    // Trims requests early: until then each may be as large as an answer of the tenant's API.
    let trim =
        |found: Lenient<CertificateSigningRequest>| found.0.ok().filter(validate::is_open).and_then(validate::trim);
    stream::select_all(signers.map(|signer| target.api.watch_requests(signer, trim)))
}

/// Returns the request of a change, if it may need an answer. Waits for the budgets.
async fn admit_change(
    context: &Context,
    target: &WatchedCluster,
    change: Change<Option<CertificateSigningRequest>>,
) -> Option<CertificateSigningRequest> {
    let signer = context;
    let csr = match change {
        Change::Current(csr) => csr,
        Change::Deleted => None,
        Change::Listed => return None,
    };
    signer.spend(&signer.reads, &target.identity.tenant).await;
    let csr = csr?;
    signer.spend(&signer.checks, target.identity.id.as_str()).await;
    Some(csr)
}

/// Answers a request, or queues it while its requester has no budget.
async fn receive(
    context: &Context,
    target: &WatchedCluster,
    csr: &CertificateSigningRequest,
    state: &mut WatchState,
) -> Result<(), SignError> {
    let waiting = Waiting {
        name: csr.name_any(),
        uid: csr.uid().unwrap_or_default(),
        since: Instant::now(),
        requested_at: Timestamp::now(),
    };
    let waits = state.skipped.contains(&waiting.uid) || state.queue.contains(&waiting.uid);
    if waits || state.handled.contains(&waiting.uid) {
        return Ok(());
    }
    let user = csr.spec.username.as_deref().unwrap_or_default();
    let user = user.chars().take(REQUESTER_MAX).collect::<String>();
    let requester = format!("{}/{user}", target.identity.id);
    if take(&context.requesters, &requester) {
        return answer_first(context, target, csr, waiting, state).await;
    }
    if !state.skipped.put(requester, waiting) {
        state.missed_since.get_or_insert_with(Instant::now);
    }
    Ok(())
}

/// Answers one skipped request whose requester has budget again.
async fn answer_skipped(context: &Context, target: &WatchedCluster, state: &mut WatchState) -> Result<(), SignError> {
    let next = state.skipped.take(|requester| take(&context.requesters, requester));
    let Some(waiting) = next else {
        return Ok(());
    };
    match find_open(target, &waiting).await? {
        Some(csr) => answer_first(context, target, &csr, waiting, state).await,
        None => Ok(()),
    }
}

/// Answers a request that this watch has not handled yet.
async fn answer_first(
    context: &Context,
    target: &WatchedCluster,
    csr: &CertificateSigningRequest,
    waiting: Waiting,
    state: &mut WatchState,
) -> Result<(), SignError> {
    if state.handled.len() >= HANDLED_MAX {
        return Err(SignError::Ended);
    }
    state.handled.insert(waiting.uid.clone());
    let signer = context;
    signer.spend(&signer.answers, &target.identity.tenant).await;
    answer(context, target, csr, waiting, &mut state.queue).await
}

/// Answers the next queued request, if the budget allows.
async fn answer_next(context: &Context, target: &WatchedCluster, state: &mut WatchState) -> Result<(), SignError> {
    let WatchState { queue, handled, .. } = state;
    let tenant = &target.identity.tenant;
    let may = |is_new| context.signings().has(tenant, is_new, Instant::now());
    let Some(waiting) = queue
        .next_is_new()
        .filter(|is_new| may(*is_new))
        .and_then(|_| queue.take())
    else {
        return Ok(());
    };
    // The request may have been queued before this watch.
    handled.insert(waiting.uid.clone());
    match find_open(target, &waiting).await? {
        Some(csr) => answer(context, target, &csr, waiting, queue).await,
        None => Ok(()),
    }
}

/// Returns a request as it is now, if it still needs an answer.
async fn find_open(target: &WatchedCluster, waiting: &Waiting) -> Result<Option<CertificateSigningRequest>, SignError> {
    let found = target.api.request(&waiting.name).await?;
    let found = found.and_then(|found| found.0.ok().filter(validate::is_open));
    let found = found.and_then(validate::trim);
    Ok(found.filter(|found| found.metadata.uid.as_ref() == Some(&waiting.uid)))
}

/// Signs, refuses or queues one request.
async fn answer(
    context: &Context,
    target: &WatchedCluster,
    csr: &CertificateSigningRequest,
    waiting: Waiting,
    queue: &mut Queue,
) -> Result<(), SignError> {
    let (id, params) = (&target.identity.id, &context.params);
    let outcome = match sign(context, target, csr, &waiting).await {
        // A retry would fail again, and delay the requests behind this one.
        Err(SignError::Issue(error @ (IssueError::Refused(_) | IssueError::Other))) => {
            tracing::info!(cluster = %id, error = %error, "certificate was not issued");
            Outcome::Refused(Refusal::NotIssued)
        }
        other => other?,
    };
    let written = match &outcome {
        Outcome::Deleted => return Ok(()),
        Outcome::Later { is_new } if queue.put(*is_new, waiting) => return Ok(()),
        Outcome::Later { .. } => return Err(SignError::Ended),
        Outcome::Signed(_, chain) => target.api.answer(csr, chain, params).await,
        Outcome::Refused(refusal) => {
            let message = refusal.to_string();
            target.api.refuse(csr, refusal.as_str(), &message, params).await
        }
    };
    match written {
        Err(error) if error.is_of_another() => return Ok(()),
        written => written?,
    }
    match outcome {
        Outcome::Signed(facts, _) => {
            context.metrics.signed(facts.purpose_label());
            tracing::info!(cluster = %id, name = facts.name, purpose = ?facts.purpose, "certificate was signed");
        }
        Outcome::Refused(refusal) => {
            context.metrics.refused_to_sign(refusal);
            tracing::info!(cluster = %id, reason = refusal.as_str(), "certificate was refused");
        }
        Outcome::Later { .. } | Outcome::Deleted => {}
    }
    Ok(())
}

/// Issues a certificate with its chain, or returns why there is none.
async fn sign(
    context: &Context,
    target: &WatchedCluster,
    csr: &CertificateSigningRequest,
    waiting: &Waiting,
) -> Result<Outcome, SignError> {
    let facts = match validate::validate(csr) {
        Ok(facts) => facts,
        Err(refusal) => return Ok(Outcome::Refused(refusal)),
    };
    let node = find_node(target, &facts).await?;
    if let Err(refusal) = validate::validate_node(&facts, node.as_ref()) {
        return Ok(Outcome::Refused(refusal));
    }
    let cluster = find_cluster(context, target).ok_or(SignError::Deleted)?;
    let ca = issue::find_ca(context, &target.identity.id, facts.purpose).await?;
    let Some(term) = issue::plan_term(&facts, &cluster.spec.pki, &ca, Timestamp::now()) else {
        return Ok(Outcome::Refused(Refusal::AuthorityEnds));
    };
    let joins = match build_joiner(target, &facts, waiting) {
        None => None,
        Some(joiner) => match join_counter::find(context, &joiner) {
            Some(Ok(known)) => Some((joiner, known)),
            Some(Err(refusal)) => return Ok(Outcome::Refused(refusal)),
            None if queue::is_early(waiting.since, Instant::now()) => return Ok(Outcome::Later { is_new: true }),
            None => return Ok(Outcome::Refused(Refusal::TokenUnknown)),
        },
    };
    // Existing nodes stop working without certificates, so users wait behind them like new nodes.
    let is_new = joins.is_some() || facts.requester == Requester::Approved;
    let tenant = &target.identity.tenant;
    let signings = || context.signings();
    if !signings().has(tenant, is_new, Instant::now()) {
        return Ok(Outcome::Later { is_new });
    }
    // Checked before anything is spent: a deleted request costs nothing.
    if find_open(target, waiting).await?.is_none() {
        return Ok(Outcome::Deleted);
    }
    if !signings().take(tenant, is_new, Instant::now()) {
        return Ok(Outcome::Later { is_new });
    }
    if let Some((joiner, known)) = joins {
        if let Err(refusal) = join_counter::count(context, &joiner, &known).await? {
            return Ok(Outcome::Refused(refusal));
        }
        // Before there can be a Node, and while the JoinToken is known.
        let reap_after = known.spec.reap_after.as_deref();
        target.api.prepare_lease(&facts.name, reap_after).await?;
    }
    if let Some(node) = node.filter(|_| facts.purpose == Use::Server) {
        record_taints(context, target, &node).await?;
        if !facts.is_approved {
            target.api.approve(csr, &context.params).await?;
        }
    }
    let chain = issue::issue(context, &target.identity, &facts, csr, &ca, term).await?;
    Ok(Outcome::Signed(Box::new(facts), chain))
}

/// Returns the joining node, if the request comes with a bootstrap token.
fn build_joiner<'a>(
    target: &'a WatchedCluster,
    facts: &'a CertificateRequestFacts,
    waiting: &'a Waiting,
) -> Option<Joiner<'a>> {
    match &facts.requester {
        Requester::Node | Requester::Approved => None,
        Requester::Bootstrap(token_id) => Some(Joiner {
            identity: &target.identity,
            token_id,
            node: &facts.name,
            request: &waiting.uid,
            requested_at: waiting.requested_at,
        }),
    }
}

/// Returns the Node of the requested certificate, if it exists. A Node that cannot be decoded
/// counts as one without addresses.
async fn find_node(target: &WatchedCluster, facts: &CertificateRequestFacts) -> Result<Option<Node>, SignError> {
    let found = match facts.requester {
        Requester::Approved => None,
        Requester::Node | Requester::Bootstrap(_) => target.api.node(&facts.name).await?,
    };
    Ok(found.map(|node| node.0.unwrap_or_default()))
}

/// Records on a Node which taints its JoinToken set, while that is known. Without this annotation,
/// an administrator of the cluster would have to delete the Node by hand later.
async fn record_taints(context: &Context, target: &WatchedCluster, node: &Node) -> Result<(), TenantApiError> {
    if node.annotations().contains_key(labels::JOINED_TAINTS) {
        return Ok(());
    }
    match join_counter::find_taints(context, &target.identity, &node.name_any()) {
        Some(taints) => target.api.record_taints(node, &taints).await,
        None => Ok(()),
    }
}

/// Returns the watched Cluster, if it still has the same identity.
fn find_cluster(context: &Context, target: &WatchedCluster) -> Option<Arc<Cluster>> {
    let Identity {
        tenant, cluster, id, ..
    } = &target.identity;
    let found = context
        .host
        .caches
        .clusters
        .get(&ObjectRef::new(cluster).within(tenant))?;
    let exists = found.metadata.deletion_timestamp.is_none();
    (exists && found.id().as_ref() == Some(id)).then_some(found)
}
