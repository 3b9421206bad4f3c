//! Watches the certificate requests of one cluster, and answers them one after the other.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, TryStreamExt as _, stream};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use tokio::time::MissedTickBehavior;
use yoke_api::{ClusterId, Lenient};

use crate::csr_signer::answer::answer;
use crate::csr_signer::context::{Context, REFILL, take};
use crate::csr_signer::error::SignError;
use crate::csr_signer::queue::{Queue, Skipped, Waiting};
use crate::csr_signer::validate;
use crate::csr_signer::watched::{WatchedCluster, find_cluster, find_open};
use crate::tenant_client::TenantApiError;
use crate::tenant_client::watch::Change;

/// Maximum length of a requester's name in a budget's key, in characters.
const REQUESTER_MAX: usize = 300;
/// Delay until all requests are listed again, if there was no room for a request that waits for its
/// requester's budget.
const RELIST: Duration = Duration::from_secs(60);
/// A watch that ends sooner than this counts as a failure.
const CALM: Duration = Duration::from_secs(300);
/// Delay of the next watch after one failure. It doubles after each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// Failures in a row after which there is no next watch.
const MAX_STRIKES: u32 = 5;
/// Maximum number of handled requests that one watch remembers.
const DEALT_WITH: usize = 1024;

/// State of one watch.
#[derive(Default)]
struct Turns {
    /// UIDs of handled requests. If a tenant reverts an answer, this watch does not repeat it.
    dealt_with: HashSet<String>,
    queue: Queue,
    skipped: Skipped,
    /// Since when a skipped request had no room.
    missed: Option<Instant>,
}

/// Answers requests until too many watches fail, or the Cluster is deleted.
pub(super) async fn watch(context: Arc<Context>, ward: WatchedCluster) -> ClusterId {
    let (mut strikes, mut turns) = (0, Turns::default());
    while strikes < MAX_STRIKES && find_cluster(&context, &ward).is_some() {
        let began = Instant::now();
        let Err(error) = answer_all(&context, &ward, &mut turns).await;
        let is_calm = began.elapsed() >= CALM;
        // A watch has a normal end. Waiting requests stay in the queue for the next one.
        if is_calm && matches!(error, SignError::Ended | SignError::Tenant(TenantApiError::Ended)) {
            turns.dealt_with.clear();
        } else {
            context.metrics.signing_failed();
            turns = Turns::default();
        }
        let error = crate::chain(&error);
        tracing::debug!(cluster = %ward.identity.id, error, "watching certificate requests again");
        strikes = if is_calm { 1 } else { strikes + 1 };
        tokio::time::sleep(PAUSE * 2_u32.pow(strikes - 1)).await;
    }
    ward.identity.id
}

async fn answer_all(context: &Context, ward: &WatchedCluster, turns: &mut Turns) -> Result<Infallible, SignError> {
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

/// Streams the requests of each signer: first a list, then the changes.
fn watch_requests(
    ward: &WatchedCluster,
) -> impl Stream<Item = Result<Change<Option<CertificateSigningRequest>>, TenantApiError>> + Send + use<> {
    let signers = [validate::CLIENT_SIGNER, validate::SERVING_SIGNER, validate::USER_SIGNER];
    // Trims requests early: until then each may be as large as an answer of the tenant's API.
    let keep =
        |seen: Lenient<CertificateSigningRequest>| seen.0.ok().filter(validate::is_open).and_then(validate::trim);
    stream::select_all(signers.map(|signer| ward.api.watch_requests(signer, keep)))
}

/// Returns the request of a change, if it may need an answer. Waits for the budgets.
async fn look(
    context: &Context,
    ward: &WatchedCluster,
    change: Change<Option<CertificateSigningRequest>>,
) -> Option<CertificateSigningRequest> {
    let signer = context;
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

/// Answers a request, or queues it while its requester has no budget.
async fn receive(
    context: &Context,
    ward: &WatchedCluster,
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
    if take(&context.requesters, &requester) {
        return answer_first(context, ward, csr, waiting, turns).await;
    }
    if !turns.skipped.put(requester, waiting) {
        turns.missed.get_or_insert_with(Instant::now);
    }
    Ok(())
}

/// Answers one skipped request whose requester has budget again.
async fn answer_skipped(context: &Context, ward: &WatchedCluster, turns: &mut Turns) -> Result<(), SignError> {
    let next = turns.skipped.take(|requester| take(&context.requesters, requester));
    let Some(waiting) = next else {
        return Ok(());
    };
    match find_open(ward, &waiting).await? {
        Some(csr) => answer_first(context, ward, &csr, waiting, turns).await,
        None => Ok(()),
    }
}

/// Answers a request that this watch has not handled yet.
async fn answer_first(
    context: &Context,
    ward: &WatchedCluster,
    csr: &CertificateSigningRequest,
    waiting: Waiting,
    turns: &mut Turns,
) -> Result<(), SignError> {
    if turns.dealt_with.len() >= DEALT_WITH {
        return Err(SignError::Ended);
    }
    turns.dealt_with.insert(waiting.uid.clone());
    let signer = context;
    signer.spend(&signer.answers, &ward.identity.tenant).await;
    answer(context, ward, csr, waiting, &mut turns.queue).await
}

/// Answers the next queued request, if the budget allows.
async fn answer_next(context: &Context, ward: &WatchedCluster, turns: &mut Turns) -> Result<(), SignError> {
    let Turns { queue, dealt_with, .. } = turns;
    let tenant = &ward.identity.tenant;
    let may = |is_new| context.signings().has(tenant, is_new, Instant::now());
    let Some(waiting) = queue
        .next_is_new()
        .filter(|is_new| may(*is_new))
        .and_then(|_| queue.take())
    else {
        return Ok(());
    };
    // The request may have been queued before this watch.
    dealt_with.insert(waiting.uid.clone());
    match find_open(ward, &waiting).await? {
        Some(csr) => answer(context, ward, &csr, waiting, queue).await,
        None => Ok(()),
    }
}
