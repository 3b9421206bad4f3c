//! The host's API: a real kube-apiserver with the objects that the operator and Kubernetes write
//! for each cluster.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE};
use yoke_bench_harness::host::HostOptions;
use yoke_test_support::kubernetes::OWNER_TOKEN;

use crate::support::fixtures::ClusterFixture;

/// Number of clusters created concurrently by `create_all`.
const AT_ONCE: usize = 16;

/// The host's API, and a client with all permissions.
pub(crate) struct Host {
    client: Client,
    server: yoke_bench_harness::Host,
}

impl Host {
    /// Starts the API with its files in `dir`.
    pub(crate) async fn start(dir: &Path) -> Self {
        // The objects are created without their namespaces.
        let arguments = ["--disable-admission-plugins=NamespaceLifecycle".to_owned()];
        let options = HostOptions {
            arguments: &arguments,
            ..HostOptions::default()
        };
        let (server, client) = yoke_bench_harness::Host::start(dir, &options).await;
        Self { client, server }
    }

    /// Writes the kubeconfig through which the ingress server reaches this API. Returns its path.
    pub(crate) fn write_kubeconfig(&self, dir: &Path) -> Result<PathBuf> {
        self.server.write_kubeconfig(dir, OWNER_TOKEN)
    }

    /// Creates the Secret with the ingress certificate.
    pub(crate) async fn show(&self, certificate: &Secret) -> Result<()> {
        let secrets = Api::namespaced(self.client.clone(), PKI_NAMESPACE);
        secrets.create(&PostParams::default(), certificate).await?;
        Ok(())
    }

    /// Creates the objects of a cluster whose control plane runs.
    pub(crate) async fn create(&self, cluster: &ClusterFixture) -> Result<()> {
        let (params, config, slice) = (PostParams::default(), cluster.config_map(), cluster.slice());
        let (configs, slices) = (self.configs(cluster), self.slices(cluster));
        tokio::try_join!(configs.create(&params, &config), slices.create(&params, &slice))
            .context("making a cluster")?;
        Ok(())
    }

    /// Creates the objects of many clusters.
    pub(crate) async fn create_all(&self, clusters: impl Iterator<Item = &ClusterFixture>) -> Result<()> {
        let made = stream::iter(clusters.map(|cluster| self.create(cluster)));
        made.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Moves the control plane of a cluster to another address.
    pub(crate) async fn move_to(&self, cluster: &ClusterFixture, address: Ipv4Addr) -> Result<()> {
        let endpoint = json!({"addresses": [address.to_string()], "conditions": {"ready": true}});
        let patch = Patch::Merge(json!({"endpoints": [endpoint]}));
        let name = cluster.slice().metadata.name.unwrap_or_default();
        let slices = self.slices(cluster);
        slices.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Removes the ingress configuration of a cluster, so that it is no longer routed.
    pub(crate) async fn withdraw(&self, cluster: &ClusterFixture) -> Result<()> {
        let configs = self.configs(cluster);
        configs.delete(INGRESS_CONFIG_MAP, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Deletes the EndpointSlice of a cluster.
    pub(crate) async fn clean(&self, cluster: &ClusterFixture) -> Result<()> {
        let name = cluster.slice().metadata.name.unwrap_or_default();
        self.slices(cluster).delete(&name, &DeleteParams::default()).await?;
        Ok(())
    }

    fn configs(&self, cluster: &ClusterFixture) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), &cluster.namespace())
    }

    fn slices(&self, cluster: &ClusterFixture) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), &cluster.namespace())
    }
}
