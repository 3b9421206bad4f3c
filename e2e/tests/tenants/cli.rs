//! `kubectl yoke` on the running stack.

use anyhow::{Context as _, Result, ensure};
use yoke_e2e::{Stack, TenantFixture};

/// Columns of `kubectl get clusters -o wide`.
const COLUMNS: [&str; 10] = [
    "NAME",
    "VERSION",
    "PHASE",
    "READY",
    "ENDPOINT",
    "NODES",
    "AGE",
    "KUBECONFIG",
    "CA-EXPIRES",
    "MESSAGE",
];

#[tokio::test]
async fn cluster_by_cli_from_creation_to_deletion() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "cli").await?;
    let namespace = tenant.name.as_str();
    stack
        .yoke(&["create", "cluster", "a", "-n", namespace, "--wait", "--timeout", "180s"])
        .await?
        .ok()?;

    let table = stack.yoke(&["get", "clusters", "-n", namespace]).await?.ok()?;
    ensure!(table.starts_with("NAME") && table.contains("Running"), "{table}");
    let json: serde_json::Value = serde_json::from_str(
        &stack
            .yoke(&["get", "clusters", "a", "-n", namespace, "-o", "json"])
            .await?
            .ok()?,
    )?;
    ensure!(json["metadata"]["name"] == "a", "{json}");

    let kubeconfig = stack.yoke(&["kubeconfig", "a", "-n", namespace]).await?.ok()?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &kubeconfig)?;
    stack.kubectl(file.path(), &["get", "namespaces"]).await?.ok()?;

    // kubectl itself shows the columns of the CRD.
    let get = ["get", "clusters", "a", "-n", namespace, "-o", "wide"];
    let columns = stack.host_kubectl(&get).await?.ok()?;
    let header: Vec<_> = columns.lines().next().unwrap_or_default().split_whitespace().collect();
    ensure!(header == COLUMNS, "the columns of a Cluster are {header:?}");

    let status = stack.yoke(&["status", "a", "-n", namespace]).await?.ok()?;
    ensure!(status.contains("Ready"), "{status}");
    stack
        .yoke(&["delete", "cluster", "a", "-n", namespace, "--yes", "--wait"])
        .await?
        .ok()?;
    let missing = stack.yoke(&["kubeconfig", "a", "-n", namespace]).await?;
    ensure!(
        missing.code.context("killed")? != 0 && missing.stderr.contains("error:"),
        "{}",
        missing.stderr
    );
    tenant.remove().await
}
