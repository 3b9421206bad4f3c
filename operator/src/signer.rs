//! Signs the certificates of kubelets, and those that tenants approve for users, in each cluster that is awake, by its CAs in
//! cert-manager.
//!
//! ```text
//!  look at the API, all is well ─keep─▶ Keeper: one task a cluster, which watches CertificateSigningRequests of each signer
//!     budgets ─▶ validate ─▶ Node ─▶ JoinToken ─▶ what may be signed (turn) ─▶ one use is counted ─▶ cert-manager (issue)
//!                 │                                └─ waits, or its JoinToken is not known yet        ─▶ compare ─▶ status
//!                 └─ refused: condition Failed, with a reason
//! ```
//!
//! Requests of one cluster are taken one after the other, and only when it and its Tenant have some of their budgets left; until
//! then they wait in the API server, which ends a watch that is not read for long, so that the next one lists what there is.
//! Who makes many is skipped, and answered later: the others do not wait for that.
//! Those that are good wait for what may be signed, nodes that are there before new ones. Nothing is counted before that, nor
//! for a request that has gone meanwhile. What failed is tried again by the next watch, and the more of them end soon the longer
//! that takes; after some the next look at the API that finds all well begins anew. No permit is held while a tenant's API is
//! asked.

mod issue;
mod turn;
mod uses;
pub mod validate;

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{Stream, TryStreamExt as _, stream};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::PatchParams;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use yoke_api::{Cluster, ClusterId, Lenient, labels};
use yoke_pki::request::Use;
use yoke_runtime::Drain;
use yoke_runtime::budget::{Budgets, Rate};

use crate::cluster::identity::Identity;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::tenant_api::changes::Change;
use crate::tenant_api::{TenantApi, TenantApiError};
use issue::IssueError;
use turn::{Queue, Signings, Skipped, Waiting};
use uses::Joiner;
use validate::{Asked, Refusal, Requester};

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "signer";

/// Clusters that wait to be watched. One that finds no place is told of again by its next look.
const CAPACITY: usize = 256;
/// Certificates that are asked for at once, of all clusters.
const AT_ONCE: usize = 16;
/// Requests of one Tenant that are read, be they answered or not.
const READS: Rate = Rate {
    per_second: 50,
    burst: 1000,
};
/// Requests of one cluster that are looked at, since they have no answer.
const LOOKS: Rate = Rate {
    per_second: 20,
    burst: 300,
};
/// Requests of one Tenant that are answered, be it by a refusal.
const ANSWERS: Rate = Rate {
    per_second: 2,
    burst: 40,
};
/// Requests of one requester that are answered: whoever has more leaves the rest of the answers to the others.
const REQUESTERS: Rate = Rate {
    per_second: 1,
    burst: 20,
};
/// Characters by which a requester is known.
const REQUESTER_MAX: usize = 300;
/// When all are listed again, if there was no place for one that waits for its requester's budget.
const RELIST: Duration = Duration::from_secs(60);
/// Between two looks whether there is some budget again.
const REFILL: Duration = Duration::from_millis(500);
/// A watch that ends sooner than this counts as a failure.
const CALM: Duration = Duration::from_secs(300);
/// How long the next watch waits after one failure; twice as long after each more.
const PAUSE: Duration = Duration::from_secs(1);
/// Failures in a row after which there is no next watch.
const MAX_STRIKES: u32 = 5;
/// Requests that are known to have been dealt with, of one watch.
const DEALT_WITH: usize = 1024;

/// Tells the [`Keeper`] of clusters whose requests can be answered.
#[derive(Debug)]
pub struct Signer {
    wards: mpsc::Sender<Ward>,
    reads: Mutex<Budgets<String>>,
    looks: Mutex<Budgets<String>>,
    answers: Mutex<Budgets<String>>,
    requesters: Mutex<Budgets<String>>,
    signings: Mutex<Signings>,
    permits: Semaphore,
    params: PatchParams,
}

/// Owns the watches.
#[derive(Debug)]
pub struct Keeper {
    wards: mpsc::Receiver<Ward>,
}

/// A cluster whose requests are answered.
#[derive(Clone, Debug)]
struct Ward {
    identity: Identity,
    api: TenantApi,
}

