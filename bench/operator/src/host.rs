//! The host's API: a real kube-apiserver with an audit log, on etcd.

use std::path::{Path, PathBuf};

use anyhow::Result;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use yoke_api::names::PKI_NAMESPACE;
use yoke_bench_harness::host::HostOptions;
use yoke_operator::testing::cluster::resources::secrets::Data;
use yoke_pki::plan::ROOT;
use yoke_test_support::kubernetes::{build_cert_manager_crds, install_crds};

use crate::fleet::SERVICES;
use crate::store::Store;

/// User name under which the operator authenticates.
const USER: &str = "yoke-operator";
const TOKEN: &str = "operator";
/// Large enough that the audit log is never rotated: the benchmark reads it from its beginning.
const LOG_MEGABYTES: u32 = 4096;

/// The host's API, its etcd and its audit log.
pub(crate) struct Host {
    pub(crate) client: Client,
    pub(crate) store: Store,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) audit: PathBuf,
    pub(crate) server: yoke_bench_harness::Host,
}

impl Host {
    /// Starts the API with its files in `dir`, and creates the objects that the operator needs.
    pub(crate) async fn start(dir: &Path) -> Result<Self> {
        let (policy, audit) = (dir.join("audit-policy.json"), dir.join("audit.log"));
        std::fs::write(&policy, build_policy().to_string())?;
        let arguments = [
            format!("--service-cluster-ip-range={SERVICES}"),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
            format!("--audit-log-maxsize={LOG_MEGABYTES}"),
        ];
        let options = HostOptions {
            users: &[(TOKEN, USER)],
            arguments: &arguments,
            // The memory of kube-apiserver is not measured, and ten thousand Clusters need a lot of
            // it.
            environment: &[("GOGC", "50")],
        };
        let (server, client) = yoke_bench_harness::Host::start(dir, &options).await;
        let host = Self {
            client,
            store: Store::new(&server.etcd_url)?,
            kubeconfig: server.write_kubeconfig(dir, TOKEN)?,
            audit,
            server,
        };
        host.prepare().await?;
        Ok(host)
    }

    /// Creates the objects that the chart and cert-manager would install.
    async fn prepare(&self) -> Result<()> {
        install_crds(&self.client, &build_cert_manager_crds()).await;
        let namespaces = Api::<Namespace>::all(self.client.clone());
        for name in ["yoke-system", PKI_NAMESPACE] {
            create(&namespaces, json!({"metadata": {"name": name}})).await?;
        }
        let binding = json!({"metadata": {"name": USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}]});
        create(&Api::<ClusterRoleBinding>::all(self.client.clone()), binding).await
    }

    /// Stores the root certificate in the Secret in which cert-manager stores it.
    pub(crate) async fn keep_root(&self, data: Data) -> Result<()> {
        let texts = data
            .into_iter()
            .map(|(key, bytes)| Ok((key, String::from_utf8(bytes)?)));
        let texts = texts.collect::<Result<std::collections::BTreeMap<_, _>>>()?;
        let secret = json!({"metadata": {"name": ROOT}, "stringData": texts, "type": "kubernetes.io/tls"});
        create(&Api::<Secret>::namespaced(self.client.clone(), PKI_NAMESPACE), secret).await
    }
}

async fn create<K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize>(
    api: &Api<K>,
    value: Value,
) -> Result<()> {
    api.create(&PostParams::default(), &serde_json::from_value(value)?)
        .await?;
    Ok(())
}

/// Audit policy: one event for each request of the operator, a watch when it starts. Requests of
/// other clients are left out, and so are those for the operator's Lease, which it renews every two
/// seconds.
fn build_policy() -> Value {
    json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
            {"level": "Metadata", "users": [USER], "verbs": ["watch"], "omitStages": ["RequestReceived", "ResponseComplete"]},
            {"level": "Metadata", "users": [USER]},
            {"level": "None"},
        ],
    })
}
