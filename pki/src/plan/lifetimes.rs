//! Lifetimes of certificates, and the limits that apply to them.

use std::time::Duration;

use yoke_api::cluster::PkiSpec;

use super::error::PlanError;
use super::roles::LeafRole;
use crate::request::Use;

/// Lifetime of the certificate in a tenant's kubeconfig, unless the overlap is shorter.
pub const KUBECONFIG_LIFETIME: Duration = Duration::from_hours(90 * 24);
/// Shortest lifetime that cert-manager issues.
pub const SHORTEST_LIFETIME: Duration = Duration::from_hours(1);
/// Longest lifetime of a CA, ten years. Go's durations end at 292 years: a single Certificate with
/// a longer one would prevent cert-manager from reading any Certificate.
pub const LONGEST_LIFETIME: Duration = Duration::from_hours(87_600);

/// Lifetimes of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Lifetime of a CA generation.
    pub ca: Duration,
    /// How long two generations are both trusted. No other certificate lives longer.
    pub overlap: Duration,
    /// Lifetime of certificates that are not CAs.
    pub leaf: Duration,
}

impl Lifetimes {
    /// The lifetimes that a Cluster's spec requests.
    pub fn from_spec(spec: &PkiSpec) -> Result<Self, PlanError> {
        let hours = |text: &str| {
            text.strip_suffix('h')
                .and_then(|number| number.parse::<u32>().ok())
                .map(|number| Duration::from_hours(number.into()))
                .ok_or_else(|| PlanError::Duration(text.to_owned()))
        };
        Ok(Self {
            ca: hours(&spec.ca_duration)?,
            overlap: hours(&spec.ca_overlap)?,
            leaf: hours(&spec.leaf_duration)?,
        })
    }

    /// Lifetime of a certificate of `role`.
    pub fn of(&self, role: LeafRole) -> Duration {
        let asked = match role {
            LeafRole::Admin => KUBECONFIG_LIFETIME,
            _ => self.leaf,
        };
        asked.min(self.overlap)
    }

    /// Lifetime of a kubelet's certificate. A client certificate lives as long as the one in a
    /// kubeconfig, a serving certificate as long as those of the control plane.
    pub fn of_kubelet(&self, purpose: Use) -> Duration {
        match purpose {
            Use::Client => KUBECONFIG_LIFETIME.min(self.overlap),
            Use::Server => self.leaf.min(self.overlap),
        }
    }

    /// Checks that the lifetimes fit together.
    pub fn check(&self) -> Result<(), PlanError> {
        let are_long = self.overlap >= SHORTEST_LIFETIME && self.leaf >= SHORTEST_LIFETIME;
        let fits = are_long && self.overlap < self.ca && self.ca <= LONGEST_LIFETIME;
        if fits { Ok(()) } else { Err(PlanError::Lifetimes) }
    }
}
