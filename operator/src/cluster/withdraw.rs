//! Takes back the host names that a Cluster may not have any more: from what the ingress is told, and from the serving
//! certificate, before it is renewed.
//!
//! It waits for nothing else, neither for certificates nor for the end of a pause: the name may be another Cluster's by now.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Cluster;
use yoke_api::ingress::{CONFIG_KEY, IngressConfig};
use yoke_api::labels::component;
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE};
use yoke_pki::cert_manager::Certificate;
use yoke_pki::plan::LeafRole;

use super::build::hosted;
use super::identity::Identity;
use super::validate::{self, Surroundings};
use crate::apply::ApplyError;
use crate::context::Context;

/// What is left when the names are taken back that a Cluster may not have.
#[derive(Clone, Debug)]
pub(super) struct Names {
    /// What the ingress was told beside the public name, and may be told on.
    pub(super) told: Vec<String>,
    ingress: Option<ConfigMap>,
    certificate: Option<Certificate>,
}

/// Where a Cluster has host names beside its public one.
#[derive(Debug)]
pub(super) struct Had {
    config: Option<IngressConfig>,
    certificate: Option<Arc<Certificate>>,
}

/// What the ingress was told.
pub(super) fn find_told(context: &Context, identity: &Identity) -> Option<IngressConfig> {
    let key = ObjectRef::<ConfigMap>::new(INGRESS_CONFIG_MAP).within(identity.hosted().as_str());
    let map = context.caches.config_maps.get(&key)?;
    let text = map.data.as_ref()?.get(CONFIG_KEY)?;
    serde_json::from_str(text).ok()
}

/// Where a Cluster has such names; `None` if nowhere, which is so of most.
pub(super) fn find(context: &Context, identity: &Identity) -> Option<Had> {
    let config = find_told(context, identity);
    let leaf = LeafRole::ApiServer.object_name(&identity.id);
    let leaf = ObjectRef::<Certificate>::new(&leaf).within(PKI_NAMESPACE);
    let had = Had {
        config: config.filter(|config| !config.extra_names.is_empty()),
        certificate: context
            .caches
            .certificates
            .get(&leaf)
            .filter(|certificate| without_dns_names(certificate, identity, |_| false).is_some()),
    };
    (had.config.is_some() || had.certificate.is_some()).then_some(had)
}

/// Compares the names that a Cluster has with those that it may have.
pub(super) fn plan(had: Had, cluster: &Cluster, identity: &Identity, around: &Surroundings<'_, '_>) -> Names {
    let may_have = |name: &String| validate::may_have(cluster, name, around);
    let left = had.config.as_ref().and_then(|config| without_names(config, may_have));
    let certificate = had.certificate.as_deref();
    Names {
        certificate: certificate.and_then(|certificate| without_dns_names(certificate, identity, may_have)),
        ingress: left.as_ref().map(|left| hosted::build_ingress_map(identity, left)),
        told: left.or(had.config).map(|config| config.extra_names).unwrap_or_default(),
    }
}

fn without_names(config: &IngressConfig, may_have: impl Fn(&String) -> bool) -> Option<IngressConfig> {
    let mut left = config.clone();
    left.extra_names.retain(may_have);
    (left != *config).then_some(left)
}

fn without_dns_names(
    certificate: &Certificate,
    identity: &Identity,
    may_have: impl Fn(&String) -> bool,
) -> Option<Certificate> {
    let own = [
        identity.upstream_name(),
        identity.public_name.to_string(),
        identity.public_name.konnectivity(),
    ];
    let mut spec = certificate.spec.clone();
    spec.dns_names.retain(|name| own.contains(name) || may_have(name));
    (spec != certificate.spec).then(|| Certificate {
        metadata: identity.pki_meta(&certificate.name_any(), component::PKI),
        spec,
        status: None,
    })
}

/// Writes what is left, if anything was taken back.
pub(super) async fn apply(context: &Context, identity: &Identity, names: &Names) -> Result<(), ApplyError> {
    if let Some(map) = &names.ingress {
        tracing::info!(cluster = %identity.id, "host names are taken back from the ingress");
        context.clusters.apply(&context.caches.config_maps, map).await?;
    }
    if let Some(certificate) = &names.certificate {
        tracing::info!(cluster = %identity.id, "host names are taken back from the serving certificate");
        context
            .clusters
            .apply(&context.caches.certificates, certificate)
            .await?;
    }
    Ok(())
}
