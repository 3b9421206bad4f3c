//! How a reconciliation fails, of a Cluster or of a Tenant.

use yoke_api::Reason;

use crate::apply::ApplyError;
use crate::cluster::build::secrets::MaterialError;
use crate::context::RootError;
use crate::nats::NatsError;
use crate::nats::account::AccountError;
use crate::nats::claims::ClaimsError;
use crate::tenant_api::TenantApiError;

/// A reconciliation failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The host API refused a write.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The host API did not answer.
    #[error("asking the host API about {what}")]
    Host {
        /// What about.
        what: &'static str,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// What was issued cannot be used.
    #[error("using what was issued")]
    Materials(#[from] MaterialError),
    /// A kubeconfig cannot be written.
    #[error("composing a kubeconfig")]
    Kubeconfig(#[from] yoke_pki::kubeconfig::KubeconfigError),
    /// The service-account key cannot be made.
    #[error("making a service-account key")]
    ServiceAccount(#[from] yoke_pki::service_account::KeyError),
    /// The root certificate cannot be had.
    #[error(transparent)]
    Root(#[from] RootError),
    /// What names the store's account cannot be used.
    #[error("using the store's NATS account")]
    Account(#[from] AccountError),
    /// A NATS token cannot be made.
    #[error("making a NATS token")]
    Claims(#[from] ClaimsError),
    /// NATS failed.
    #[error("asking NATS")]
    Nats(#[from] NatsError),
    /// A Secret that keeps what is drawn once is not usable.
    #[error("Secret {name} in the namespace of certificate authorities has no usable {key}")]
    Kept {
        /// The Secret.
        name: String,
        /// The key.
        key: &'static str,
    },
    /// What a running cluster cannot do without is lost.
    #[error(
        "Secret {name} in the namespace of certificate authorities is lost and there is no copy of it: the cluster's \
         service-account tokens or its data hang on it; restore the Secret, or delete the Cluster"
    )]
    Lost {
        /// The Secret.
        name: String,
    },
    /// The hosted namespace belongs to somebody else.
    #[error("namespace {0} exists and belongs to somebody else")]
    Foreign(String),
    /// Others write at the same time, again and again.
    #[error("writing {0}, which others write at the same time")]
    Contended(&'static str),
    /// Two things failed, neither of which waits for the other.
    #[error("{first}, and besides: {}", crate::chain(second))]
    Both {
        /// What failed first.
        #[source]
        first: Box<ReconcileError>,
        /// What failed then.
        second: Box<ReconcileError>,
    },
    /// A tenant's own API did not do what it should.
    #[error(transparent)]
    Tenant(#[from] TenantApiError),
    /// The hosted namespace is being deleted.
    #[error("namespace {0} is being deleted and must be gone first")]
    Ending(String),
}

impl ReconcileError {
    pub(crate) fn host(what: &'static str) -> impl Fn(kube::Error) -> Self {
        move |source| Self::Host {
            what,
            source: Box::new(source),
        }
    }

    /// The reason that metrics and conditions give.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Foreign(_) => Reason::IdentityConflict,
            Self::Nats(_) => Reason::StoreUnavailable,
            Self::Lost { .. } | Self::Materials(MaterialError::Stray(_)) => Reason::KeyLost,
            Self::Root(_) => Reason::CertificatesPending,
            Self::Tenant(_) => Reason::ClusterNotReady,
            Self::Both { first, .. } => first.reason(),
            _ => Reason::ReconcileFailed,
        }
    }
}
