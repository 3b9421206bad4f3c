//! Answers one certificate request: signed, refused or queued.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use crate::csr_signer::context::Context;
use crate::csr_signer::error::SignError;
use crate::csr_signer::issue::IssueError;
use crate::csr_signer::queue::{Queue, Waiting};
use crate::csr_signer::refusal::Refusal;
use crate::csr_signer::sign::{Outcome, sign};
use crate::csr_signer::watched::WatchedCluster;

/// Signs, refuses or queues one request.
pub(super) async fn answer(
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
        Outcome::Gone => return Ok(()),
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
        Outcome::Later { .. } | Outcome::Gone => {}
    }
    Ok(())
}
