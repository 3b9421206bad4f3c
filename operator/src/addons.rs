//! Add-ons in tenants' clusters. Pure.
//!
//! ```text
//!  Facts: spec, version, name, host's configuration ─▶ plan ─┬─ wanted: all desired objects
//!                                                            └─ unwanted: objects of disabled add-ons
//! ```
//!
//! Every object has the add-on's name as a label, and an annotation with a digest of what was
//! applied. An object without this label is owned by another. An object with another digest is
//! applied again, so that fields that are no longer wanted are removed.

mod addon;
mod core_dns;
mod facts;
mod images;
pub(crate) mod konnectivity;
mod kube_proxy;
mod kube_system;
mod metrics_server;
mod part;

pub use crate::addons::addon::Addon;
pub use crate::addons::facts::Facts;
pub(crate) use crate::addons::kube_system::NAMESPACE;
pub use crate::addons::part::{Owner, Part};

use crate::addons::part::Parts;

/// Desired and undesired objects of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Objects of enabled add-ons.
    pub wanted: Vec<Part>,
    /// Objects of disabled add-ons.
    pub unwanted: Vec<Part>,
}

/// Plans the objects of every add-on.
pub fn plan(facts: &Facts<'_>) -> Plan {
    let build = |enabled: bool| {
        let addons = Addon::ALL.into_iter();
        let addons = addons.filter(|addon| addon.is_enabled(facts.spec) == enabled);
        addons.flat_map(|addon| build_addon(addon, facts)).collect()
    };
    Plan {
        wanted: build(true),
        unwanted: build(false),
    }
}

fn build_addon(addon: Addon, facts: &Facts<'_>) -> Vec<Part> {
    let mut parts = Parts::new(addon);
    match addon {
        Addon::CoreDns => core_dns::build(facts, &mut parts),
        Addon::KubeProxy => kube_proxy::build(facts, &mut parts),
        Addon::MetricsServer => metrics_server::build(facts, &mut parts),
        Addon::Konnectivity => konnectivity::build(facts, &mut parts),
    }
    parts.parts
}

#[cfg(test)]
mod tests;
