//! The third step of a reconcile: decides whether the spec of a Cluster can be applied. Pure.

use std::sync::Arc;

use yoke_api::Reason;
use yoke_pki::ParsedCertificate;

use crate::cluster::observe::View;
use crate::cluster::validate::{self, Accepted};
use crate::error::ReconcileError;
use crate::model::refusal::Refusal;

/// Whether the spec of a Cluster can be applied.
#[derive(Debug)]
pub(crate) enum Verdict<'c> {
    /// The spec can be applied.
    Accepted(Box<Accepted<'c>>),
    /// The spec cannot be applied; its owner must change something.
    Refused(Refusal),
    /// Not known, because something that it depends on cannot be read.
    Unknown(Arc<ReconcileError>),
}

/// Validates the spec of a Cluster.
pub(crate) fn validate<'c>(view: &View<'c>) -> Verdict<'c> {
    let ca = match &view.ca {
        Ok(ca) => ca.as_ref(),
        Err(error) => return Verdict::Unknown(Arc::clone(error)),
    };
    let accepted = validate::validate(&view.cluster, &view.identity, &view.validation_context());
    match accepted.and_then(|accepted| check_host(view, ca).map(|()| accepted)) {
        Ok(accepted) => Verdict::Accepted(Box::new(accepted)),
        Err(refusal) => Verdict::Refused(refusal),
    }
}

/// Checks the spec against objects on the host: those with its identity, and its CA.
fn check_host(view: &View<'_>, ca: Option<&ParsedCertificate>) -> Result<(), Refusal> {
    if view.observed.is_foreign {
        return Err(Refusal {
            reason: Reason::IdentityConflict,
            message: format!(
                "Identity {} is in use on this host by objects of another owner. Delete this Cluster and create it \
         again without spec.id, or remove those objects.",
                view.identity.id
            ),
        });
    }
    let mut names = view.cluster.spec.endpoint.extra_sans.iter();
    let outside = names.find(|name| ca.is_some_and(|ca| !ca.permits_dns(name)));
    match outside {
        Some(name) => Err(Refusal {
            reason: Reason::HostnameNotAllowed,
            message: format!(
                "Host name {name} is outside the name constraints of the cluster's CA, which was issued before the \
         Tenant's domains changed. Remove it from spec.endpoint.extraSANs, or create a new Cluster."
            ),
        }),
        None => Ok(()),
    }
}