/// What one watch knows of requests.
#[derive(Default)]
struct Turns {
    /// What the tenant undoes is not done again before the next watch.
    dealt_with: HashSet<String>,
    queue: Queue,
    skipped: Skipped,
    /// Since when one is skipped that found no place.
    missed: Option<Instant>,
}

/// What becomes of a request.
enum Outcome {
    /// This chain.
    Signed(Box<Asked>, String),
    /// Why not.
    Refused(Refusal),
    /// It waits for its turn: that of a new node, or of one that is there.
    Later { is_new: bool },
    /// There is nothing to do for it any more.
    Gone,
}

/// A request could not be answered now.
#[derive(Debug, thiserror::Error)]
enum SignError {
    /// The watch ended.
    #[error("the watch of requests for certificates ended")]
    Ended,
    /// The tenant's API does not do what it should.
    #[error(transparent)]
    Tenant(#[from] TenantApiError),
    /// The host does not.
    #[error(transparent)]
    Host(#[from] ReconcileError),
    /// There is no certificate.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The Cluster is another one by now, or gone.
    #[error("the Cluster is not there any more")]
    Gone,
}

impl Signer {
    /// A signer, and the keeper that it tells.
    pub fn new() -> (Self, Keeper) {
        let (wards, receiver) = mpsc::channel(CAPACITY);
        let signer = Self {
            wards,
            reads: Mutex::new(Budgets::new(READS, Instant::now())),
            looks: Mutex::new(Budgets::new(LOOKS, Instant::now())),
            answers: Mutex::new(Budgets::new(ANSWERS, Instant::now())),
            requesters: Mutex::new(Budgets::new(REQUESTERS, Instant::now())),
            signings: Mutex::new(Signings::new(Instant::now())),
            permits: Semaphore::new(AT_ONCE),
            params: PatchParams::apply(&format!("yoke-operator/{CONTROLLER}")).force(),
        };
        (signer, Keeper { wards: receiver })
    }

    /// Has the requests of a cluster answered whose API answered a moment ago, unless they already are.
    pub(crate) fn keep(&self, identity: &Identity, api: &TenantApi) {
        let ward = Ward {
            identity: identity.clone(),
            api: api.clone(),
        };
        if self.wards.try_send(ward).is_err() {
            tracing::debug!(cluster = %identity.id, "requests for certificates are watched from the next look on");
        }
    }

    /// Waits until somebody has some of a budget left, and takes it.
    async fn spend(&self, budgets: &Mutex<Budgets<String>>, whose: &str) {
        while !take(budgets, whose) {
            tokio::time::sleep(REFILL).await;
        }
    }

    fn signings(&self) -> std::sync::MutexGuard<'_, Signings> {
        self.signings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper {
    /// Answers requests until the drain starts.
    pub async fn run(mut self, context: Arc<Context>, drain: Drain) {
        let mut watched = HashSet::<ClusterId>::new();
        // A task each: what one tenant has written is not read while another's waits.
        let mut watches = JoinSet::new();
        let mut sweeping = std::pin::pin!(issue::sweep_often(&context));
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(ward) = self.wards.recv() => {
                    if watched.insert(ward.identity.id.clone()) {
                        watches.spawn(watch(Arc::clone(&context), ward));
                    }
                }
                Some(ended) = watches.join_next() => match ended {
                    Ok(id) => {
                        watched.remove(&id);
                    }
                    // None is cancelled before this ends.
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                },
                () = &mut sweeping => {}
            }
        }
    }
}

/// Answers requests until too much fails, or the Cluster is gone.
async fn watch(context: Arc<Context>, ward: Ward) -> ClusterId {
    let (mut strikes, mut turns) = (0, Turns::default());
    while strikes < MAX_STRIKES && find_cluster(&context, &ward).is_some() {
        let began = Instant::now();
        let Err(error) = answer_all(&context, &ward, &mut turns).await;
        let is_calm = began.elapsed() >= CALM;
        // A watch has an end, after which those who wait go on to.
        if is_calm && matches!(error, SignError::Ended | SignError::Tenant(TenantApiError::Ended)) {
            turns.dealt_with.clear();
        } else {
            context.metrics.signing_failed();
            turns = Turns::default();
        }
        let error = crate::chain(&error);
        tracing::debug!(cluster = %ward.identity.id, error, "requests for certificates are watched again");
        strikes = if is_calm { 1 } else { strikes + 1 };
        tokio::time::sleep(PAUSE * 2_u32.pow(strikes - 1)).await;
    }
    ward.identity.id
}

async fn answer_all(context: &Context, ward: &Ward, turns: &mut Turns) -> Result<Infallible, SignError> {
    let mut events = std::pin::pin!(watch_requests(ward));
    let mut ticks = tokio::time::interval(REFILL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = events.try_next() => {
                if let Some(csr) = look(context, ward, event?.ok_or(SignError::Ended)?).await {
                    receive(context, ward, &csr, turns).await?;
                }
            }
            _ = ticks.tick() => {
                answer_next(context, ward, turns).await?;
                answer_skipped(context, ward, turns).await?;
                if turns.missed.is_some_and(|since| since.elapsed() >= RELIST) {
                    turns.missed = None;
                    events.set(watch_requests(ward));
                }
            }
        }
    }
}

