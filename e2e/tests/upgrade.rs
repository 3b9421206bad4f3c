//! A change of `spec.version` restarts the control plane on the new version, and back. Needs a stack whose catalogue has
//! both versions: `make test-slow` brings it up.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use yoke_api::{ClusterSpec, ConditionType};
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::{Stack, TenantFixture};

const FROM: &str = "v1.35.4";
const TO: &str = "v1.35.5";

#[tokio::test]
async fn version_goes_up_and_back_within_a_minor() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "upgrade").await?;
    tenant
        .create_cluster(
            "a",
            ClusterSpec {
                version: Some(FROM.into()),
                ..ClusterSpec::default()
            },
        )
        .await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    let kubeconfig = tenant.kubeconfig("a").await?;
    stack
        .kubectl(&kubeconfig, &["create", "configmap", "kept"])
        .await?
        .ok()?;

    for (step, version) in [(2, TO), (3, FROM)] {
        tenant.patch_cluster("a", json!({"spec": {"version": version}})).await?;
        let cluster = tenant
            .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
            .await?;
        let status = cluster.status.context("no status")?;
        ensure!(status.version.as_deref() == Some(version), "runs {:?}", status.version);
        let history: Vec<_> = status.history.iter().map(|entry| entry.version.as_str()).collect();
        ensure!(
            history.len() == step && history.first() == Some(&version),
            "history is {history:?}"
        );
        ensure!(
            status.history.iter().all(|entry| entry.completed.is_some()),
            "{:?}",
            status.history
        );
        let answer = stack.kubectl(&kubeconfig, &["version", "-o", "json"]).await?.ok()?;
        ensure!(answer.contains(&format!("\"gitVersion\": \"{version}\"")), "{answer}");
        stack.kubectl(&kubeconfig, &["get", "configmap", "kept"]).await?.ok()?;
    }
    tenant.remove().await
}
