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
    ward: &WatchedCluster,
    csr: &CertificateSigningRequest,
    waiting: Waiting,
    queue: &mut Queue,
) -> Result<(), SignError> {
    let (id, params) = (&ward.identity.id, &context.params);
    let outcome = match sign(context, ward, csr, &waiting).await {
        // A retry would fail again, and delay the requests behind this one.
        Err(SignError::Issue(error @ (IssueError::Refused(_) | IssueError::Other))) => {
            tracing::info!(cluster = %id, error = %error, "certificate was not issued");
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
            context.metrics.signed(asked.purpose_label());
            tracing::info!(cluster = %id, name = asked.name, purpose = ?asked.purpose, "certificate was signed");
        }
        Outcome::Refused(refusal) => {
            context.metrics.refused_to_sign(refusal);
            tracing::info!(cluster = %id, reason = refusal.as_str(), "certificate was refused");
        }
        Outcome::Later { .. } | Outcome::Gone => {}
    }
    Ok(())
}
