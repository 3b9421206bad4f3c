//! A Cluster from its creation to the removal of its last trace.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use yoke_api::ConditionType;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::tenant::hosted_namespace;
use yoke_e2e::{Stack, TenantFixture, wait_until};

#[tokio::test]
async fn clusters_of_one_name_in_two_tenants_never_meet() -> Result<()> {
    let stack = Stack::connect().await?;
    let (one, two) = tokio::try_join!(
        TenantFixture::create(&stack, "one"),
        TenantFixture::create(&stack, "two")
    )?;
    let ((first, first_config), (second, second_config)) =
        tokio::try_join!(one.ready_cluster("same"), two.ready_cluster("same"))?;
    ensure!(
        first.spec.id != second.spec.id,
        "both have the identity {:?}",
        first.spec.id
    );

    stack
        .kubectl(&first_config, &["create", "configmap", "only-in-one"])
        .await?
        .ok()?;
    stack
        .kubectl(&first_config, &["get", "configmap", "only-in-one"])
        .await?
        .ok()?;
    let refusal = stack
        .kubectl(&second_config, &["get", "configmap", "only-in-one"])
        .await?
        .refused()?;
    ensure!(refusal.contains("NotFound"), "{refusal}");

    one.delete_cluster("same").await?;
    stack.kubectl(&second_config, &["get", "namespaces"]).await?.ok()?;
    tokio::try_join!(one.remove(), two.remove())?;
    Ok(())
}

#[tokio::test]
async fn deleting_a_cluster_removes_everything() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "delete").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let id = cluster.spec.id.context("no identity")?;
    let label = format!("yoke.drzzl.io/id={id}");
    stack.host_kubectl(&["get", "namespace", &hosted]).await?.ok()?;
    tenant.delete_cluster("a").await?;

    stack
        .kubectl(&kubeconfig, &["get", "namespaces", "--request-timeout=5s"])
        .await?
        .refused()?;
    wait_until("the hosted namespace to be gone", Duration::from_secs(60), || async {
        Ok(!stack.host_kubectl(&["get", "namespace", &hosted]).await?.success())
    })
    .await?;
    let left = [
        "get",
        "secrets,configmaps,certificates.cert-manager.io,issuers.cert-manager.io",
        "-A",
        "-l",
        &label,
        "-o",
        "name",
    ];
    let left = stack.host_kubectl(&left).await?.ok()?;
    ensure!(left.is_empty(), "these objects remain: {left}");
    tenant.remove().await?;
    wait_until("the tenant's namespace to be gone", Duration::from_secs(60), || async {
        Ok(!stack.host_kubectl(&["get", "namespace", &tenant.name]).await?.success())
    })
    .await
}

#[tokio::test]
async fn sleep_keeps_everything_and_paused_changes_nothing() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "sleep").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    stack
        .kubectl(&kubeconfig, &["create", "configmap", "kept", "--from-literal=k=v"])
        .await?
        .ok()?;

    tenant.patch_cluster("a", json!({"spec": {"state": "Asleep"}})).await?;
    tenant
        .wait_condition("a", ConditionType::Asleep, "True", READY_LIMIT)
        .await?;
    let pods = stack
        .host_kubectl(&["get", "pods", "-n", &hosted, "-o", "name"])
        .await?
        .ok()?;
    ensure!(pods.is_empty(), "asleep with {pods}");

    tenant
        .patch_cluster("a", json!({"spec": {"paused": true, "state": "Running"}}))
        .await?;
    tenant
        .wait_condition("a", ConditionType::Progressing, "False", READY_LIMIT)
        .await?;
    let replicas = [
        "get",
        "statefulset",
        "-n",
        &hosted,
        "-o",
        "jsonpath={.items[*].spec.replicas}",
    ];
    ensure!(
        stack.host_kubectl(&replicas).await?.ok()? == "0",
        "a paused Cluster was woken"
    );

    tenant.patch_cluster("a", json!({"spec": {"paused": false}})).await?;
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    let kept = stack
        .kubectl(&kubeconfig, &["get", "configmap", "kept", "-o", "jsonpath={.data.k}"])
        .await?
        .ok()?;
    ensure!(kept == "v", "{kept:?}");
    tenant.remove().await
}

#[tokio::test]
async fn manually_deleted_objects_are_created_again() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "repair").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    stack
        .kubectl(&kubeconfig, &["create", "configmap", "kept"])
        .await?
        .ok()?;
    stack
        .host_kubectl(&["delete", "secret", "-n", &tenant.name, "a-kubeconfig"])
        .await?
        .ok()?;
    stack
        .host_kubectl(&["delete", "service", "-n", &hosted, "a"])
        .await?
        .ok()?;
    stack
        .host_kubectl(&["delete", "statefulset,configmap,networkpolicy", "-n", &hosted, "--all"])
        .await?
        .ok()?;
    wait_until("the API to answer again", READY_LIMIT, || async {
        let Ok(kubeconfig) = tenant.kubeconfig("a").await else {
            return Ok(false);
        };
        Ok(stack
            .kubectl(&kubeconfig, &["get", "configmap", "kept", "--request-timeout=3s"])
            .await?
            .success())
    })
    .await?;
    // The previous pod may have answered. It ends a moment later.
    for kind in ["networkpolicy", "statefulset"] {
        wait_until(&format!("a {kind} to be created again"), READY_LIMIT, || async {
            let get = ["get", kind, "-n", &hosted, "-o", "name"];
            Ok(!stack.host_kubectl(&get).await?.ok()?.is_empty())
        })
        .await?;
    }
    tenant
        .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
        .await?;
    tenant.remove().await
}
