//! Checks the address ranges and the cluster domain of a Cluster. Pure.

use yoke_api::cluster::Cluster;
use yoke_api::{Cidr, Reason};

use crate::cluster::validate::refuse::refuse;
use crate::config::Config;
use crate::model::refusal::Refusal;

pub(super) fn check_network(cluster: &Cluster, config: &Config) -> Result<(), Refusal> {
    let network = &cluster.spec.network;
    if !config.service_cidrs.contains(&network.service_cidr) {
        return refuse(
            Reason::NetworkNotOffered,
            format!(
                "This host does not offer service range {}. Offered ranges: {}.",
                network.service_cidr,
                config.service_cidrs.join(", ")
            ),
        );
    }
    if !config.cluster_domains.contains(&network.cluster_domain) {
        return refuse(
            Reason::NetworkNotOffered,
            format!(
                "This host does not offer cluster domain {}. Offered domains: {}.",
                network.cluster_domain,
                config.cluster_domains.join(", ")
            ),
        );
    }
    let pods = network
        .pod_cidr
        .parse::<Cidr>()
        .or_else(|error| refuse(Reason::NetworkNotOffered, format!("spec.network.podCIDR: {error}.")))?;
    let overlaps = network
        .service_cidr
        .parse::<Cidr>()
        .is_ok_and(|services| services.overlaps(pods));
    if overlaps {
        return refuse(
            Reason::NetworkNotOffered,
            "spec.network.podCIDR and spec.network.serviceCIDR overlap. Choose ranges without common addresses.",
        );
    }
    Ok(())
}

// The CRD's validation rule has the same check.
pub(super) fn check_sources(cluster: &Cluster) -> Result<(), Refusal> {
    for range in &cluster.spec.endpoint.allowed_cidrs {
        if let Err(error) = range.parse::<Cidr>() {
            return refuse(
                Reason::SourceRangeInvalid,
                format!("spec.endpoint.allowedCIDRs: {error}."),
            );
        }
    }
    Ok(())
}
