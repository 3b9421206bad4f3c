//! Clusters that live for a given time, or as long as a command.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use yoke_e2e::{Stack, TenantFixture};

const TTL: Duration = Duration::from_secs(60);

#[tokio::test]
async fn clusters_end_with_their_time_and_with_their_command() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "transient").await?;
    let namespace = tenant.name.as_str();
    let create = ["create", "cluster", "short", "-n", namespace, "--ttl", "1m"];
    let made = Instant::now();
    stack.yoke(&create).await?.ok()?;

    let kubectl = stack.dir.join("bin/kubectl");
    let script = format!(
        "{kubectl} create configmap c --from-literal=k=$YOKE_CLUSTER && {kubectl} get configmap c -o jsonpath={{.data.k}}; exit 7",
        kubectl = kubectl.display()
    );
    let run = ["run", "-n", namespace, "--", "/bin/sh", "-c", &script];
    let ran = stack.yoke(&run).await?;
    ensure!(
        ran.code == Some(7),
        "exit {:?}: {} {}",
        ran.code,
        ran.stdout,
        ran.stderr
    );
    let name = ran.stdout.lines().last().unwrap_or_default();
    ensure!(name.starts_with("run-"), "{}", ran.stdout);
    tenant.until_gone(name).await?;
    tenant.until_gone("short").await?;
    ensure!(made.elapsed() >= TTL, "it lived for {:?}", made.elapsed());
    tenant.remove().await
}