/// Requests of each signer, as they are and as they change.
fn watch_requests(
    ward: &Ward,
) -> impl Stream<Item = Result<Change<Option<CertificateSigningRequest>>, TenantApiError>> + Send + use<> {
    let signers = [validate::CLIENT_SIGNER, validate::SERVING_SIGNER, validate::USER_SIGNER];
    // Nothing of one waits that is not needed: it may be as long as an answer of the tenant's API.
    let keep =
        |seen: Lenient<CertificateSigningRequest>| seen.0.ok().filter(validate::is_open).and_then(validate::trim);
    stream::select_all(signers.map(|signer| ward.api.watch_requests(signer, keep)))
}

/// The request that was seen, if there is anything to do for it.
async fn look(
    context: &Context,
    ward: &Ward,
    change: Change<Option<CertificateSigningRequest>>,
) -> Option<CertificateSigningRequest> {
    let signer = &context.signer;
    let csr = match change {
        Change::Is(csr) => csr,
        Change::Gone => None,
        Change::Listed => return None,
    };
    signer.spend(&signer.reads, &ward.identity.tenant).await;
    let csr = csr?;
    signer.spend(&signer.looks, ward.identity.id.as_str()).await;
    Some(csr)
}

/// Answers a request that was seen, or has it wait while its requester has had many answers.
async fn receive(
    context: &Context,
    ward: &Ward,
    csr: &CertificateSigningRequest,
    turns: &mut Turns,
) -> Result<(), SignError> {
    let waiting = Waiting {
        name: csr.name_any(),
        uid: csr.uid().unwrap_or_default(),
        since: Instant::now(),
        asked: Timestamp::now(),
    };
    let waits = turns.skipped.contains(&waiting.uid) || turns.queue.contains(&waiting.uid);
    if waits || turns.dealt_with.contains(&waiting.uid) {
        return Ok(());
    }
    let user = csr.spec.username.as_deref().unwrap_or_default();
    let user = user.chars().take(REQUESTER_MAX).collect::<String>();
    let requester = format!("{}/{user}", ward.identity.id);
    if take(&context.signer.requesters, &requester) {
        return answer_first(context, ward, csr, waiting, turns).await;
    }
    if !turns.skipped.put(requester, waiting) {
        turns.missed.get_or_insert_with(Instant::now);
    }
    Ok(())
}

/// Answers one of those whose requester has some of its budget again.
async fn answer_skipped(context: &Context, ward: &Ward, turns: &mut Turns) -> Result<(), SignError> {
    let next = turns
        .skipped
        .take(|requester| take(&context.signer.requesters, requester));
    let Some(waiting) = next else {
        return Ok(());
    };
    match find_open(ward, &waiting).await? {
        Some(csr) => answer_first(context, ward, &csr, waiting, turns).await,
        None => Ok(()),
    }
}

