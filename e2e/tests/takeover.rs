//! A node of the host is drained with a control plane on it, or the control plane's pod is deleted.
//! Another pod takes over with every acknowledged write, and clients notice only a pause.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use tokio::sync::Mutex;
use yoke_api::labels::INCARNATION;
use yoke_e2e::acknowledged::{Clients, PROBE_EVERY, Probe, longest_gap};
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::host_node::{is_ready, node_of};
use yoke_e2e::stack::client;
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, wait_for};

/// Maximum time without an answer.
const LONGEST: Duration = Duration::from_secs(2);
/// Number of objects that are created before and after the takeover, to show that writes work.
const WRITES: usize = 20;
/// Clusters that leave a node together.
const MANY: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Serializes the tests, because each measures a pause.
static ALONE: Mutex<()> = Mutex::const_new(());

const EXPECTED: [Expected; 1] = [Expected {
    says: "standby pod does not answer yet",
    because: "other clusters leave the node at the same time; this one's pause is measured",
}];

/// A cluster on the second node.
struct DrainedCluster {
    stack: Stack,
    node: HostNode,
    hosted: String,
    pod: Pod,
}

impl DrainedCluster {
    /// Waits until the PodDisruptionBudget blocks evictions. While the cluster was created, it had
    /// no other node.
    async fn wait_evictions_blocked(&self) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.stack.host.clone(), &self.hosted);
        wait_for(
            "a PodDisruptionBudget that Kubernetes has observed",
            READY_LIMIT,
            async || {
                let found = budgets.list(&ListParams::default()).await?;
                let seen = found.items.iter().any(|budget| {
                    let seen = budget.status.as_ref().and_then(|status| status.observed_generation);
                    seen == budget.metadata.generation
                });
                Ok(seen.then_some(()))
            },
        )
        .await
    }

    /// Drains the control planes from the node, like an administrator.
    async fn drain(&self) -> Result<()> {
        let selector = "--pod-selector=yoke.drzzl.io/component=control-plane";
        let drain = [
            "drain",
            &self.node.name,
            selector,
            "--delete-emptydir-data",
            "--timeout=50s",
        ];
        self.stack.host_kubectl(&drain).await?.ok().map(drop)
    }
}

async fn list_pods(stack: &Stack, hosted: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), hosted);
    Ok(pods.list(&ListParams::default()).await?.items)
}

/// Waits until exactly one other pod serves. It must not run on the node `left`.
async fn successor(stack: &Stack, hosted: &str, former: &Pod, left: Option<&str>) -> Result<Pod> {
    wait_for("exactly one other pod", READY_LIMIT, async || {
        let mut pods = list_pods(stack, hosted).await?;
        let seen: Vec<_> = pods.iter().map(|pod| (pod.name_any(), node_of(pod).cloned())).collect();
        ensure!(pods.len() == 1, "{seen:?}");
        let pod = pods.pop().context("no pod")?;
        let is_elsewhere = node_of(&pod).is_some_and(|place| Some(place.as_str()) != left);
        ensure!(is_elsewhere && pod.name_any() != former.name_any(), "{seen:?}");
        Ok(Some(pod))
    })
    .await
}

