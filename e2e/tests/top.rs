//! `kubectl top` with two workers: the API server calls metrics-server through konnectivity, and
//! metrics-server calls both kubelets. This needs a stack whose workers have the image of
//! metrics-server; `make test-slow` starts one.

use std::time::Duration;

use anyhow::{Result, ensure};
use yoke_api::cluster::Konnectivity;
use yoke_api::{ClusterSpec, ConditionType};
use yoke_e2e::ssh::Key;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, wait_until};

/// Timeout until metrics-server has started and read each kubelet twice, 15 s apart.
const TOP_LIMIT: Duration = Duration::from_secs(150);

/// Whether a line of `kubectl top` starts with the name and has numbers for CPU and memory.
fn has_usage(said: &str, name: &str) -> bool {
    said.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |unit| {
            let mut numbers = words
                .iter()
                .filter_map(|word| word.strip_suffix(unit)?.parse::<u64>().ok());
            numbers.next()
        };
        words.first() == Some(&name) && number("m").is_some() && number("Mi").is_some_and(|memory| memory > 0)
    })
}

#[tokio::test]
async fn top_shows_what_two_workers_use() -> Result<()> {
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let tenant = TenantFixture::create_with(&stack, "top", key.to_spec()).await?;
    let mut spec = ClusterSpec {
        konnectivity: Konnectivity::Enabled,
        ..ClusterSpec::default()
    };
    spec.addons.metrics_server.enabled = true;
    tenant.create_cluster("a", spec).await?;
    for condition in [ConditionType::Ready, ConditionType::AddonsReady] {
        tenant.wait_condition("a", condition, "True", READY_LIMIT).await?;
    }
    let kubeconfig = tenant.kubeconfig("a").await?;
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let one = Worker::join(&stack, &key.path, "a").await?;
    let two = Worker::join(&stack, &key.path, "a").await?;
    for (pod, worker) in [("pod-one", &one), ("pod-two", &two)] {
        inside.run_pod(pod, &[], Some(&worker.name)).await?;
        inside.wait_phase(pod, "Running").await?;
    }
    for (what, names) in [
        ("nodes", [one.name.as_str(), &two.name]),
        ("pods", ["pod-one", "pod-two"]),
    ] {
        wait_until(&format!("kubectl top {what}"), TOP_LIMIT, async || {
            let said = inside.kubectl(&["top", what, "--no-headers"]).await?;
            ensure!(names.iter().all(|name| has_usage(&said, name)), "{said}");
            Ok(true)
        })
        .await?;
    }
    for worker in [one, two] {
        worker.remove().await?;
    }
    tenant.remove().await
}
