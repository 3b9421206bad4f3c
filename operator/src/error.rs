//! Errors of a reconciliation, of a Cluster or of a Tenant.

use std::sync::Arc;

use yoke_api::Reason;
use yoke_nats_auth::ClaimsError;
use yoke_pki::bundle::BundleError;
use yoke_pki::inspect::InspectError;
use yoke_pki::kubeconfig::KubeconfigError;
use yoke_pki::service_account::KeyError;

use crate::host_api::apply::ApplyError;
use crate::host_api::root_ca::RootError;
use crate::nats::NatsError;
use crate::nats::account::AccountError;
use crate::tenant_client::TenantApiError;

/// A reconciliation failed. The controller retries it.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// The host API refused a write.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// A request to the host API failed.
    #[error("requesting {what} from the host API")]
    Host {
        /// Objects that the request was about.
        what: &'static str,
        /// Cause.
        #[source]
        source: Box<kube::Error>,
    },
    /// An issued certificate or key cannot be used.
    #[error("using an issued certificate or key")]
    Materials(#[from] MaterialError),
    /// A kubeconfig cannot be built.
    #[error("building a kubeconfig")]
    Kubeconfig(#[from] yoke_pki::kubeconfig::KubeconfigError),
    /// The service-account key cannot be generated.
    #[error("generating a service-account key")]
    ServiceAccount(#[from] yoke_pki::service_account::KeyError),
    /// The root certificate is not available.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The Secret of the store's NATS account cannot be used.
    #[error("using the store's NATS account")]
    Account(#[from] AccountError),
    /// A NATS token cannot be signed.
    #[error("signing a NATS token")]
    Claims(#[from] ClaimsError),
    /// A request to NATS failed.
    #[error("sending a request to NATS")]
    Nats(#[from] NatsError),
    /// A Secret with material that is generated only once is not usable.
    #[error("Secret yoke-pki/{name} has no usable key {key}; restore it from a backup")]
    CredentialMissing {
        /// Name of the Secret.
        name: String,
        /// Key in the Secret.
        key: &'static str,
    },
    /// Material that a running cluster depends on is lost.
    #[error(
        "Secret yoke-pki/{name} is lost and has no copy; the cluster's service-account tokens or its data \
         depend on it: restore the Secret from a backup, or delete the Cluster"
    )]
    Lost {
        /// Name of the Secret.
        name: String,
    },
    /// The control-plane namespace is owned by another.
    #[error("namespace {0} exists and is owned by another")]
    Foreign(String),
    /// Other writers change the object at the same time, on every attempt.
    #[error("writing {0}: other clients changed it at the same time on every attempt")]
    Contended(&'static str),
    /// Two independent steps failed.
    #[error("{first}; also: {}", crate::chain(second))]
    Both {
        /// The first failure.
        #[source]
        first: Box<ReconcileError>,
        /// The second failure.
        second: Box<ReconcileError>,
    },
    /// A request to a tenant's own API failed.
    #[error(transparent)]
    Tenant(#[from] TenantApiError),
    /// An error that was found while the Cluster was observed.
    #[error(transparent)]
    Shared(Arc<ReconcileError>),
    /// The control-plane namespace is being deleted.
    #[error("waiting for the deletion of namespace {0}")]
    Ending(String),
}

impl ReconcileError {
    pub(crate) fn host(what: &'static str) -> impl Fn(kube::Error) -> Self {
        move |source| Self::Host {
            what,
            source: Box::new(source),
        }
    }

    /// The reason for metrics and conditions.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Foreign(_) => Reason::IdentityConflict,
            Self::Nats(_) => Reason::StoreUnavailable,
            Self::Lost { .. } | Self::Materials(MaterialError::Stray(_)) => Reason::KeyLost,
            Self::Root(_) => Reason::CertificatesPending,
            Self::Tenant(_) => Reason::ClusterNotReady,
            Self::Both { first, .. } => first.reason(),
            Self::Shared(error) => error.reason(),
            _ => Reason::ReconcileFailed,
        }
    }
}

/// Issued certificates or credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// A trust bundle cannot be composed.
    #[error("composing a trust bundle")]
    Bundle(#[from] BundleError),
    /// A certificate cannot be read.
    #[error("reading an issued certificate")]
    Inspect(#[from] InspectError),
    /// The service-account key cannot be read.
    #[error("reading the service-account key")]
    ServiceAccount(#[from] KeyError),
    /// A kubeconfig cannot be built.
    #[error("building a kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// A value is not UTF-8.
    #[error("the Secret {0} has a value that is not UTF-8 text")]
    Text(String),
    /// No known CA signed the certificate.
    #[error(
        "the certificate in Secret {0} is not signed by the cluster's current CA, whose previous key was \
         lost; restore the Secret of the CA, or delete Secret {0} so that it is issued again"
    )]
    Stray(String),
    /// The key is not that of the certificate.
    #[error(
        "the certificate and the key in Secret {0} do not match; delete the Secret so that they are issued \
         again"
    )]
    Mismatch(String),
}
