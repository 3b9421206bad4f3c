//! Applies the base objects in a tenant's API, and watches the endpoints among them.

use futures::TryStreamExt as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, ListParams, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use yoke_api::Lenient;

use crate::model::dynamic::to_dynamic;
use crate::tenant_client::api::TenantApi;
use crate::tenant_client::base_objects::{BaseObjects, NAMESPACE, SERVICE, build_admin_role};
use crate::tenant_client::error::TenantApiError;
use crate::tenant_client::limits::limited;
use crate::tenant_client::object::{Objects, matches_desired};
use crate::tenant_client::paged_list::Pages;
use crate::tenant_client::watch::{Change, changes};

/// A list of one object.
const ONE: Pages = Pages { size: 1, max: 1 };

impl TenantApi {
    /// Prepares a new cluster for its admins: creates their role, which an API server creates
    /// itself a second later, and calls [`Self::apply_base`]. Fails if the namespace `default` does
    /// not exist yet.
    pub async fn begin(&self, objects: &BaseObjects, params: &PatchParams) -> Result<(), TenantApiError> {
        let namespaces = Api::<Lenient<Namespace>>::all(self.client.clone());
        let namespace = async {
            let found = limited("namespaces", namespaces.get_opt(NAMESPACE)).await?;
            found.map(|_| ()).ok_or(TenantApiError::NoNamespace)
        };
        let creation = PostParams {
            field_manager: params.field_manager.clone(),
            ..PostParams::default()
        };
        let (roles, admin_role) = (Api::all(self.client.clone()), build_admin_role());
        let role = async {
            match limited("the role of the admins", roles.create(&creation, &admin_role)).await {
                Err(error) if error.code() == Some(409) => Ok(()),
                made => made.map(|_| ()),
            }
        };
        tokio::try_join!(namespace, role, self.apply_base(objects, params)).map(|_| ())
    }

    /// Applies the objects that every tenant cluster must have:
    ///
    /// - the admins' binding;
    /// - the API server's permission to call kubelets;
    /// - the permissions of kubelets for their Nodes;
    /// - the address of `default/kubernetes`.
    ///
    /// An object that is current is not written: a write waits for the tenant's webhooks.
    pub async fn apply_base(&self, objects: &BaseObjects, params: &PatchParams) -> Result<(), TenantApiError> {
        let roles = try_join_all(objects.roles.iter().map(|role| self.ensure(role, params)));
        let bindings = try_join_all(objects.bindings.iter().map(|binding| self.ensure(binding, params)));
        let endpoints = async {
            let Some((slice, endpoints)) = &objects.endpoints else {
                return Ok(());
            };
            tokio::try_join!(self.ensure(slice, params), self.ensure(endpoints, params)).map(|_| ())
        };
        let policy = async {
            let (policy, binding) = &objects.policy;
            tokio::try_join!(self.ensure(policy, params), self.ensure(binding, params)).map(|_| ())
        };
        tokio::try_join!(roles, bindings, policy, endpoints).map(|_| ())
    }

    /// Applies an object, unless it is current.
    pub(super) async fn ensure<K>(&self, object: &K, params: &PatchParams) -> Result<(), TenantApiError>
    where
        K: Resource<DynamicType = ()> + Serialize,
    {
        let (kind, object) = (ApiResource::erase::<K>(&()), to_dynamic(object));
        let objects = Objects::of(&self.client, "a base object", &kind, &object);
        let found = objects.find(&object).await?;
        if found.as_ref().is_some_and(|found| matches_desired(&object, found)) {
            return Ok(());
        }
        objects.write(&object, found.as_ref(), params).await
    }

    /// Returns when the addresses of `default/kubernetes` differ from the expected ones, possibly
    /// at once, or when the watch ends.
    pub async fn watch_base(&self, objects: &BaseObjects) -> Result<(), TenantApiError> {
        let Some((slice, endpoints)) = &objects.endpoints else {
            return std::future::pending().await;
        };
        let slices = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = Api::namespaced(self.client.clone(), NAMESPACE);
        tokio::select! {
            ended = watch_until_other(slices, slice) => ended,
            ended = watch_until_other(all, endpoints) => ended,
        }
    }
}

/// Returns when the object [`SERVICE`] is missing or differs.
async fn watch_until_other<K>(api: Api<Lenient<K>>, wanted: &K) -> Result<(), TenantApiError>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + 'static,
{
    let params = ListParams::default().fields(&format!("metadata.name={SERVICE}"));
    let wanted = wanted.clone();
    let is_as_wanted = move |found: Lenient<K>| found.0.is_ok_and(|found| matches_desired(&wanted, &found));
    let mut changes = std::pin::pin!(changes(
        "the endpoints of default/kubernetes",
        api,
        params,
        ONE,
        is_as_wanted
    ));
    let mut is_there = false;
    while let Some(change) = changes.try_next().await? {
        match change {
            Change::Current(true) => is_there = true,
            Change::Listed if is_there => {}
            Change::Current(false) | Change::Listed | Change::Deleted => break,
        }
    }
    Ok(())
}
