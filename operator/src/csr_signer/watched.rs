//! A cluster whose requests are answered: its Cluster and its open requests as they are now.

use std::sync::Arc;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::runtime::reflector::ObjectRef;
use yoke_api::Cluster;

use crate::csr_signer::context::Context;
use crate::csr_signer::error::SignError;
use crate::csr_signer::queue::Waiting;
use crate::csr_signer::validate;
use crate::model::identity::Identity;
use crate::tenant_client::TenantApi;

/// A cluster whose requests are answered.
#[derive(Clone, Debug)]
pub(super) struct WatchedCluster {
    pub(super) identity: Identity,
    pub(super) api: TenantApi,
}

/// Returns the watched Cluster, if it still has the same identity.
pub(super) fn find_cluster(context: &Context, target: &WatchedCluster) -> Option<Arc<Cluster>> {
    let Identity {
        tenant, cluster, id, ..
    } = &target.identity;
    let found = context
        .host
        .caches
        .clusters
        .get(&ObjectRef::new(cluster).within(tenant))?;
    let lives = found.metadata.deletion_timestamp.is_none();
    (lives && found.id().as_ref() == Some(id)).then_some(found)
}

/// Returns a request as it is now, if it still needs an answer.
pub(super) async fn find_open(
    target: &WatchedCluster,
    wanted: &Waiting,
) -> Result<Option<CertificateSigningRequest>, SignError> {
    let found = target.api.request(&wanted.name).await?;
    let found = found.and_then(|found| found.0.ok().filter(validate::is_open));
    let found = found.and_then(validate::trim);
    Ok(found.filter(|found| found.metadata.uid.as_ref() == Some(&wanted.uid)))
}