fn incarnation_of(pod: &Pod) -> Option<&String> {
    pod.annotations().get(INCARNATION)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_leaves_a_drained_node_before_its_pod_ends() -> Result<()> {
    let _alone = ALONE.lock().await;
    let stack = Stack::connect().await?;
    let node = HostNode::second(&stack).await?;
    let tenant = TenantFixture::create(&stack, "takeover").await?.expecting(&EXPECTED);
    let (hosted, kubeconfig, pod) = node.ready_cluster(&tenant, "a").await?;
    let drained = DrainedCluster {
        stack: stack.clone(),
        node: node.clone(),
        hosted,
        pod,
    };
    let watch = HeldWatch::start(client(&kubeconfig).await?).await?;
    let clients = Clients::start(&kubeconfig, 1).await?;
    watch.wait_for_more(WRITES, READY_LIMIT).await?;
    drained.wait_evictions_blocked().await?;
    let started = Instant::now();
    let result = drained.drain().await;
    let took = started.elapsed();
    let (hosted, pod) = (&drained.hosted, &drained.pod);
    let successor = successor(&stack, hosted, pod, Some(&node.name)).await;
    // Restore the node whatever the result, because other tests use it too.
    stack.host_kubectl(&["uncordon", &node.name]).await?.ok()?;
    result?;
    let noticed = conclude(pod, &successor?, clients, watch).await?;
    println!("Drained in {took:.1?}: {noticed}");
    tenant.remove().await
}

/// All control planes get notice at once. Each moves to another node before its pod ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_control_planes_leave_a_drained_node() -> Result<()> {
    let _alone = ALONE.lock().await;
    let stack = Stack::connect().await?;
    let node = HostNode::second(&stack).await?;
    let tenant = TenantFixture::create(&stack, "leaving").await?.expecting(&EXPECTED);
    let mut all = Vec::new();
    for name in MANY {
        let (hosted, kubeconfig, pod) = node.ready_cluster(&tenant, name).await?;
        let drained = DrainedCluster {
            stack: stack.clone(),
            node: node.clone(),
            hosted,
            pod,
        };
        drained.wait_evictions_blocked().await?;
        all.push((drained, kubeconfig));
    }
    let probes = try_join_all(all.iter().map(|(_, kubeconfig)| Probe::start(kubeconfig))).await?;
    let started = Instant::now();
    let result = all[0].0.drain().await;
    let took = started.elapsed();
    let mut ended = Vec::new();
    for ((drained, _), probe) in all.into_iter().zip(probes) {
        let successor = successor(&stack, &drained.hosted, &drained.pod, Some(&node.name)).await;
        ended.push((drained.pod, successor, probe.stop().await));
    }
    // Restore the node whatever the result, because other tests use it too.
    stack.host_kubectl(&["uncordon", &node.name]).await?.ok()?;
    result?;
    let mut longest = Vec::new();
    for (former, successor, answers) in ended {
        ensure!(
            incarnation_of(&successor?) == incarnation_of(&former),
            "it is another incarnation"
        );
        longest.push(longest_gap(&answers?));
    }
    longest.sort();
    let noticed = format!(
        "Drained {} in {took:.1?}: the longest times without an answer {longest:.2?}",
        longest.len()
    );
    println!("{noticed}");
    ensure!(
        longest.last().is_some_and(|longest| *longest < LONGEST),
        "the pause is too long: {noticed}"
    );
    tenant.remove().await
}

/// There is no notice: the pod is deleted, like after an admitted eviction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_pod_serves_until_another_one_does() -> Result<()> {
    let _alone = ALONE.lock().await;
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "ending").await?.expecting(&EXPECTED);
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let pod = wait_for("the kubelet to say that the pod is ready", READY_LIMIT, async || {
        Ok(list_pods(&stack, &hosted).await?.pop().filter(is_ready))
    })
    .await?;
    let watch = HeldWatch::start(client(&kubeconfig).await?).await?;
    let clients = Clients::start(&kubeconfig, 1).await?;
    watch.wait_for_more(WRITES, READY_LIMIT).await?;
    let started = Instant::now();
    let name = pod.name_any();
    let delete = ["delete", "pod", &name, "-n", &hosted, "--timeout=60s"];
    stack.host_kubectl(&delete).await?.ok()?;
    let took = started.elapsed();
    let successor = successor(&stack, &hosted, &pod, None).await?;
    let noticed = conclude(&pod, &successor, clients, watch).await?;
    println!("Ended in {took:.1?}: {noticed}");
    tenant.remove().await
}

/// Ends the clients after the watch has delivered further objects. Returns a report, and fails if
/// the pause was too long.
async fn conclude(former: &Pod, successor: &Pod, clients: Clients, watch: HeldWatch) -> Result<String> {
    let since = Instant::now();
    watch.wait_for_more(WRITES, READY_LIMIT).await?;
    let record = clients.stop().await?;
    ensure!(
        record.answers.last().is_some_and(|last| *last > since),
        "the API does not answer"
    );
    watch.wait_for_all(&record, READY_LIMIT).await?;
    let (gap, lists) = watch.interruptions();
    watch.check(&record)?;
    let noticed = format!(
        "{} took over from {}. {} objects and {} changes of one, all as acknowledged; the longest time without an answer {:.2?}, \
         probed every {PROBE_EVERY:?}. The watch delivered all of them once, in order, paused {gap:.2?} and listed again {lists} times.",
        successor.name_any(),
        former.name_any(),
        record.objects(),
        record.counted.reached,
        record.longest_outage()
    );
    ensure!(
        incarnation_of(successor) == incarnation_of(former),
        "it is another incarnation: {noticed}"
    );
    ensure!(record.longest_outage() < LONGEST, "the pause is too long: {noticed}");
    ensure!(lists == 0, "the watch had to list again: {noticed}");
    Ok(noticed)
}
