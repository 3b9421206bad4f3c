//! The CAs and certificates that every cluster has: their names, signers and destinations.

use super::generations::Generation;
use yoke_api::ClusterId;

/// A CA of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthorityRole {
    /// I: signs serving and client certificates; under R.
    Cluster,
    /// K: signs the serving certificates of kubelets.
    KubeletServing,
    /// FP: signs the client certificate that is presented to aggregated API servers.
    FrontProxy,
}

/// A certificate of a cluster that is not a CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafRole {
    /// Serving certificate of the kube-apiserver.
    ApiServer,
    /// Client certificate of the kube-apiserver for kubelets.
    ApiServerKubeletClient,
    /// Client certificate of the kube-apiserver for aggregated API servers.
    FrontProxyClient,
    /// Client certificate of the kube-controller-manager.
    ControllerManager,
    /// Client certificate of the kube-scheduler.
    Scheduler,
    /// Client certificate of the konnectivity-server.
    Konnectivity,
    /// Serving certificate with which the ingress answers for the cluster's extra names while the
    /// cluster sleeps.
    Sleeper,
    /// Client certificate of the operator.
    Operator,
    /// Client certificate in the tenant's kubeconfig.
    Admin,
}

/// Where a certificate and its key are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// The control-plane namespace, for the control plane.
    Hosted,
    /// Not copied: the operator reads it in `PKI_NAMESPACE`.
    Operator,
    /// The kubeconfig in the tenant's namespace.
    TenantKubeconfig,
}

/// One CA of the plan. Its Certificate, Secret and Issuer have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Role of the CA.
    pub role: AuthorityRole,
    /// Generation of the CA.
    pub generation: Generation,
    /// Name of the Certificate, Secret and Issuer in `PKI_NAMESPACE`.
    pub name: String,
}

/// One certificate of the plan that is not a CA. Its Certificate and Secret have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Role of the certificate.
    pub role: LeafRole,
    /// Name of the Certificate and Secret in `PKI_NAMESPACE`.
    pub name: String,
    /// Where the certificate and key are copied to.
    pub destination: Destination,
}

impl AuthorityRole {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Cluster, Self::KubeletServing, Self::FrontProxy];

    /// Name of the Certificate, Secret and Issuer of this CA in `PKI_NAMESPACE`.
    pub fn object_name(self, id: &ClusterId, generation: Generation) -> String {
        let role = match self {
            Self::Cluster => "ca",
            Self::KubeletServing => "kubelet-ca",
            Self::FrontProxy => "front-proxy-ca",
        };
        format!("{id}-{role}-{generation}")
    }
}

impl Leaf {
    /// The certificate of this role of the cluster `id`.
    pub fn new(role: LeafRole, id: &ClusterId) -> Self {
        Self {
            role,
            name: role.object_name(id),
            destination: role.destination(),
        }
    }
}

impl LeafRole {
    /// All roles.
    pub const ALL: [Self; 9] = [
        Self::ApiServer,
        Self::ApiServerKubeletClient,
        Self::FrontProxyClient,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Konnectivity,
        Self::Sleeper,
        Self::Operator,
        Self::Admin,
    ];

    /// Name of the role as part of an object's name; also the name of its copy.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "apiserver",
            Self::ApiServerKubeletClient => "apiserver-kubelet-client",
            Self::FrontProxyClient => "front-proxy-client",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Konnectivity => "konnectivity-server",
            Self::Sleeper => "sleeper",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Name of the Certificate and Secret of this role in `PKI_NAMESPACE`.
    pub fn object_name(self, id: &ClusterId) -> String {
        format!("{id}-{}", self.name())
    }

    /// Where the certificate and key are copied to.
    pub fn destination(self) -> Destination {
        match self {
            Self::ApiServer
            | Self::ApiServerKubeletClient
            | Self::FrontProxyClient
            | Self::ControllerManager
            | Self::Scheduler
            | Self::Konnectivity
            | Self::Sleeper => Destination::Hosted,
            Self::Operator => Destination::Operator,
            Self::Admin => Destination::TenantKubeconfig,
        }
    }

    /// The CA that signs the certificate.
    pub fn authority(self) -> AuthorityRole {
        match self {
            Self::FrontProxyClient => AuthorityRole::FrontProxy,
            _ => AuthorityRole::Cluster,
        }
    }
}
