//! The host's API: a real kube-apiserver with the objects that the operator and Kubernetes write
//! for each cluster.

use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use yoke_api::names::{INGRESS_CONFIG_MAP, PKI_NAMESPACE};
use yoke_test_support::kubernetes::{OWNER_TOKEN, Options};
use yoke_test_support::{Process, free_port};

use crate::sandbox::HOST;
use crate::support::fixtures::ClusterFixture;

/// Number of clusters created concurrently by `create_all`.
const AT_ONCE: usize = 16;

/// kube-apiserver and its etcd. Both are stopped when this is dropped.
pub(crate) struct Host {
    client: Client,
    url: String,
    _api: Process,
    _store: Process,
}

impl Host {
    /// Starts etcd and kube-apiserver. etcd does not fsync: the disk is not measured.
    pub(crate) async fn start(dir: &Path) -> Result<Self> {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let (clients, peers) = (url(free_port()), url(free_port()));
        let store = Process::spawn(
            dir,
            "etcd",
            &[
                format!("--data-dir={}", dir.join("etcd").display()),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
                "--log-level=error".to_owned(),
                "--unsafe-no-fsync".to_owned(),
            ],
        );
        let arguments = [
            format!("--advertise-address={HOST}"),
            // The objects are created without their namespaces.
            "--disable-admission-plugins=NamespaceLifecycle".to_owned(),
        ];
        let options = Options {
            arguments: &arguments,
            ..Options::new(&clients)
        };
        let (api, client) = options.start(dir).await;
        Ok(Self {
            client,
            url: options.url(),
            _api: api,
            _store: store,
        })
    }

    /// Writes the kubeconfig through which the ingress server reaches this API.
    pub(crate) fn write_kubeconfig(&self, path: &Path) -> Result<()> {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "host", "cluster": {"server": self.url, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "owner", "user": {"token": OWNER_TOKEN}}],
            "contexts": [{"name": "host", "context": {"cluster": "host", "user": "owner"}}],
            "current-context": "host",
        });
        Ok(std::fs::write(path, config.to_string())?)
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
