//! Signs one certificate request, or decides why it is not signed.

use std::time::Instant;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use yoke_api::labels;
use yoke_pki::request::Use;

use crate::csr_signer::context::Context;
use crate::csr_signer::error::SignError;
use crate::csr_signer::issue;
use crate::csr_signer::join_counter::{self, Joiner};
use crate::csr_signer::queue::{self, Waiting};
use crate::csr_signer::refusal::Refusal;
use crate::csr_signer::validate::{self, CertificateRequestFacts, Requester};
use crate::csr_signer::watched::{WatchedCluster, find_cluster, find_open};
use crate::tenant_client::TenantApiError;

/// Result of processing a request.
pub(super) enum Outcome {
    /// The signed certificate with its chain.
    Signed(Box<CertificateRequestFacts>, String),
    /// The reason of the refusal.
    Refused(Refusal),
    /// The request waits for the signing budget: that of new nodes, or that of existing ones.
    Later { is_new: bool },
    /// The request was deleted or answered meanwhile.
    Gone,
}

/// Issues a certificate with its chain, or returns why there is none.
pub(super) async fn sign(
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
    let cluster = find_cluster(context, target).ok_or(SignError::Gone)?;
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
        return Ok(Outcome::Gone);
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
