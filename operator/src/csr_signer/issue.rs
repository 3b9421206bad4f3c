//! Issues one certificate through cert-manager and a cluster's CA, and compares it with the
//! request.
//!
//! A CertificateRequest exists only while that takes. A periodic sweep deletes those that remain if
//! an operator stops meanwhile.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt as _};
use sha2::{Digest as _, Sha256};
use yoke_api::ClusterId;
use yoke_api::cluster::PkiSpec;
use yoke_api::labels::{self, component};
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::ParsedCertificate;
use yoke_pki::cert_manager::{CertificateRequest, CertificateRequestSpec, IssuerRef, Usage};
use yoke_pki::inspect::{Purpose, verify_chain};
use yoke_pki::plan::{AuthorityRole, Generation, Lifetimes, SHORTEST_LIFETIME};
use yoke_pki::request::Use;

use crate::csr_signer::context::Context;
use crate::csr_signer::validate::{CertificateRequestFacts, Requester};
use crate::error::ReconcileError;
use crate::host_api::certificate_authority;
use crate::model::identity::Identity;

/// Timeout of cert-manager.
const LIMIT: Duration = Duration::from_secs(20);
/// Poll interval of a CertificateRequest.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Age after which a CertificateRequest is left over.
const LEFTOVER_AFTER: SignedDuration = SignedDuration::from_mins(10);
/// Interval of sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(600);
/// Shortest lifetime of a user's certificate: the minimum that Kubernetes allows in a request. It
/// may be shorter than what cert-manager renews.
const SHORTEST_OF_USER: Duration = Duration::from_mins(10);
/// Tolerated difference between clocks.
const SLACK: SignedDuration = SignedDuration::from_mins(5);

/// Validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// Lifetime.
    pub(crate) duration: Duration,
    /// Upper bound of the end.
    pub(crate) latest: Timestamp,
}

/// No certificate was issued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssueError {
    /// The cluster's CA does not exist yet.
    #[error("the cluster's CA does not exist yet")]
    NoAuthority,
    /// A request to the host API failed.
    #[error(transparent)]
    Host(#[from] ReconcileError),
    /// cert-manager refused the request.
    #[error("cert-manager refused a request: {0}")]
    Refused(String),
    /// cert-manager did not answer in time.
    #[error("cert-manager did not answer within {LIMIT:?}")]
    Limit,
    /// The issued certificate differs from the request.
    #[error("cert-manager issued a certificate that differs from the request")]
    Other,
}

fn role_of(purpose: Use) -> AuthorityRole {
    match purpose {
        Use::Client => AuthorityRole::Cluster,
        Use::Server => AuthorityRole::KubeletServing,
    }
}

/// Returns the CA that signs for this purpose.
pub(crate) async fn find_ca(context: &Context, id: &ClusterId, purpose: Use) -> Result<ParsedCertificate, IssueError> {
    let found = certificate_authority::find_authority(&context.host.client, id, role_of(purpose)).await?;
    found.ok_or(IssueError::NoAuthority)
}

/// Plans the validity of a certificate: as long as requested, but not longer than the Cluster's
/// certificates, nor than its CA. `None` if that is too short.
pub(crate) fn plan_term(
    facts: &CertificateRequestFacts,
    pki: &PkiSpec,
    ca: &ParsedCertificate,
    now: Timestamp,
) -> Option<Term> {
    let lifetimes = Lifetimes::from_spec(pki)
        .ok()
        .filter(|lifetimes| lifetimes.check().is_ok());
    // A Cluster that is refused because of its lifetimes still has nodes.
    let lifetimes = lifetimes.or_else(|| Lifetimes::from_spec(&PkiSpec::default()).ok())?;
    let (longest, shortest) = match facts.requester {
        Requester::Approved => (lifetimes.leaf.min(lifetimes.overlap), SHORTEST_OF_USER),
        Requester::Node | Requester::Bootstrap(_) => (lifetimes.of_kubelet(facts.purpose), SHORTEST_LIFETIME),
    };
    let wanted = facts.seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let wanted = wanted.map_or(longest, Duration::from_secs).max(shortest);
    let left = ca.not_after.duration_since(now) - SLACK;
    let left = Duration::try_from(left).unwrap_or_default();
    let duration = Duration::from_secs(wanted.min(longest).min(left).as_secs());
    let end = SignedDuration::try_from(duration).ok()? + SLACK;
    (duration >= shortest).then_some(Term {
        duration,
        latest: now.checked_add(end).ok()?,
    })
}

