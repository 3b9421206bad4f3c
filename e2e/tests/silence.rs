//! A worker that disappears is removed after the time in its JoinToken. A worker that was silent
//! for a shorter time stays.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use yoke_e2e::ssh::{Key, ssh};
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, eventually};

/// Half of the JoinToken's time.
const HALF: Duration = Duration::from_secs(30);
/// The operator looks for silent Nodes every 25 s, three times, and deletes them after another
/// minute.
const GONE_LIMIT: Duration = Duration::from_secs(360);

#[tokio::test]
async fn a_silent_worker_is_removed_and_one_that_returns_stays() -> Result<()> {
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let tenant = TenantFixture::create_with(&stack, "silence", key.to_spec()).await?;
    let (_, kubeconfig) = tenant.ready_cluster("a").await?;
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let line = ssh(&stack, &key.path, "join a --uses 2 --reap-after 1m").await?.ok()?;
    let lost = Worker::join_with(&stack, &key.path, "a", Some(&line)).await?;
    let back = Worker::join_with(&stack, &key.path, "a", Some(&line)).await?;
    for (pod, worker) in [("on-lost", &lost), ("on-back", &back)] {
        inside.run_pod(pod, &[], Some(&worker.name)).await?;
        inside.wait_phase(pod, "Running").await?;
    }
    let find = async |what: &str| {
        let uid = "jsonpath={.metadata.uid}";
        inside.kubectl(&["get", what, "--ignore-not-found", "-o", uid]).await
    };
    let (node_of_lost, node_of_back) = (format!("node/{}", lost.name), format!("node/{}", back.name));
    let kept = [find(&node_of_back).await?, find("pod/on-back").await?];
    let silent = async || {
        let renewed = [
            "get",
            "lease",
            "-n",
            "kube-node-lease",
            &back.name,
            "-o",
            "jsonpath={.spec.renewTime}",
        ];
        let renewed: Timestamp = inside.kubectl(&renewed).await?.parse().context("a Lease's time")?;
        Duration::try_from(Timestamp::now().duration_since(renewed)).context("the Lease's time is in the future")
    };

    back.signal("STOP").await?;
    lost.kill().await?;
    let started = Instant::now();
    eventually("a worker to be silent", READY_LIMIT, silent, |time| *time >= HALF).await?;
    back.signal("CONT").await?;
    let what = "the worker to renew its Lease again";
    eventually(what, READY_LIMIT, silent, |time| *time < HALF).await?;
    for what in [&node_of_lost, "pod/on-lost"] {
        let gone = format!("{what} to be gone");
        eventually(&gone, GONE_LIMIT, async || find(what).await, String::is_empty).await?;
        println!("{what} was gone {:.0?} after the worker was killed", started.elapsed());
    }
    let told = "jsonpath={.items[*].involvedObject.name}";
    let told = ["get", "events", "-A", "--field-selector=reason=NodeSilent", "-o", told];
    let told = inside.kubectl(&told).await?;
    ensure!(told == lost.name, "NodeSilent events are about {told:?}");
    let now = [find(&node_of_back).await?, find("pod/on-back").await?];
    ensure!(now == kept, "the UIDs are {now:?}, but were {kept:?} before");
    for worker in [lost, back] {
        worker.remove().await?;
    }
    tenant.remove().await
}
