//! The client of the host API that impersonates one Tenant, and its simple requests.

use http::HeaderValue;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use tower::service_fn;
use yoke_api::cluster::DesiredState;
use yoke_api::names::{KUBECONFIG_KEY, SSH_SERVICE_ACCOUNT};
use yoke_api::{Cluster, JoinToken, Lenient, labels};

use super::request::ask;
use super::watch::ObjectWatch;
use crate::Error;

pub(super) const FIELD_MANAGER: &str = "yoke-ssh-ui";
const IMPERSONATE: &str = "impersonate-user";

/// A client of the host API that impersonates one Tenant.
#[derive(Clone)]
pub struct TenantHost {
    pub(super) tenant: String,
    pub(super) clusters: Api<Lenient<Cluster>>,
    pub(super) join_tokens: Api<Lenient<JoinToken>>,
    pub(super) secrets: Api<Secret>,
    pub(super) events: Api<Lenient<Event>>,
}

impl TenantHost {
    /// Creates the client for a Tenant; it uses the connections of `host`.
    pub fn of(host: &Client, tenant: &str) -> Result<Self, Error> {
        let user = format!("system:serviceaccount:{tenant}:{SSH_SERVICE_ACCOUNT}");
        let user = HeaderValue::try_from(user).map_err(|_| Error::TenantName(tenant.to_owned()))?;
        let host = host.clone();
        let service = service_fn(move |mut request: http::Request<Body>| {
            // Replaces a header that another layer may have set.
            request.headers_mut().insert(IMPERSONATE, user.clone());
            let host = host.clone();
            async move { host.send(request).await }
        });
        let client = Client::new(service, tenant);
        Ok(Self {
            tenant: tenant.to_owned(),
            clusters: Api::default_namespaced(client.clone()),
            join_tokens: Api::default_namespaced(client.clone()),
            secrets: Api::default_namespaced(client.clone()),
            events: Api::default_namespaced(client),
        })
    }

    /// Lists all Clusters.
    pub async fn list(&self) -> Result<Vec<Cluster>, Error> {
        let list = ask("listing your Clusters", self.clusters.list(&ListParams::default())).await?;
        // A Cluster that cannot be parsed is skipped.
        Ok(list.items.into_iter().filter_map(|item| item.0.ok()).collect())
    }

    /// Lists all Clusters and watches their changes.
    pub fn follow_clusters(&self) -> ObjectWatch<Cluster> {
        ObjectWatch::new(self.clusters.clone(), "watching your Clusters")
    }

    /// Lists all events and watches their changes.
    pub fn follow_events(&self) -> ObjectWatch<Event> {
        ObjectWatch::new(self.events.clone(), "watching events")
    }

    /// Returns the Cluster of this name.
    pub async fn get(&self, name: &str) -> Result<Cluster, Error> {
        let cluster = async { self.clusters.get(name).await?.into_object() };
        ask(&format!("getting Cluster {name}"), cluster).await
    }

    /// Creates a Cluster.
    pub async fn create(&self, cluster: &Cluster) -> Result<Cluster, Error> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let cluster = Lenient(Ok(cluster.clone()));
        let created = async { self.clusters.create(&parameters, &cluster).await?.into_object() };
        ask(&format!("creating Cluster {name}"), created).await
    }

    /// Sets the desired state of a Cluster: running or asleep.
    pub async fn set_state(&self, name: &str, state: DesiredState) -> Result<Cluster, Error> {
        // Waking also ends a sleep that the annotation, inactivity or a schedule has started.
        let word = match state {
            DesiredState::Running => Some(labels::SLEEP_END),
            DesiredState::Asleep => None,
        };
        let patch = json!({"metadata": {"annotations": {(labels::SLEEP): word}}, "spec": {"state": state}});
        let patch = Patch::Merge(patch);
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let doing = format!("changing Cluster {name}");
        let patched = async { self.clusters.patch(name, &parameters, &patch).await?.into_object() };
        ask(&doing, patched).await
    }

    /// Deletes a Cluster.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let (doing, parameters) = (format!("deleting Cluster {name}"), DeleteParams::default());
        ask(&doing, self.clusters.delete(name, &parameters)).await.map(|_| ())
    }

    /// Returns the kubeconfig of a Cluster.
    pub async fn kubeconfig(&self, name: &str) -> Result<String, Error> {
        self.kubeconfig_of(name, &self.get(name).await?).await
    }

    pub(super) async fn kubeconfig_of(&self, name: &str, cluster: &Cluster) -> Result<String, Error> {
        let status = cluster.status.as_ref();
        let secret = status
            .and_then(|status| status.kubeconfig_ref.as_ref())
            .map(|secret| secret.name.as_str());
        let secret = secret.ok_or_else(|| Error::NoKubeconfig(name.to_owned()))?;
        let doing = format!("getting the kubeconfig of Cluster {name}");
        let data = ask(&doing, self.secrets.get(secret)).await?.data;
        data.and_then(|mut data| data.remove(KUBECONFIG_KEY))
            .and_then(|value| String::from_utf8(value.0).ok())
            .ok_or_else(|| Error::KubeconfigInvalid(name.to_owned()))
    }
}