/// Answers a request of which nothing was said by this watch.
async fn answer_first(
    context: &Context,
    ward: &Ward,
    csr: &CertificateSigningRequest,
    waiting: Waiting,
    turns: &mut Turns,
) -> Result<(), SignError> {
    if turns.dealt_with.len() >= DEALT_WITH {
        return Err(SignError::Ended);
    }
    turns.dealt_with.insert(waiting.uid.clone());
    let signer = &context.signer;
    signer.spend(&signer.answers, &ward.identity.tenant).await;
    answer(context, ward, csr, waiting, &mut turns.queue).await
}

/// Answers the next of those that wait, if that may be.
async fn answer_next(context: &Context, ward: &Ward, turns: &mut Turns) -> Result<(), SignError> {
    let Turns { queue, dealt_with, .. } = turns;
    let tenant = &ward.identity.tenant;
    let may = |is_new| context.signer.signings().has(tenant, is_new, Instant::now());
    let Some(waiting) = queue
        .next_is_new()
        .filter(|is_new| may(*is_new))
        .and_then(|_| queue.take())
    else {
        return Ok(());
    };
    // It may have been put there before this watch.
    dealt_with.insert(waiting.uid.clone());
    match find_open(ward, &waiting).await? {
        Some(csr) => answer(context, ward, &csr, waiting, queue).await,
        None => Ok(()),
    }
}

/// A request as it is now, if there is still anything to do for it.
async fn find_open(ward: &Ward, wanted: &Waiting) -> Result<Option<CertificateSigningRequest>, SignError> {
    let found = ward.api.request(&wanted.name).await?;
    let found = found.and_then(|found| found.0.ok().filter(validate::is_open));
    let found = found.and_then(validate::trim);
    Ok(found.filter(|found| found.metadata.uid.as_ref() == Some(&wanted.uid)))
}

/// Signs one request, says why not, or puts it where it waits.
async fn answer(
    context: &Context,
    ward: &Ward,
    csr: &CertificateSigningRequest,
    waiting: Waiting,
    queue: &mut Queue,
) -> Result<(), SignError> {
    let (id, params) = (&ward.identity.id, &context.signer.params);
    let outcome = match sign(context, ward, csr, &waiting).await {
        // It would end so again, and keep those behind it waiting.
        Err(SignError::Issue(error @ (IssueError::Refused(_) | IssueError::Other))) => {
            tracing::info!(cluster = %id, error = %error, "a certificate is not issued");
            Outcome::Refused(Refusal::NotIssued)
        }
        other => other?,
    };
    let told = match &outcome {
        Outcome::Gone => return Ok(()),
        Outcome::Later { is_new } if queue.put(*is_new, waiting) => return Ok(()),
        Outcome::Later { .. } => return Err(SignError::Ended),
        Outcome::Signed(_, chain) => ward.api.answer(csr, chain, params).await,
        Outcome::Refused(refusal) => {
            let message = refusal.to_string();
            ward.api.refuse(csr, refusal.as_str(), &message, params).await
        }
    };
    match told {
        Err(error) if error.is_of_another() => return Ok(()),
        told => told?,
    }
    match outcome {
        Outcome::Signed(asked, _) => {
            context.metrics.signed(&asked);
            tracing::info!(cluster = %id, name = asked.name, purpose = ?asked.purpose, "a certificate is signed");
        }
        Outcome::Refused(refusal) => {
            context.metrics.refused_to_sign(refusal);
            tracing::info!(cluster = %id, reason = refusal.as_str(), "a certificate is refused");
        }
        Outcome::Later { .. } | Outcome::Gone => {}
    }
    Ok(())
}

