//! A machine of the host is drained with a control plane on it, or its pod is deleted: another pod takes over, with all that was
//! acknowledged, and those who use the cluster notice a pause.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use yoke_e2e::acknowledged::{Clients, PROBE_EVERY, Record, name_of};
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::host_node::{is_ready, place_of};
use yoke_e2e::stack::client;
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, wait_for};

/// How long nobody may be answered, on a machine that does other things, too.
const LONGEST: Duration = Duration::from_secs(5);
/// The same where nothing else is going on.
const SHORT: Duration = Duration::from_secs(2);
/// Writes before, and after, that show that all goes on.
const WRITES: u64 = 20;

const EXPECTED: [Expected; 1] = [Expected {
    says: "pod that takes over does not answer yet",
    because: "other clusters leave the node at the same time; this one's pause is measured",
}];
const INCARNATION: &str = "yoke.drzzl.io/incarnation";

/// A cluster on the second node.
struct Drained {
    stack: Stack,
    node: HostNode,
    hosted: String,
    pod: Pod,
}

impl Drained {
    /// Waits until evictions wait: while the cluster was made, there was no other node for it.
    async fn is_held(&self) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.stack.host.clone(), &self.hosted);
        wait_for("a budget that Kubernetes has seen", READY_LIMIT, async || {
            let found = budgets.list(&ListParams::default()).await?;
            let seen = found.items.iter().any(|budget| {
                let seen = budget.status.as_ref().and_then(|status| status.observed_generation);
                seen == budget.metadata.generation
            });
            Ok(seen.then_some(()))
        })
        .await
    }

    /// Drains the node of control planes, as people do.
    async fn drain(&self) -> Result<()> {
        let selector = "--pod-selector=yoke.drzzl.io/component=control-plane";
        let drain = [
            "drain",
            &self.node.name,
            selector,
            "--delete-emptydir-data",
            "--timeout=120s",
        ];
        self.stack.host_kubectl(&drain).await?.ok().map(drop)
    }
}

async fn list_pods(stack: &Stack, hosted: &str) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(stack.host.clone(), hosted);
    Ok(pods.list(&ListParams::default()).await?.items)
}

/// The pod that serves when the former is gone; it is not on this node.
async fn successor(stack: &Stack, hosted: &str, former: &Pod, left: Option<&str>) -> Result<Pod> {
    wait_for("one pod, another one", READY_LIMIT, async || {
        let mut pods = list_pods(stack, hosted).await?;
        let seen: Vec<_> = pods
            .iter()
            .map(|pod| (pod.name_any(), place_of(pod).cloned()))
            .collect();
        ensure!(pods.len() == 1, "{seen:?}");
        let pod = pods.pop().context("no pod")?;
        let is_elsewhere = place_of(&pod).is_some_and(|place| Some(place.as_str()) != left);
        ensure!(is_elsewhere && pod.name_any() != former.name_any(), "{seen:?}");
        Ok(Some(pod))
    })
    .await
}

fn incarnation_of(pod: &Pod) -> Option<&String> {
    pod.annotations().get(INCARNATION)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_drained_is_left_before_it_goes() -> Result<()> {
    let stack = Stack::connect().await?;
    let node = HostNode::second(&stack).await?;
    let tenant = TenantFixture::create(&stack, "takeover").await?.expecting(&EXPECTED);
    let (hosted, kubeconfig, pod) = node.ready_cluster(&tenant, "a").await?;
    let drained = Drained {
        stack: stack.clone(),
        node: node.clone(),
        hosted,
        pod,
    };
    let watch = HeldWatch::begin(client(&kubeconfig).await?).await?;
    let clients = Clients::begin(&kubeconfig).await?;
    watch.wait_for(&name_of(WRITES), READY_LIMIT).await?;
    drained.is_held().await?;
    let begun = Instant::now();
    let result = drained.drain().await;
    let took = begun.elapsed();
    let (hosted, pod) = (&drained.hosted, &drained.pod);
    let successor = successor(&stack, hosted, pod, Some(&node.name)).await;
    // Whatever came of it: others use the node, too.
    stack.host_kubectl(&["uncordon", &node.name]).await?.ok()?;
    result?;
    let successor = successor?;
    // What is made from here on is made under the other one.
    let made = Instant::now();
    let record = wait_and_end(clients, &watch, made).await?;
    let (gap, lists) = watch.interruptions();
    watch.check(&record)?;
    println!(
        "Drained in {took:.1?}: {} took over from {}. {} objects and {} changes of one, all as acknowledged; the longest time \
         without an answer {:.2?}, asked each {PROBE_EVERY:?}. The watch told all of them once, in order, paused {gap:.2?} and listed \
         anew {lists} times.",
        successor.name_any(),
        pod.name_any(),
        record.appended,
        record.counted,
        record.longest_outage()
    );
    ensure!(incarnation_of(&successor) == incarnation_of(pod), "it is another start");
    ensure!(record.longest_outage() < LONGEST, "too long");
    tenant.remove().await
}

/// Nobody gives notice: the pod is deleted, as an eviction that is let through does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_is_to_end_serves_until_another_one_does() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "ending").await?.expecting(&EXPECTED);
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let pod = wait_for("the kubelet to say that the pod is ready", READY_LIMIT, async || {
        Ok(list_pods(&stack, &hosted).await?.pop().filter(is_ready))
    })
    .await?;
    let watch = HeldWatch::begin(client(&kubeconfig).await?).await?;
    let clients = Clients::begin(&kubeconfig).await?;
    watch.wait_for(&name_of(WRITES), READY_LIMIT).await?;
    let begun = Instant::now();
    let name = pod.name_any();
    let delete = ["delete", "pod", &name, "-n", &hosted, "--timeout=60s"];
    stack.host_kubectl(&delete).await?.ok()?;
    let took = begun.elapsed();
    let successor = successor(&stack, &hosted, &pod, None).await?;
    let record = wait_and_end(clients, &watch, Instant::now()).await?;
    let (gap, lists) = watch.interruptions();
    watch.check(&record)?;
    println!(
        "Ended in {took:.1?}: {} took over from {name}. {} objects and {} changes of one, all as acknowledged; the longest time \
         without an answer {:.2?}, asked each {PROBE_EVERY:?}. The watch told all of them once, in order, paused {gap:.2?} and listed \
         anew {lists} times.",
        successor.name_any(),
        record.appended,
        record.counted,
        record.longest_outage()
    );
    ensure!(
        incarnation_of(&successor) == incarnation_of(&pod),
        "it is another start"
    );
    ensure!(record.longest_outage() < SHORT, "too long");
    ensure!(lists == 0, "the watch listed all anew");
    tenant.remove().await
}

/// Ends the clients when the cluster has answered for a while.
async fn wait_and_end(clients: Clients, watch: &HeldWatch, since: Instant) -> Result<Record> {
    let seen = watch.count();
    watch.wait_for(&name_of(seen + WRITES), READY_LIMIT).await?;
    let record = clients.end().await?;
    ensure!(
        record.answers.last().is_some_and(|last| *last > since),
        "nobody answers"
    );
    watch.wait_for(&name_of(record.appended - 1), READY_LIMIT).await?;
    Ok(record)
}
