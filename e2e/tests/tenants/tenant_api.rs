//! A tenant uses its own cluster through the ingress address, with a stock kubectl.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use yoke_e2e::{Stack, TenantFixture, eventually};

/// Time for a controller to act on a busy computer.
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn stock_kubectl_works_through_the_ingress() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "api").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;

    let server = stack
        .kubectl(
            &kubeconfig,
            &["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"],
        )
        .await?;
    ensure!(
        server.ok()? == format!("https://{}", stack.ingress()?),
        "the kubeconfig does not dial the ingress"
    );

    // A Ready cluster has everything that its first pod needs, so these checks do not wait.
    let objects = stack
        .kubectl(&kubeconfig, &["get", "ns,sa", "-A", "-o", "name"])
        .await?
        .ok()?;
    for expected in ["namespace/default", "namespace/kube-system", "serviceaccount/default"] {
        ensure!(
            objects.lines().any(|line| line == expected),
            "no {expected} in {objects}"
        );
    }

    stack
        .kubectl(&kubeconfig, &["create", "configmap", "c", "--from-literal=k=v"])
        .await?
        .ok()?;
    let value = stack
        .kubectl(&kubeconfig, &["get", "configmap", "c", "-o", "jsonpath={.data.k}"])
        .await?
        .ok()?;
    ensure!(value == "v", "read back {value:?}");

    let whoami = stack
        .kubectl(
            &kubeconfig,
            &["auth", "whoami", "-o", "jsonpath={.status.userInfo.groups}"],
        )
        .await?
        .ok()?;
    ensure!(whoami.contains("yoke:cluster-admins"), "{whoami}");
    ensure!(
        !whoami.contains("system:masters"),
        "the kubeconfig is of system:masters: {whoami}"
    );
    let everything = stack
        .kubectl(&kubeconfig, &["auth", "can-i", "*", "*", "-A"])
        .await?
        .ok()?;
    ensure!(everything.trim() == "yes", "{everything}");

    let ready = stack
        .kubectl(&kubeconfig, &["get", "--raw", "/readyz?verbose"])
        .await?
        .ok()?;
    ensure!(
        ready.contains("[+]etcd ok") && ready.contains("readyz check passed"),
        "{ready}"
    );

    let root = stack.kubectl(
        &kubeconfig,
        &[
            "get",
            "configmap",
            "kube-root-ca.crt",
            "-o",
            "jsonpath={.data.ca\\.crt}",
        ],
    );
    let root = root.await?.ok()?;
    let config = std::fs::read_to_string(&kubeconfig)?;
    ensure!(root.starts_with("-----BEGIN CERTIFICATE-----") && config.contains("certificate-authority-data"));

    let version = stack.kubectl(&kubeconfig, &["version", "-o", "json"]).await?.ok()?;
    let running = cluster
        .status
        .and_then(|status| status.version)
        .context("no status.version")?;
    ensure!(
        version.contains(&format!("\"gitVersion\": \"{running}\"")),
        "{running} is not what runs: {version}"
    );
    tenant.remove().await
}

#[tokio::test]
async fn controllers_of_the_control_plane_work() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "controllers").await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    stack
        .kubectl(
            &kubeconfig,
            &[
                "create",
                "deployment",
                "d",
                "--image=registry.k8s.io/pause:3.10",
                "--replicas=2",
            ],
        )
        .await?
        .ok()?;
    let list_pods = async || stack.kubectl(&kubeconfig, &["get", "pods", "-o", "name"]).await?.ok();
    let are_two = |pods: &String| pods.lines().count() == 2;
    eventually("two pods to be created", LIMIT, list_pods, are_two).await?;
    // There is no node, so the scheduler must report the pods as unschedulable.
    let reasons = [
        "get",
        "pods",
        "-o",
        "jsonpath={.items[*].status.conditions[?(@.type=='PodScheduled')].reason}",
    ];
    let find_reasons = async || stack.kubectl(&kubeconfig, &reasons).await?.ok();
    let is_reported = |reasons: &String| reasons.contains("Unschedulable");
    eventually("the scheduler to report the pods", LIMIT, find_reasons, is_reported).await?;
    stack
        .kubectl(&kubeconfig, &["delete", "deployment", "d", "--wait=false"])
        .await?
        .ok()?;
    eventually(
        "the garbage collector to remove the pods",
        LIMIT,
        list_pods,
        String::is_empty,
    )
    .await?;
    tenant.remove().await
}
