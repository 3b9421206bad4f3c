//! The host's API: a real kube-apiserver with what the operator and Kubernetes write for each cluster.

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

/// Clusters that are made at the same time where many are.
const AT_ONCE: usize = 16;

/// The server and its store, which end with this.
pub(crate) struct Host {
    client: Client,
    url: String,
    _api: Process,
    _store: Process,
}

impl Host {
    /// Starts both. What is written is not synced: the disk is not what is measured.
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
            // Namespaces matter to nobody here.
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

    /// Writes by what others reach it.
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

    /// Gives the ingress its certificate.
    pub(crate) async fn show(&self, certificate: &Secret) -> Result<()> {
        let secrets = Api::namespaced(self.client.clone(), PKI_NAMESPACE);
        secrets.create(&PostParams::default(), certificate).await?;
        Ok(())
    }

    /// Makes a cluster, of which the control plane runs.
    pub(crate) async fn create(&self, cluster: &ClusterFixture) -> Result<()> {
        let (params, config, slice) = (PostParams::default(), cluster.config_map(), cluster.slice());
        let (configs, slices) = (self.configs(cluster), self.slices(cluster));
        tokio::try_join!(configs.create(&params, &config), slices.create(&params, &slice))
            .context("making a cluster")?;
        Ok(())
    }

    /// Makes many.
    pub(crate) async fn create_all(&self, clusters: impl Iterator<Item = &ClusterFixture>) -> Result<()> {
        let made = stream::iter(clusters.map(|cluster| self.create(cluster)));
        made.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The control plane of a cluster runs elsewhere.
    pub(crate) async fn move_to(&self, cluster: &ClusterFixture, address: Ipv4Addr) -> Result<()> {
        let endpoint = json!({"addresses": [address.to_string()], "conditions": {"ready": true}});
        let patch = Patch::Merge(json!({"endpoints": [endpoint]}));
        let name = cluster.slice().metadata.name.unwrap_or_default();
        let slices = self.slices(cluster);
        slices.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// A cluster is not routed any more.
    pub(crate) async fn withdraw(&self, cluster: &ClusterFixture) -> Result<()> {
        let configs = self.configs(cluster);
        configs.delete(INGRESS_CONFIG_MAP, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Its control plane is gone, too.
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
