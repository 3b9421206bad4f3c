//! A Tenant for one test, with its Clusters. The end of the test removes all of them.

use std::fmt::Debug;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use yoke_api::{Cluster, ClusterSpec, ConditionType, Tenant, TenantSpec, names};

use crate::logs::{Expected, Journal};
use crate::stack::Stack;
use crate::wait::watch_for;

/// Time until a Cluster is `Ready` on a busy computer. The usual time is in `docs/benchmarks`.
pub const READY_LIMIT: Duration = Duration::from_secs(180);
const DELETE_LIMIT: Duration = Duration::from_secs(120);

/// A Tenant that was created for one test.
pub struct TenantFixture {
    /// The stack of the Tenant.
    pub stack: Stack,
    /// Name of the Tenant, and of its namespace.
    pub name: String,
    files: tempfile::TempDir,
    journal: Journal,
    expected: Vec<Expected>,
}

impl TenantFixture {
    /// Creates the Tenant `e2e-<test>` and waits until it is ready. Removes one that an interrupted
    /// run left.
    pub async fn create(stack: &Stack, test: &str) -> Result<Self> {
        Self::create_with(stack, test, TenantSpec::default()).await
    }

    /// Like [`Self::create`], with a spec.
    pub async fn create_with(stack: &Stack, test: &str, spec: TenantSpec) -> Result<Self> {
        let name = format!("e2e-{test}");
        let fixture = Self {
            stack: stack.clone(),
            name,
            files: tempfile::tempdir().context("making a folder")?,
            journal: Journal::start(stack),
            expected: Vec::new(),
        };
        fixture.clear().await.context("removing what an earlier run left")?;
        let tenants: Api<Tenant> = Api::all(stack.host.clone());
        tenants
            .create(&PostParams::default(), &Tenant::new(&fixture.name, spec))
            .await
            .context("creating a Tenant")?;
        let what = format!("Tenant {} to be Ready", fixture.name);
        watch_for(&what, READY_LIMIT, tenants, &fixture.name, |tenant: Option<Tenant>| {
            let status = tenant.and_then(|tenant| tenant.status);
            let ready = status.is_some_and(|status| is_true(&status.conditions, ConditionType::Ready));
            Ok(ready.then_some(()))
        })
        .await?;
        Ok(fixture)
    }

    /// Allows Yoke's processes to log these lines during the test.
    pub fn expecting(mut self, expected: &[Expected]) -> Self {
        self.expected.extend_from_slice(expected);
        self
    }

    /// The Tenant's Clusters.
    pub fn clusters(&self) -> Api<Cluster> {
        Api::namespaced(self.stack.host.clone(), &self.name)
    }

    /// Creates a Cluster and returns immediately.
    pub async fn create_cluster(&self, name: &str, spec: ClusterSpec) -> Result<Cluster> {
        self.clusters()
            .create(&PostParams::default(), &Cluster::new(name, spec))
            .await
            .context("creating a Cluster")
    }

    /// Creates a Cluster, waits until it is `Ready`, and writes its kubeconfig to a file.
    pub async fn ready_cluster(&self, name: &str) -> Result<(Cluster, PathBuf)> {
        self.ready_cluster_with(name, ClusterSpec::default()).await
    }

    /// Like [`Self::ready_cluster`], with a spec.
    pub async fn ready_cluster_with(&self, name: &str, spec: ClusterSpec) -> Result<(Cluster, PathBuf)> {
        self.create_cluster(name, spec).await?;
        let cluster = self
            .wait_condition(name, ConditionType::Ready, "True", READY_LIMIT)
            .await?;
        let kubeconfig = self.kubeconfig(name).await?;
        Ok((cluster, kubeconfig))
    }

    /// Writes the kubeconfig of a Cluster to a file. Reads it like a tenant, from the Secret in the
    /// Tenant's namespace.
    pub async fn kubeconfig(&self, name: &str) -> Result<PathBuf> {
        let secrets: Api<Secret> = Api::namespaced(self.stack.host.clone(), &self.name);
        let secret = secrets
            .get(&names::kubeconfig_secret(name))
            .await
            .context("reading the kubeconfig Secret")?;
        let data = secret.data.unwrap_or_default();
        let value = data
            .get(names::KUBECONFIG_KEY)
            .context("the kubeconfig Secret has no key `value`")?;
        let path = self.files.path().join(format!("{name}.kubeconfig"));
        std::fs::write(&path, &value.0).context("writing a kubeconfig")?;
        Ok(path)
    }

