//! What is read at each look of what was issued for a cluster, in place of all of it. Pure.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use yoke_api::names::PublicName;
use yoke_pki::plan::LeafRole;

use super::secrets::{Leaf, Materials};

/// What follows from what was issued and drawn for one cluster.
#[derive(Clone, Debug)]
pub struct Gist {
    /// End of the signing CA's life.
    pub ca_not_after: Timestamp,
    /// Leaves of a CA that was lost and issued anew with another key.
    pub former: Vec<String>,
    /// See [`Materials::restart_digest`]: without konnectivity, and with it.
    restart: [String; 2],
    /// Whether the API server's certificate has the name of konnectivity.
    pub serves_konnectivity: bool,
    /// How its API is reached; only of a cluster that is awake.
    pub reach: Option<Arc<Reach>>,
}

/// What it takes to reach the API of a cluster, and to have it reached.
#[derive(Clone)]
pub struct Reach {
    /// The operator's own certificate and key.
    pub operator: Leaf,
    /// The root, for those who verify the API server.
    pub root_ca: String,
    /// CA of kubelets' serving certificates.
    pub kubelet_ca: String,
    /// What the ingress verifies with.
    pub trust: Trust,
}

/// By what the ingress verifies a cluster, and those who use it. All of it is public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// Own intermediates, PEM.
    pub client_ca: String,
    /// Public half of the service-account key, PEM.
    pub service_account: String,
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach").finish_non_exhaustive()
    }
}

impl Gist {
    /// What follows from materials, of a cluster of this name. `is_awake`: whether its API is to be reached.
    pub fn of(materials: &Materials, name: &PublicName, is_awake: bool) -> Self {
        let reach = || Reach {
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
    /// By what the ingress verifies.
    pub fn trust(&self) -> Trust {
        Trust {
            client_ca: self.client_ca.clone(),
            service_account: self.service_account_public.clone(),
        }
    }
}
