//! Revokes host names that a Cluster may no longer have: from the ingress configuration, and from
//! the serving certificate before its renewal. For a refused Cluster it also revokes sources that
//! its spec no longer allows.
//!
//! Revocation waits for nothing, neither for certificates nor for the end of a pause: another
//! Cluster may own the name by now.

use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::cluster::EndpointSpec;
use yoke_api::ingress::{IngressConfig, MAX_SOURCES};
use yoke_api::labels::component;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{Cidr, Cluster, Reason};
use yoke_pki::cert_manager::{Certificate, CertificateSpec};
use yoke_pki::plan::LeafRole;

use crate::cluster::context::Context;
use crate::cluster::ingress_config;
use crate::cluster::observe::View;
use crate::cluster::validate::{self, ValidationContext};
use crate::error::ReconcileError;
use crate::model::identity::Identity;
use crate::model::refusal::Refusal;

/// Host names and sources that remain after revocation.
#[derive(Clone, Debug)]
pub(crate) struct Remaining {
    /// The remaining part of the published ingress configuration.
    pub(crate) ingress_config: Option<IngressConfig>,
    /// Whether the published configuration had more.
    is_reduced: bool,
    certificates: Vec<Certificate>,
}

/// The published configuration and certificates from which something may have to be revoked.
#[derive(Debug)]
struct Published {
    config: Option<IngressConfig>,
    certificates: Vec<Certificate>,
    /// Whether the spec is not applied otherwise.
    is_refused: bool,
}

/// Revokes host names and sources that a Cluster may no longer have, and returns those that remain.
///
/// Returns `None` if nothing can be revoked, or if the objects with its identity are not known to
/// belong to it.
pub(crate) async fn revoke(
    context: &Context,
    view: &View<'_>,
    refusal: Option<&Refusal>,
) -> Result<Option<Remaining>, ReconcileError> {
    let identity = &view.identity;
    let is_owned_by_another = refusal.is_some_and(|refusal| refusal.reason == Reason::IdentityConflict);
    if view.observed.namespace.is_none() || view.observed.is_foreign || is_owned_by_another {
        return Ok(None);
    }
    let is_refused = refusal.is_some() && !view.cluster.spec.paused;
    let Some(published) = find_published(context, identity, is_refused).await? else {
        return Ok(None);
    };
    let remaining = plan_revocation(published, &view.cluster, identity, &view.validation_context());
    write_remaining(context, identity, &remaining).await?;
    Ok(Some(remaining))
}

/// Finds host names and sources that may have to be revoked. Returns `None` if there are none (the
/// usual case).
async fn find_published(
    context: &Context,
    identity: &Identity,
    is_refused: bool,
) -> Result<Option<Published>, ReconcileError> {
    let config = ingress_config::read_published(context, identity);
    let mut certificates = Vec::new();
    for role in [LeafRole::ApiServer, LeafRole::Sleeper] {
        certificates.extend(find_certificate(context, identity, role).await?);
    }
    let published = Published {
        config: config.filter(|config| is_refused || !config.extra_names.is_empty()),
        certificates,
        is_refused,
    };
    Ok((published.config.is_some() || !published.certificates.is_empty()).then_some(published))
}

/// A serving certificate that has other names than the Cluster's own.
async fn find_certificate(
    context: &Context,
    identity: &Identity,
    role: LeafRole,
) -> Result<Option<Certificate>, ReconcileError> {
    let leaf = role.object_name(&identity.id);
    let (own, key) = (own_names(identity), ObjectRef::new(&leaf).within(PKI_NAMESPACE));
    let known = context.host.caches.certificates.get(&key);
    let mut names = known.iter().flat_map(|known| &known.spec.dns_names);
    if names.all(|name| own.contains(name)) {
        return Ok(None);
    }
    let api = Api::<Certificate>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let found = api.get_opt(&leaf).await;
    found.map_err(ReconcileError::host("a serving certificate"))
}

fn own_names(identity: &Identity) -> [String; 3] {
    [
        identity.upstream_name(),
        identity.public_name.to_string(),
        identity.public_name.konnectivity(),
    ]
}

/// Plans which published names and sources remain, and which certificates must change.
fn plan_revocation(
    published: Published,
    cluster: &Cluster,
    identity: &Identity,
    validation: &ValidationContext<'_, '_>,
) -> Remaining {
    let may_have = |name: &String| validate::may_have(cluster, name, validation);
    let remaining = published.config.as_ref().map(|config| {
        let mut remaining = config.clone();
        remaining.extra_names.retain(may_have);
        if published.is_refused {
            remaining.allowed_sources = narrow_sources(remaining.allowed_sources, &cluster.spec.endpoint);
        }
        remaining
    });
    let narrow_names = |certificate: &Certificate| {
        let spec = without_dns_names(certificate, identity, may_have);
        // A certificate without any name cannot be issued: it is removed when the spec is applied.
        (spec != certificate.spec && !spec.dns_names.is_empty()).then(|| Certificate {
            metadata: identity.pki_meta(&certificate.name_any(), component::PKI),
            spec,
            status: None,
        })
    };
    Remaining {
        certificates: published.certificates.iter().filter_map(narrow_names).collect(),
        is_reduced: remaining.is_some() && remaining != published.config,
        ingress_config: remaining,
    }
}

