//! Signs the certificates of kubelets in each cluster that is awake, by its CAs in cert-manager.
//!
//! ```text
//!  look at the API, all is well ─keep─▶ Keeper: one watch a cluster of CertificateSigningRequests
//!     budget of the Tenant ─▶ validate ─▶ Node ─▶ JoinToken: one use is counted ─▶ cert-manager (issue) ─▶ compare ─▶ status
//!                              └─ refused: condition Failed, with a reason
//! ```
//!
//! Requests of one cluster are taken one after the other, and only when its Tenant has some of its budget left; until then they
//! wait in the API server, which ends a watch that is not read for long, so that the next one lists what there is. Nothing is
//! counted before there is a budget for it. What failed is tried again by the next watch, and the more of them end soon the longer
//! that takes; after some the next look at the API that finds all well begins anew. No permit is held while a tenant's API is
//! asked.

mod issue;
mod uses;
pub mod validate;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::PatchParams;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use tokio::sync::{Semaphore, mpsc};
use yoke_api::{Cluster, ClusterId};
use yoke_pki::request::Use;
use yoke_runtime::Drain;
use yoke_runtime::budget::{Budgets, Rate};

use crate::cluster::identity::Identity;
use crate::context::Context;
use crate::error::ReconcileError;
use crate::tenant_api::{TenantApi, TenantApiError};
use issue::IssueError;
use validate::{Asked, Refusal, Requester};

/// Name of the controller, in metrics and field managers.
pub const CONTROLLER: &str = "signer";

/// Clusters that wait to be watched. One that finds no place is told of again by its next look.
const CAPACITY: usize = 256;
/// Certificates that are asked for at once, of all clusters.
const AT_ONCE: usize = 16;
/// Requests of one Tenant that are looked at, be there anything to do or not.
const LOOKS: Rate = Rate {
    per_second: 20,
    burst: 300,
};
/// Requests of one Tenant that are answered, be it by a refusal.
const ANSWERS: Rate = Rate {
    per_second: 2,
    burst: 40,
};
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
    looks: Mutex<Budgets<String>>,
    answers: Mutex<Budgets<String>>,
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

