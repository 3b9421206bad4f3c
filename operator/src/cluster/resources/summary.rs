//! Summary of the issued material of a cluster, cached so that private keys are not. Pure.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use yoke_api::names::PublicName;
use yoke_pki::plan::LeafRole;

use crate::cluster::resources::materials::{Leaf, Materials};

/// Facts about the issued certificates and credentials of one cluster, for every reconcile.
#[derive(Clone, Debug)]
pub struct IssuedSummary {
    /// Expiry of the signing CA.
    pub ca_not_after: Timestamp,
    /// Names of certificates that a lost CA signed; the CA was since issued again with another key.
    pub former: Vec<String>,
    /// See [`Materials::restart_digest`]: without konnectivity, and with it.
    restart: [String; 2],
    /// Whether the API server's certificate has the name of the konnectivity-server.
    pub serves_konnectivity: bool,
    /// Access to its API; only for a cluster that is awake.
    pub reach: Option<Arc<ApiAccess>>,
}

/// Certificates and keys for access to the API of a cluster, by the operator and through the
/// ingress.
#[derive(Clone)]
pub struct ApiAccess {
    /// The operator's own certificate and key.
    pub operator: Leaf,
    /// The root CA, with which clients verify the API server.
    pub root_ca: String,
    /// CA of kubelets' serving certificates.
    pub kubelet_ca: String,
    /// CA and key with which the ingress verifies.
    pub trust: Trust,
}

/// CA and key with which the ingress verifies a cluster and its clients. Both are public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The cluster's own intermediate CAs, PEM.
    pub client_ca: String,
    /// Public half of the service-account key, PEM.
    pub service_account: String,
}

impl std::fmt::Debug for ApiAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl IssuedSummary {
    /// Summarizes the materials of a cluster with this public name. `is_awake`: whether access to
    /// its API is needed.
    pub fn of(materials: &Materials, name: &PublicName, is_awake: bool) -> Self {
        let reach = || ApiAccess {
            operator: materials.leaf(LeafRole::Operator).clone(),
            root_ca: materials.root_ca.clone(),
            kubelet_ca: materials.kubelet_ca.clone(),
            trust: materials.trust(),
        };
        Self {
            ca_not_after: materials.ca_not_after,
            former: materials.former.clone(),
            restart: [false, true].map(|konnectivity| materials.restart_digest(konnectivity)),
            serves_konnectivity: materials.serves(&name.konnectivity()),
            reach: is_awake.then(|| Arc::new(reach())),
        }
    }

    /// See [`Materials::restart_digest`].
    pub fn restart_digest(&self, konnectivity: bool) -> String {
        self.restart[usize::from(konnectivity)].clone()
    }
}

impl Materials {
    /// CA and key with which the ingress verifies.
    pub fn trust(&self) -> Trust {
        Trust {
            client_ca: self.client_ca.clone(),
            service_account: self.service_account_public.clone(),
        }
    }
}
