//! The demo tenant and its cluster: creates them, or wakes the cluster if it sleeps.

use std::time::Duration;

use anyhow::{Context, Result};
use data_encoding::BASE64;
use serde_json::json;
use tokio::time::Instant;

use crate::files::write_secret;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::names::DEMO;
use crate::ssh;

const READY_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(300);

/// Result of creating the demo cluster.
#[derive(Debug)]
pub struct Demo {
    /// Time until it was Ready.
    pub took: Duration,
    /// Whether it was asleep before.
    pub woken: bool,
    /// Output of `kubectl get namespaces`.
    pub namespaces: String,
}

/// Creates the demo tenant and cluster, wakes the cluster if it sleeps, and waits until its API
/// answers through the ingress.
pub async fn create(layout: &Layout) -> Result<Demo> {
    let kubectl = Kubectl::new(layout);
    let spec = json!({"sshKeys": [{"name": "make-up", "publicKey": ssh::make_demo_key(layout).await?}]});
    let started = Instant::now();
    let tenant =
        json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant", "metadata": {"name": DEMO}, "spec": spec});
    kubectl.apply(tenant.to_string()).await?;
    // The operator creates the tenant's namespace.
    kubectl
        .until(
            "the tenant's namespace to appear",
            &["get", "namespace", DEMO],
            READY_LIMIT,
        )
        .await?;
    let cluster = json!({
        "apiVersion": "yoke.drzzl.io/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": DEMO, "namespace": DEMO},
        // Workers can join with `make worker`. They are behind NAT.
        "spec": {"konnectivity": "Enabled", "state": "Running"},
    });
    kubectl
        .apply(cluster.to_string())
        .await
        .context("creating the demo cluster")?;
    let timeout = format!("--timeout={}s", READY_LIMIT.as_secs());
    let cluster = format!("cluster.yoke.drzzl.io/{DEMO}");
    let woken = wake(&kubectl, &cluster).await.context("waking the demo cluster")?;
    let wait = ["--namespace", DEMO, "wait", "--for=condition=Ready", &cluster, &timeout];
    if let Err(error) = kubectl.command(&wait).run().await {
        let conditions =
            "--output=jsonpath={range .status.conditions[*]}  {.type}={.status} {.reason}: {.message}{'\\n'}{end}";
        let why = kubectl
            .command(&["--namespace", DEMO, "get", &cluster, conditions])
            .output()
            .await;
        return Err(error).context(format!(
            "the demo cluster is not Ready\n{}",
            why.unwrap_or_default().trim_end()
        ));
    }
    let took = started.elapsed();
    write_kubeconfig(layout, &kubectl).await?;
    Ok(Demo {
        took,
        woken,
        namespaces: list_namespaces(layout).await?,
    })
}

/// Writes the kubeconfig of the demo cluster to `.dev/demo.kubeconfig`.
async fn write_kubeconfig(layout: &Layout, kubectl: &Kubectl<'_>) -> Result<()> {
    let secret = format!("{DEMO}-kubeconfig");
    let encoded = kubectl
        .command(&[
            "--namespace",
            DEMO,
            "get",
            "secret",
            &secret,
            "--output=jsonpath={.data.value}",
        ])
        .output()
        .await
        .context("reading the demo cluster's kubeconfig")?;
    let kubeconfig = BASE64
        .decode(encoded.trim().as_bytes())
        .context("decoding the demo cluster's kubeconfig")?;
    let kubeconfig = String::from_utf8(kubeconfig).context("decoding the demo cluster's kubeconfig")?;
    write_secret(&layout.demo_kubeconfig(), &kubeconfig)
}

/// Wakes a sleeping cluster. Returns whether it was asleep.
async fn wake(kubectl: &Kubectl<'_>, cluster: &str) -> Result<bool> {
    let state = "--output=jsonpath={.status.conditions[?(@.type=='Asleep')].status}";
    let asleep = kubectl
        .command(&["--namespace", DEMO, "get", cluster, state])
        .output()
        .await?;
    if asleep.trim() != "True" {
        return Ok(false);
    }
    let end = "yoke.drzzl.io/sleep=end";
    let annotate = ["--namespace", DEMO, "annotate", "--overwrite", cluster, end];
    kubectl.command(&annotate).run().await?;
    Ok(true)
}

/// Runs `kubectl get namespaces` as the tenant, through the ingress.
async fn list_namespaces(layout: &Layout) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = Kubectl::new(layout)
            .with(
                &layout.demo_kubeconfig(),
                &["--request-timeout=5s", "get", "namespaces"],
            )
            .output()
            .await;
        match answer {
            Ok(namespaces) => return Ok(namespaces),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("listing the demo cluster's namespaces");
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}