/// A request could not be answered now.
#[derive(Debug, thiserror::Error)]
enum SignError {
    /// Requests are not seen any more.
    #[error("watching requests for certificates")]
    Watch(#[source] Box<watcher::Error>),
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
            looks: Mutex::new(Budgets::new(LOOKS, Instant::now())),
            answers: Mutex::new(Budgets::new(ANSWERS, Instant::now())),
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

    /// Waits until a Tenant has some of its budget left, and takes it.
    async fn spend(&self, budgets: &Mutex<Budgets<String>>, tenant: &str) {
        let take = || {
            // A budget that was left half taken by a panic is none the worse.
            let mut budgets = budgets.lock().unwrap_or_else(PoisonError::into_inner);
            budgets.take(tenant.to_owned(), Instant::now())
        };
        while !take() {
            tokio::time::sleep(REFILL).await;
        }
    }
}

impl Keeper {
    /// Answers requests until the drain starts.
    pub async fn run(mut self, context: Arc<Context>, drain: Drain) {
        let mut watched = HashSet::<ClusterId>::new();
        let mut watches = FuturesUnordered::new();
        let mut sweeping = std::pin::pin!(issue::sweep_often(&context));
        loop {
            tokio::select! {
                () = drain.started() => return,
                Some(ward) = self.wards.recv() => {
                    if watched.insert(ward.identity.id.clone()) {
                        watches.push(Box::pin(watch(&context, ward)));
                    }
                }
                Some(id) = watches.next() => {
                    watched.remove(&id);
                }
                () = &mut sweeping => {}
            }
        }
    }
}

/// Answers requests until too much fails, or the Cluster is gone.
async fn watch(context: &Context, ward: Ward) -> ClusterId {
    let mut strikes = 0;
    while strikes < MAX_STRIKES && find_cluster(context, &ward).is_some() {
        let began = Instant::now();
        if let Err(error) = answer_all(context, &ward).await {
            context.metrics.signing_failed();
            let error = crate::chain(&error);
            tracing::debug!(cluster = %ward.identity.id, error, "requests for certificates are watched again");
        }
        strikes = if began.elapsed() >= CALM { 1 } else { strikes + 1 };
        tokio::time::sleep(PAUSE * 2_u32.pow(strikes - 1)).await;
    }
    ward.identity.id
}

async fn answer_all(context: &Context, ward: &Ward) -> Result<(), SignError> {
    let (signer, tenant) = (&context.signer, ward.identity.tenant.as_str());
    let mut events = std::pin::pin!(ward.api.watch_requests());
    // What the tenant undoes is not done again before the next watch.
    let mut dealt_with = HashSet::new();
    while let Some(event) = events
        .try_next()
        .await
        .map_err(|error| SignError::Watch(Box::new(error)))?
    {
        let (Event::Apply(seen) | Event::InitApply(seen)) = event else {
            continue;
        };
        signer.spend(&signer.looks, tenant).await;
        let Ok(csr) = seen.0 else {
            continue;
        };
        let uid = csr.metadata.uid.clone().unwrap_or_default();
        if !validate::is_open(&csr) || dealt_with.contains(&uid) {
            continue;
        }
        signer.spend(&signer.answers, tenant).await;
        answer(context, ward, &csr).await?;
        if dealt_with.len() >= DEALT_WITH {
            return Err(SignError::Ended);
        }
        dealt_with.insert(uid);
    }
    Err(SignError::Ended)
}

/// Signs one request, or says why not.
async fn answer(context: &Context, ward: &Ward, csr: &CertificateSigningRequest) -> Result<(), SignError> {
    let (id, params) = (&ward.identity.id, &context.signer.params);
    let signed = match sign(context, ward, csr).await {
        // It would end so again, and keep those behind it waiting.
        Err(SignError::Issue(error @ (IssueError::Refused(_) | IssueError::Other))) => {
            tracing::info!(cluster = %id, error = %error, "certificate of a kubelet is not issued");
            Err(Refusal::NotIssued)
        }
        other => other?,
    };
    let told = match &signed {
        Ok((_, chain)) => ward.api.answer(csr, chain, params).await,
        Err(refusal) => {
            let message = refusal.to_string();
            ward.api.refuse(csr, refusal.as_str(), &message, params).await
        }
    };
    match told {
        Err(error) if error.is_of_another() => return Ok(()),
        told => told?,
    }
    match signed {
        Ok((asked, _)) => {
            context.metrics.signed(asked.purpose);
            tracing::info!(cluster = %id, node = asked.node, purpose = ?asked.purpose, "certificate of a kubelet is signed");
        }
        Err(refusal) => {
            context.metrics.refused_to_sign(refusal);
            tracing::info!(cluster = %id, reason = refusal.as_str(), "certificate of a kubelet is refused");
        }
    }
    Ok(())
}

/// The certificate with its chain, or why there is none.
async fn sign(
    context: &Context,
    ward: &Ward,
    csr: &CertificateSigningRequest,
) -> Result<Result<(Asked, String), Refusal>, SignError> {
    let asked = match validate::validate(csr) {
        Ok(asked) => asked,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let node = ward.api.node(&asked.node).await?;
    // One that cannot be read is there, and has no addresses that anybody knows.
    let node = node.map(|node| node.0.unwrap_or_default());
    if let Err(refusal) = validate::validate_node(&asked, node.as_ref()) {
        return Ok(Err(refusal));
    }
    let cluster = find_cluster(context, ward).ok_or(SignError::Gone)?;
    let authority = issue::find_authority(context, &ward.identity.id, asked.purpose)?;
    let Some(term) = issue::plan_term(&asked, &cluster.spec.pki, &authority, Timestamp::now()) else {
        return Ok(Err(Refusal::AuthorityEnds));
    };
    let uid = csr.metadata.uid.as_deref().unwrap_or_default();
    if let Requester::Bootstrap(token) = &asked.requester
        && let Err(refusal) = uses::count(context, &ward.identity, token, &asked.node, uid).await?
    {
        return Ok(Err(refusal));
    }
    if asked.purpose == Use::Server && !asked.is_approved {
        ward.api.approve(csr, &context.signer.params).await?;
    }
    let chain = issue::issue(context, &ward.identity, &asked, csr, &authority, term).await?;
    Ok(Ok((asked, chain)))
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
