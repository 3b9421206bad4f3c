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
const BACKOFF: Duration = Duration::from_secs(1);
/// Failures in a row after which there is no next watch.
const MAX_STRIKES: u32 = 5;
/// Maximum number of handled requests that one watch remembers.
const HANDLED_MAX: usize = 1024;

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

/// Answers requests until too many watches fail, or the Cluster is deleted.
pub(super) async fn watch(context: Arc<Context>, target: WatchedCluster) -> ClusterId {
    let (mut strikes, mut state) = (0, WatchState::default());
    while strikes < MAX_STRIKES && find_cluster(&context, &target).is_some() {
        let began = Instant::now();
        let Err(error) = answer_all(&context, &target, &mut state).await;
        let is_calm = began.elapsed() >= CALM;
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
    let keep =
        |seen: Lenient<CertificateSigningRequest>| seen.0.ok().filter(validate::is_open).and_then(validate::trim);
    stream::select_all(signers.map(|signer| target.api.watch_requests(signer, keep)))
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
