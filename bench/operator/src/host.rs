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
use yoke_operator::testing::cluster::resources::secrets::Data;
use yoke_pki::plan::ROOT;
use yoke_test_support::kubernetes::{Options, build_cert_manager_crds, install_crds};
use yoke_test_support::{Process, free_port};

use crate::fleet::SERVICES;
use crate::sandbox::HOST;
use crate::store::Store;

/// User name under which the operator authenticates.
const USER: &str = "yoke-operator";
const TOKEN: &str = "operator";
/// Large enough that the audit log is never rotated: the benchmark reads it from its beginning.
const LOG_MEGABYTES: u32 = 4096;

/// kube-apiserver and its etcd. Both are stopped when this is dropped.
pub(crate) struct Host {
    pub(crate) client: Client,
    pub(crate) store: Store,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) audit: PathBuf,
    pub(crate) api: Process,
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
                format!("--quota-backend-bytes={}", 16_u64 << 30),
                "--log-level=error".to_owned(),
                "--unsafe-no-fsync".to_owned(),
            ],
        );
        let (policy, audit) = (dir.join("audit-policy.json"), dir.join("audit.log"));
        std::fs::write(&policy, build_policy().to_string())?;
        let arguments = [
            format!("--advertise-address={HOST}"),
            format!("--service-cluster-ip-range={SERVICES}"),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", audit.display()),
            format!("--audit-log-maxsize={LOG_MEGABYTES}"),
        ];
        let options = Options {
            users: &[(TOKEN, USER)],
            arguments: &arguments,
            // The memory of kube-apiserver is not measured, and ten thousand Clusters need a lot of
            // it.
            environment: &[("GOGC", "50")],
            ..Options::new(&clients)
        };
        let (api, client) = options.start(dir).await;
        let kubeconfig = dir.join("kubeconfig");
        std::fs::write(&kubeconfig, build_kubeconfig(&options.url()).to_string())?;
        let host = Self {
            client,
            store: Store::new(&clients)?,
            kubeconfig,
            audit,
            api,
            _store: store,
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

fn build_kubeconfig(url: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "host", "cluster": {"server": url, "insecure-skip-tls-verify": true}}],
        "users": [{"name": "operator", "user": {"token": TOKEN}}],
        "contexts": [{"name": "host", "context": {"cluster": "host", "user": "operator"}}],
        "current-context": "host",
    })
}