/// Issues the certificate, with its chain, PEM.
pub(crate) async fn issue(
    context: &Context,
    identity: &Identity,
    facts: &CertificateRequestFacts,
    csr: &CertificateSigningRequest,
    ca: &ParsedCertificate,
    term: Term,
) -> Result<String, IssueError> {
    // Only the host API is used while the permit is held, never a tenant's. The semaphore is never
    // closed.
    let _permit = context.permits.acquire().await;
    let api = Api::<CertificateRequest>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let wanted = build_request(identity, facts, csr, term);
    let name = wanted.name_any();
    context
        .applier
        .create(&api, &wanted)
        .await
        .map_err(ReconcileError::from)?;
    let issued = tokio::time::timeout(LIMIT, wait(&api, &name)).await;
    if let Err(error) = api.delete(&name, &DeleteParams::default()).await {
        tracing::debug!(cluster = %identity.id, error = %crate::chain(&error), "deleting a CertificateRequest failed; the next sweep deletes it");
    }
    let issued = issued.map_err(|_| IssueError::Limit)??;
    let chain = ParsedCertificate::from_pem(&issued).map_err(|_| IssueError::Other)?;
    let first = chain.first().ok_or(IssueError::Other)?;
    let name = facts.request.dns_names.first().cloned();
    let name = name.or_else(|| facts.request.ip_addresses.first().map(ToString::to_string));
    let purpose = match facts.purpose {
        Use::Client => Purpose::Client,
        Use::Server => Purpose::Server(name.as_deref().unwrap_or_default()),
    };
    // A certificate from a clock that is ahead becomes valid in a moment.
    let now = Timestamp::now().max(first.not_before);
    let is_ours = verify_chain(&chain, std::slice::from_ref(ca), purpose, now).is_ok();
    if !is_ours || !facts.request.is_answered_by(first, facts.purpose, term.latest) {
        return Err(IssueError::Other);
    }
    Ok(chain.iter().map(ParsedCertificate::to_pem).collect())
}

async fn wait(api: &Api<CertificateRequest>, name: &str) -> Result<String, IssueError> {
    loop {
        let found = api
            .get(name)
            .await
            .map_err(ReconcileError::host("a CertificateRequest"))?;
        if let Some(issued) = found.issued() {
            return Ok(issued.to_owned());
        }
        if let Some(why) = found.failure() {
            return Err(IssueError::Refused(why.chars().take(200).collect()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn build_request(
    identity: &Identity,
    facts: &CertificateRequestFacts,
    csr: &CertificateSigningRequest,
    term: Term,
) -> CertificateRequest {
    let usage = match facts.purpose {
        Use::Client => Usage::ClientAuth,
        Use::Server => Usage::ServerAuth,
    };
    let encipherment = facts.enciphers.then_some(Usage::KeyEncipherment);
    let usages = [Usage::DigitalSignature, usage].into_iter().chain(encipherment);
    // The name follows from the request, so a restarted operator finds the CertificateRequest of
    // its predecessor.
    let digest = Sha256::digest(csr.metadata.uid.as_deref().unwrap_or_default().as_bytes());
    let component = match facts.requester {
        Requester::Approved => component::USER,
        Requester::Node | Requester::Bootstrap(_) => component::KUBELET,
    };
    let digest = data_encoding::HEXLOWER.encode(&digest[..10]);
    let name = format!("{}-{component}-{digest}", identity.id);
    let spec = CertificateRequestSpec {
        request: ByteString(csr.spec.request.0.clone()),
        duration: Some(format!("{}s", term.duration.as_secs())),
        is_ca: false,
        usages: usages.collect(),
        issuer_ref: IssuerRef {
            name: role_of(facts.purpose).object_name(&identity.id, Generation::FIRST),
            ..IssuerRef::default()
        },
    };
    let mut request = CertificateRequest::new(&name, spec);
    request.metadata = identity.pki_meta(&name, component);
    request
}

/// Deletes left-over CertificateRequests periodically.
pub(crate) async fn sweep_often(context: &Context) {
    loop {
        sweep(context).await;
        tokio::time::sleep(SWEEP_EVERY).await;
    }
}

async fn sweep(context: &Context) {
    let api = Api::<CertificateRequest>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let ours = format!("{} in ({}, {})", labels::COMPONENT, component::KUBELET, component::USER);
    let swept = async {
        let found = api.list(&ListParams::default().labels(&ours)).await?;
        for request in found {
            let created = request.creation_timestamp();
            if created.is_some_and(|created| Timestamp::now().duration_since(created.0) > LEFTOVER_AFTER) {
                api.delete(&request.name_any(), &DeleteParams::default()).await?;
            }
        }
        Ok::<_, kube::Error>(())
    };
    match tokio::time::timeout(LIMIT, swept).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = %crate::chain(&error), "sweeping CertificateRequests failed"),
        Err(_) => tracing::warn!("sweeping CertificateRequests timed out"),
    }
}
