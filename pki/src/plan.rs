//! All Issuers and Certificates of one cluster, computed from facts about the cluster. They are in the namespace
//! [`yoke_api::names::PKI_NAMESPACE`].
//!
//! ```text
//!  yoke-root (R) ──▶ <id>-ca-g<N> (I) ──┬──▶ apiserver, apiserver-kubelet-client,
//!                                       │    kube-controller-manager, kube-scheduler,
//!                                       │    konnectivity-server if enabled,
//!                                       │    sleeper if there are extra names  → control-plane namespace
//!                                       ├──▶ operator                          → operator only
//!                                       └──▶ admin                             → tenant's kubeconfig
//!  yoke-selfsigned ─┬▶ <id>-front-proxy-ca-g<N> (FP) ──▶ front-proxy-client    → control-plane namespace
//!                   └▶ <id>-kubelet-ca-g<N> (K)          the operator signs with it
//! ```
//!
//! K and FP are not under R: a client that trusts R must not accept a kubelet's or an aggregator's
//! certificate. A generation never changes its key. When [`Generations::signing`] changes, the new
//! generation reissues all certificates.
//!
//! # Name constraints
//! I is limited to the cluster's own names, and permits no IP address at all. Go, OpenSSL and
//! webpki agree on the features used here:
//!
//! - A DNS constraint without a leading dot permits the name and all names under it.
//! - Constraints on a type of name do not apply to a certificate without names of that type. So
//!   client certificates without alternative names pass.
//! - OpenSSL also applies the constraints to a common name that looks like a DNS name. All common
//!   names under I contain a colon, so none does.
//!
//! The constraints are fixed when a generation is issued: cert-manager does not reissue a
//! certificate when they change. So I permits the tenant's domains instead of single extra names.
//! [`crate::ParsedCertificate::permits_dns`] tells whether an issued I permits a name, before a
//! certificate for the name is requested.

mod build;
mod error;
mod facts;
mod generations;
mod lifetimes;
mod names;
mod roles;
mod well_known;

use crate::cert_manager::{Certificate, Issuer};

pub use error::PlanError;
pub use facts::ClusterFacts;
pub use generations::{Generation, Generations};
pub use lifetimes::{KUBECONFIG_LIFETIME, LONGEST_LIFETIME, Lifetimes, SHORTEST_LIFETIME};
pub use roles::{Authority, AuthorityRole, Destination, Leaf, LeafRole};
pub use well_known::{
    ADMIN_GROUP, ADMIN_USER, FRONT_PROXY_USER, INGRESS_LEAF, KONNECTIVITY_USER, KUBELET_CLIENT_GROUP,
    KUBELET_CLIENT_USER, OPERATOR_USER, ROOT, SELF_SIGNED_ISSUER, SLEEPER_LEAF,
};

/// The plan of one cluster. Everything has a fixed order: the same facts give the same bytes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Issuers, one for each CA.
    pub issuers: Vec<Issuer>,
    /// Certificates of the CAs, followed by all other Certificates.
    pub certificates: Vec<Certificate>,
    /// Roles of the CAs.
    pub authorities: Vec<Authority>,
    /// Roles and destinations of the other certificates.
    pub leaves: Vec<Leaf>,
}

impl Plan {
    /// Checks the facts and builds the plan.
    pub fn new(facts: &ClusterFacts) -> Result<Self, PlanError> {
        facts.lifetimes.check()?;
        names::check(facts)?;
        Ok(build::build_plan(facts))
    }

    /// The CAs of `role`, oldest generation first. Verifiers must trust all of them.
    pub fn trusted(&self, role: AuthorityRole) -> impl Iterator<Item = &Authority> {
        self.authorities.iter().filter(move |authority| authority.role == role)
    }

    /// The certificates that are copied to `destination`.
    pub fn leaves_for(&self, destination: Destination) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().filter(move |leaf| leaf.destination == destination)
    }

    /// Names of all Secrets in `PKI_NAMESPACE`. They outlive their Certificates, so they must be
    /// deleted by name.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let authorities = self.authorities.iter().map(|authority| authority.name.as_str());
        authorities.chain(self.leaves.iter().map(|leaf| leaf.name.as_str()))
    }
}

#[cfg(test)]
mod tests;