/// The published sources that the spec allows too; all of them if the spec cannot be parsed.
fn narrow_sources(ingress_config: Option<Vec<Cidr>>, spec: &EndpointSpec) -> Option<Vec<Cidr>> {
    let of_spec: Result<Vec<Cidr>, _> = spec.allowed_cidrs.iter().map(|text| text.parse()).collect();
    let Ok(of_spec) = of_spec else {
        return ingress_config;
    };
    if of_spec.is_empty() {
        return ingress_config;
    }
    let Some(ingress_config) = ingress_config else {
        return Some(of_spec);
    };
    let mut remaining = Vec::new();
    for range in ingress_config {
        for other in of_spec.iter().filter(|other| range.overlaps(**other)) {
            // If two ranges share an address, one contains the other.
            let common = if other.is_part_of(range) { *other } else { range };
            // Ranges beyond the limit of the ingress are closed.
            if remaining.len() < MAX_SOURCES && !remaining.contains(&common) {
                remaining.push(common);
            }
        }
    }
    Some(remaining)
}

fn without_dns_names(
    certificate: &Certificate,
    identity: &Identity,
    may_have: impl Fn(&String) -> bool,
) -> CertificateSpec {
    let own = own_names(identity);
    let mut spec = certificate.spec.clone();
    spec.dns_names.retain(|name| own.contains(name) || may_have(name));
    spec
}

/// Writes the remaining configuration and certificates, if anything was revoked.
async fn write_remaining(context: &Context, identity: &Identity, remaining: &Remaining) -> Result<(), ReconcileError> {
    if let Some(remaining) = remaining.ingress_config.as_ref().filter(|_| remaining.is_reduced) {
        tracing::info!(cluster = %identity.id, "host names or sources are revoked from the ingress");
        ingress_config::update_published(context, identity, |ingress_config| {
            ingress_config.extra_names.clone_from(&remaining.extra_names);
            ingress_config.allowed_sources.clone_from(&remaining.allowed_sources);
        })
        .await?;
    }
    for certificate in &remaining.certificates {
        tracing::info!(cluster = %identity.id, "host names are revoked from a serving certificate");
        context
            .applier
            .apply(&context.host.caches.certificates, certificate)
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_sources_are_in_both_lists() {
        for (rule, ingress_config, of_spec, expected) in [
            ("no limit by the spec", Some("10.0.0.0/8"), "", Some("10.0.0.0/8")),
            (
                "no limit published",
                None,
                "10.0.0.0/8 fd00::/8",
                Some("10.0.0.0/8 fd00::/8"),
            ),
            ("no limit at all", None, "", None),
            (
                "spec allows a part",
                Some("10.0.0.0/8"),
                "10.1.0.0/16 10.2.0.0/16",
                Some("10.1.0.0/16 10.2.0.0/16"),
            ),
            (
                "spec allows more",
                Some("10.1.0.0/16"),
                "10.0.0.0/8",
                Some("10.1.0.0/16"),
            ),
            (
                "same ranges in another order",
                Some("10.0.0.0/8 fd00::/8"),
                "fd00::/8 10.0.0.0/8",
                Some("10.0.0.0/8 fd00::/8"),
            ),
            (
                "one range removed, one added",
                Some("10.0.0.0/8 fd00::/8"),
                "fd00::/8 192.0.2.0/24",
                Some("fd00::/8"),
            ),
            ("no common range", Some("10.0.0.0/8"), "192.0.2.0/24", Some("")),
            ("no source published", Some(""), "192.0.2.0/24", Some("")),
            (
                "overlapping ranges",
                Some("10.0.0.0/8 10.1.0.0/16"),
                "10.1.0.0/16",
                Some("10.1.0.0/16"),
            ),
            (
                "invalid range in the spec",
                Some("10.0.0.0/8"),
                "10.1.0.0/16 office",
                Some("10.0.0.0/8"),
            ),
        ] {
            let ranges = |text: &str| text.split_whitespace().map(|range| range.parse().unwrap()).collect();
            let spec = EndpointSpec {
                allowed_cidrs: of_spec.split_whitespace().map(ToOwned::to_owned).collect(),
                ..EndpointSpec::default()
            };
            assert_eq!(
                narrow_sources(ingress_config.map(ranges), &spec),
                expected.map(ranges),
                "{rule}"
            );
        }
    }
}