    /// Waits until a condition of the current generation has the given status.
    pub async fn wait_condition(
        &self,
        name: &str,
        condition: ConditionType,
        status: &str,
        limit: Duration,
    ) -> Result<Cluster> {
        let what = format!("Cluster {name} to have {condition}={status}");
        watch_for(&what, limit, self.clusters(), name, |cluster: Option<Cluster>| {
            let cluster = cluster.context("the Cluster does not exist")?;
            let conditions = cluster
                .status
                .as_ref()
                .map(|status| status.conditions.as_slice())
                .unwrap_or_default();
            let met = conditions.iter().any(|found| {
                found.type_ == condition.as_str()
                    && found.status == status
                    && found.observed_generation == cluster.metadata.generation
            });
            if met {
                return Ok(Some(cluster));
            }
            let seen: Vec<_> = conditions
                .iter()
                .map(|c| format!("{}={} {}: {}", c.type_, c.status, c.reason, c.message))
                .collect();
            anyhow::bail!("{seen:?}")
        })
        .await
    }

    /// Applies a merge patch to a Cluster.
    pub async fn patch_cluster(&self, name: &str, patch: serde_json::Value) -> Result<Cluster> {
        self.clusters()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("changing Cluster {name}"))
    }

    /// Deletes a Cluster and waits until it is gone.
    pub async fn delete_cluster(&self, name: &str) -> Result<()> {
        let clusters = self.clusters();
        clusters
            .delete(name, &DeleteParams::default())
            .await
            .context("deleting a Cluster")?;
        gone(clusters, name).await
    }

    /// Waits until a Cluster is gone that something else deletes.
    pub async fn until_gone(&self, name: &str) -> Result<()> {
        gone(self.clusters(), name).await
    }

    /// Ends the test: removes the Tenant with all its Clusters, waits until they are gone, and
    /// checks the logs.
    pub async fn remove(&self) -> Result<()> {
        let mut unlisted = Vec::new();
        for cluster in self.clusters().list(&Default::default()).await?.items {
            if let Some(id) = cluster.id() {
                let hosted = id.hosted_namespace().to_string();
                let store = self
                    .journal
                    .unlisted_in_control_plane(&self.stack, &hosted, &self.expected);
                unlisted.extend(store.await?);
            }
        }
        self.clear().await?;
        unlisted.extend(self.journal.unlisted_in_system(&self.stack, &self.expected).await?);
        ensure!(
            unlisted.is_empty(),
            "Yoke logged unexpected lines:\n{}",
            unlisted.join("\n")
        );
        Ok(())
    }

    async fn clear(&self) -> Result<()> {
        let tenants: Api<Tenant> = Api::all(self.stack.host.clone());
        let clusters = self.clusters();
        for cluster in clusters.list(&Default::default()).await?.items {
            clusters
                .delete(&cluster.metadata.name.unwrap_or_default(), &DeleteParams::default())
                .await?;
        }
        if tenants.get_opt(&self.name).await?.is_some() {
            tenants.delete(&self.name, &DeleteParams::default()).await?;
        }
        gone(tenants, &self.name).await
    }
}

/// Waits until an object is gone.
async fn gone<K>(api: Api<K>, name: &str) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let what = format!("{} {name} to be gone", K::kind(&()));
    watch_for(&what, DELETE_LIMIT, api, name, |object| {
        Ok(object.is_none().then_some(()))
    })
    .await
}

/// Whether a condition is `True`.
pub fn is_true(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition], of: ConditionType) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == of.as_str() && condition.status == "True")
}

/// Namespace of a Cluster's control plane.
pub fn hosted_namespace(cluster: &Cluster) -> Result<String> {
    let id = cluster.id().context("the Cluster has no identity yet")?;
    Ok(id.hosted_namespace().to_string())
}
