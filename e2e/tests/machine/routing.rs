//! Server names that the ingress routes, and names that it refuses, including a deleted one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::{Stack, TenantFixture, run, wait_until};

const GONE_LIMIT: Duration = Duration::from_secs(60);

/// Opens a TLS session at the ingress, with or without a server name. Returns whether it got a
/// certificate.
async fn tls_answers(stack: &Stack, server_name: Option<&str>) -> Result<bool> {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", stack.ingress()?]);
    match server_name {
        Some(name) => command.args(["-servername", name]),
        None => command.arg("-noservername"),
    };
    let output = run(command, Duration::from_secs(15)).await?;
    Ok(output.stdout.contains("BEGIN CERTIFICATE"))
}

#[tokio::test]
async fn only_known_names_are_routed() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "sni").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let name = cluster
        .status
        .and_then(|s| s.endpoint)
        .map(|e| e.server_name)
        .context("no endpoint in status")?;
    let base = stack.base_domain()?;
    ensure!(tls_answers(&stack, Some(&name)).await?, "{name} is not routed");
    ensure!(
        tls_answers(&stack, Some(&name.to_uppercase())).await?,
        "names are compared with their case"
    );
    for wrong in [
        format!("unknown.{base}"),
        format!("x.{name}"),
        format!("a.{base}"),
        base.to_owned(),
        "example.com".to_owned(),
        "xds".to_owned(),
    ] {
        ensure!(!tls_answers(&stack, Some(&wrong)).await?, "{wrong} got a certificate");
    }
    ensure!(
        tls_answers(&stack, None).await?,
        "a pod's connection, without a server name, got no certificate"
    );

    let clusters = tenant.clusters();
    clusters.delete("a", &Default::default()).await?;
    let asked = Instant::now();
    wait_until("the name to be refused", GONE_LIMIT, || async {
        Ok(!tls_answers(&stack, Some(&name)).await?)
    })
    .await?;
    println!("no longer routed {:?} after the delete was accepted", asked.elapsed());
    stack
        .kubectl(&kubeconfig, &["get", "ns", "--request-timeout=5s"])
        .await?
        .refused()?;
    tenant.remove().await
}
