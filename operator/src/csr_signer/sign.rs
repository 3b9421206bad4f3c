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
    ward: &WatchedCluster,
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
        Some(joiner) => match join_counter::find(context, &joiner) {
            Some(Ok(known)) => Some((joiner, known)),
            Some(Err(refusal)) => return Ok(Outcome::Refused(refusal)),
            None if queue::is_early(waiting.since, Instant::now()) => return Ok(Outcome::Later { is_new: true }),
            None => return Ok(Outcome::Refused(Refusal::TokenUnknown)),
        },
    };
    // Existing nodes stop working without certificates, so users wait behind them like new nodes.
    let is_new = joins.is_some() || asked.requester == Requester::Approved;
    let tenant = &ward.identity.tenant;
    let signings = || context.signings();
    if !signings().has(tenant, is_new, Instant::now()) {
        return Ok(Outcome::Later { is_new });
    }
    // Checked before anything is spent: a deleted request costs nothing.
    if find_open(ward, waiting).await?.is_none() {
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
        ward.api.prepare_lease(&asked.name, reap_after).await?;
    }
    if let Some(node) = node.filter(|_| asked.purpose == Use::Server) {
        note_taints(context, ward, &node).await?;
        if !asked.is_approved {
            ward.api.approve(csr, &context.params).await?;
        }
    }
    let chain = issue::issue(context, &ward.identity, &asked, csr, &authority, term).await?;
    Ok(Outcome::Signed(Box::new(asked), chain))
}

/// Returns the joining node, if the request comes with a bootstrap token.
fn build_joiner<'a>(
    ward: &'a WatchedCluster,
    asked: &'a CertificateRequestFacts,
    waiting: &'a Waiting,
) -> Option<Joiner<'a>> {
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

/// Returns the Node of the requested certificate, if it exists. A Node that cannot be decoded
/// counts as one without addresses.
async fn find_node(ward: &WatchedCluster, asked: &CertificateRequestFacts) -> Result<Option<Node>, SignError> {
    let found = match asked.requester {
        Requester::Approved => None,
        Requester::Node | Requester::Bootstrap(_) => ward.api.node(&asked.name).await?,
    };
    Ok(found.map(|node| node.0.unwrap_or_default()))
}

/// Records on a Node which taints its JoinToken set, while that is known. Without this annotation,
/// an administrator of the cluster would have to delete the Node by hand later.
async fn note_taints(context: &Context, ward: &WatchedCluster, node: &Node) -> Result<(), TenantApiError> {
    if node.annotations().contains_key(labels::JOINED_TAINTS) {
        return Ok(());
    }
    match join_counter::find_taints(context, &ward.identity, &node.name_any()) {
        Some(taints) => ward.api.note_taints(node, &taints).await,
        None => Ok(()),
    }
}
