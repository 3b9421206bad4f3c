//! A machine of the host is drained with a control plane on it: another pod takes over, with all that was acknowledged, and those
//! who use the cluster notice a pause.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use yoke_e2e::acknowledged::{Clients, PROBE_EVERY, Record, name_of};
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::host_node::place_of;
use yoke_e2e::stack::client;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, wait_for};

/// How long nobody may be answered, on a machine that does other things, too.
const LONGEST: Duration = Duration::from_secs(5);
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
    async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.stack.host.clone(), &self.hosted);
        Ok(pods.list(&ListParams::default()).await?.items)
    }

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

    /// The pod that serves when the former is gone.
    async fn successor(&self) -> Result<Pod> {
        wait_for("one pod, on another node", READY_LIMIT, async || {
            let mut pods = self.pods().await?;
            let seen: Vec<_> = pods
                .iter()
                .map(|pod| (pod.name_any(), place_of(pod).cloned()))
                .collect();
            ensure!(pods.len() == 1, "{seen:?}");
            let pod = pods.pop().context("no pod")?;
            let is_elsewhere = place_of(&pod).is_some_and(|place| *place != self.node.name);
            ensure!(is_elsewhere && pod.name_any() != self.pod.name_any(), "{seen:?}");
            Ok(Some(pod))
        })
        .await
    }
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
    let successor = drained.successor().await;
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
        drained.pod.name_any(),
        record.appended,
        record.counted,
        record.longest_outage()
    );
    let number = |pod: &Pod| pod.annotations().get(INCARNATION).cloned();
    ensure!(number(&successor) == number(&drained.pod), "it is another start");
    ensure!(record.longest_outage() < LONGEST, "too long");
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