/// The certificate with its chain, or why there is none.
async fn sign(
    context: &Context,
    ward: &Ward,
    csr: &CertificateSigningRequest,
    waiting: &Waiting,
) -> Result<Outcome, SignError> {
    let asked = match validate::validate(csr) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(Outcome::Refused(refusal)),
    };
    let node = find_node(ward, &asked).await?;
    if let Err(refusal) = validate::validate_node(&asked, node.as_ref()) {
        return Ok(Outcome::Refused(refusal));
    }
    let cluster = find_cluster(context, ward).ok_or(SignError::Gone)?;
    let authority = issue::find_authority(context, &ward.identity.id, asked.purpose).await?;
    let Some(term) = issue::plan_term(&asked, &cluster.spec.pki, &authority, Timestamp::now()) else {
        return Ok(Outcome::Refused(Refusal::AuthorityEnds));
    };
    let joins = match build_joiner(ward, &asked, waiting) {
        None => None,
        Some(joiner) => match uses::find(context, &joiner) {
            Some(Ok(known)) => Some((joiner, known)),
            Some(Err(refusal)) => return Ok(Outcome::Refused(refusal)),
            None if turn::is_early(waiting.since, Instant::now()) => return Ok(Outcome::Later { is_new: true }),
            None => return Ok(Outcome::Refused(Refusal::TokenUnknown)),
        },
    };
    // Nodes that are there end without certificates: users wait behind them, too.
    let is_new = joins.is_some() || asked.requester == Requester::Approved;
    let tenant = &ward.identity.tenant;
    let signings = || context.signer.signings();
    if !signings().has(tenant, is_new, Instant::now()) {
        return Ok(Outcome::Later { is_new });
    }
    // Before anything is spent: one that has gone costs nothing.
    if find_open(ward, waiting).await?.is_none() {
        return Ok(Outcome::Gone);
    }
    if !signings().take(tenant, is_new, Instant::now()) {
        return Ok(Outcome::Later { is_new });
    }
    if let Some((joiner, known)) = joins {
        if let Err(refusal) = uses::count(context, &joiner, &known).await? {
            return Ok(Outcome::Refused(refusal));
        }
        // Before there can be a Node, and while the JoinToken is known.
        let reap_after = known.spec.reap_after.as_deref();
        ward.api.prepare_lease(&asked.name, reap_after).await?;
    }
    if let Some(node) = node.filter(|_| asked.purpose == Use::Server) {
        note_taints(context, ward, &node).await?;
        if !asked.is_approved {
            ward.api.approve(csr, &context.signer.params).await?;
        }
    }
    let chain = issue::issue(context, &ward.identity, &asked, csr, &authority, term).await?;
    Ok(Outcome::Signed(Box::new(asked), chain))
}

/// Who joins by this, if somebody does.
fn build_joiner<'a>(ward: &'a Ward, asked: &'a Asked, waiting: &'a Waiting) -> Option<Joiner<'a>> {
    match &asked.requester {
        Requester::Node | Requester::Approved => None,
        Requester::Bootstrap(token_id) => Some(Joiner {
            identity: &ward.identity,
            token_id,
            node: &asked.name,
            request: &waiting.uid,
            asked: waiting.asked,
        }),
    }
}

/// The Node whose certificate is asked for, if it is there. One that cannot be read has no addresses that anybody knows.
async fn find_node(ward: &Ward, asked: &Asked) -> Result<Option<Node>, SignError> {
    let found = match asked.requester {
        Requester::Approved => None,
        Requester::Node | Requester::Bootstrap(_) => ward.api.node(&asked.name).await?,
    };
    Ok(found.map(|node| node.0.unwrap_or_default()))
}

/// Has a Node say which taints its JoinToken gave it, while that is known: without it, whoever runs the cluster has to delete the
/// Node in the end.
async fn note_taints(context: &Context, ward: &Ward, node: &Node) -> Result<(), TenantApiError> {
    if node.annotations().contains_key(labels::JOINED_TAINTS) {
        return Ok(());
    }
    match uses::find_taints(context, &ward.identity, &node.name_any()) {
        Some(taints) => ward.api.note_taints(node, &taints).await,
        None => Ok(()),
    }
}

/// Takes some of a budget, if there is any left.
fn take(budgets: &Mutex<Budgets<String>>, whose: &str) -> bool {
    // A budget that was left half taken by a panic is none the worse.
    let mut budgets = budgets.lock().unwrap_or_else(PoisonError::into_inner);
    budgets.take(whose.to_owned(), Instant::now())
}

/// The Cluster of a ward, if it is still the one.
fn find_cluster(context: &Context, ward: &Ward) -> Option<Arc<Cluster>> {
    let Identity {
        tenant, cluster, id, ..
    } = &ward.identity;
    let found = context.caches.clusters.get(&ObjectRef::new(cluster).within(tenant))?;
    let lives = found.metadata.deletion_timestamp.is_none();
    (lives && found.id().as_ref() == Some(id)).then_some(found)
}
