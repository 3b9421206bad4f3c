//! Finds the stores of deleted Clusters, whose data is retained.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Secret;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt as _};
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{ClusterId, labels};

use crate::cluster::ownership::is_of_tenant;
use crate::cluster::resources::secrets;
use crate::host_api::Host;
use crate::host_api::secrets::data_of;
use crate::model::identity::store_secret;
use crate::nats::Account;

/// The store of a deleted Cluster.
pub(crate) struct RetainedStore {
    /// The identity of the deleted Cluster.
    pub(crate) id: ClusterId,
    /// The account with its data.
    pub(crate) account: Account,
    /// The Secret that names the account.
    pub(crate) secret: Secret,
    /// The copy of its user's credentials in the control-plane namespace, if it still exists.
    pub(crate) copy: Option<ObjectRef<Secret>>,
}

/// The stores of a Tenant's deleted Clusters: their data is retained, or not collected yet.
pub(crate) fn find_retained_stores(host: &Host, tenant: &str) -> Vec<RetainedStore> {
    // A Cluster that only claims the identity is refused, and owns none of the data.
    let clusters = host.caches.clusters.summaries_in(tenant);
    let owned: HashSet<_> = clusters
        .iter()
        .filter_map(|cluster| Some((cluster.id.as_deref()?, &*cluster.name)))
        .collect();
    let secrets = &host.caches.secrets;
    let reserved = host.caches.reserved.of(tenant);
    let retained = reserved.keys().filter_map(|id| {
        let secret = secrets.get(&ObjectRef::new(&store_secret(id)).within(PKI_NAMESPACE))?;
        let name = secret.labels().get(labels::CLUSTER).map(String::as_str);
        if name.is_some_and(|name| owned.contains(&(id.as_str(), name))) {
            return None;
        }
        let account = Account::from_data(&data_of(&secret)).ok()?;
        let copy = ObjectRef::<Secret>::new(secrets::STORE).within(id.hosted_namespace().as_str());
        let exists = secrets.get(&copy).is_some_and(|copy| is_of_tenant(copy.meta(), tenant));
        Some(RetainedStore {
            account,
            secret: (*secret).clone(),
            copy: exists.then_some(copy),
            id: id.clone(),
        })
    });
    retained.collect()
}
