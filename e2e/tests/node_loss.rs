//! A node of the host is lost with a control plane on it. The cluster continues on another node
//! with every acknowledged write. A node that returns does no harm.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use yoke_api::labels::INCARNATION;
use yoke_e2e::acknowledged::Clients;
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::host_node::node_of;
use yoke_e2e::stack::client;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::victim::signal;
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, network, operators, wait_for, wait_until, watch_for};

/// Time within which the operator must declare the loss.
const DECLARED_SOON: Duration = Duration::from_secs(10);
/// Time within which the API must answer from another node, on an otherwise idle computer. Without
/// the operator, Kubernetes takes more than five minutes.
const BACK_SOON: Duration = Duration::from_secs(15);
/// Like [`BACK_SOON`], if the leading operator is lost too. The standby becomes the leader after 10
/// s, and then has to detect the loss.
const BACK_BY_ANOTHER: Duration = Duration::from_secs(35);
/// Timeout of that wait.
const BACK_LIMIT: Duration = Duration::from_secs(90);
/// Timeout of one attempt. The next attempt uses a new connection.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Timeout until a reconnected store knows its successor.
const FENCE_LIMIT: Duration = Duration::from_secs(60);
const FENCED: &str = "fenced by the writer of epoch";
/// Number of objects that are created before and after the loss, to show that writes work.
const WRITES: usize = 20;
/// Clusters that are lost together with another one.
const OTHERS: [&str; 7] = ["b", "c", "d", "e", "f", "g", "h"];
/// Serializes the tests, because each loses the same node.
static ALONE: Mutex<()> = Mutex::const_new(());

const EXPECTED: [Expected; 1] = [Expected {
    says: "",
    because: "a node of the host is lost",
}];

/// A cluster under test, and its node.
struct LostCluster {
    stack: Stack,
    node: HostNode,
    tenant: TenantFixture,
    control_plane: ControlPlane,
}

/// A control plane on the second node.
struct ControlPlane {
    hosted: String,
    kubeconfig: PathBuf,
    pod: Pod,
}

/// Times since the loss.
struct Recovery {
    /// Until the operator declared the loss.
    declared: Duration,
    /// Until the new control plane answered.
    answered: Duration,
}

impl LostCluster {
    /// Creates a Cluster whose control plane runs on the second node.
    async fn place(test: &str) -> Result<Self> {
        let stack = Stack::connect().await?;
        let node = HostNode::second(&stack).await?;
        let tenant = TenantFixture::create(&stack, test).await?.expecting(&EXPECTED);
        let control_plane = ControlPlane::new(&node, &tenant, "a").await?;
        Ok(Self {
            stack,
            node,
            tenant,
            control_plane,
        })
    }

    async fn pods(&self, control_plane: &ControlPlane) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.stack.host.clone(), &control_plane.hosted);
        Ok(pods.list(&ListParams::default()).await?.items)
    }

    /// Clients of the cluster that have written already.
    async fn start_clients(&self) -> Result<(HeldWatch, Clients)> {
        let watch = HeldWatch::start(client(&self.control_plane.kubeconfig).await?).await?;
        let clients = Clients::start(&self.control_plane.kubeconfig, 1).await?;
        watch.wait_for_more(WRITES, READY_LIMIT).await?;
        Ok((watch, clients))
    }

    /// Waits until the operator declares the loss, and until another pod on another node answers.
    /// Returns both times since now.
    async fn wait_recovery(&self) -> Result<Recovery> {
        let lost = Instant::now();
        let declared = async { self.wait_declared().await.map(|()| lost.elapsed()) };
        let answered = async { self.wait_answer(&self.control_plane).await.map(|()| lost.elapsed()) };
        let (declared, answered) = tokio::try_join!(declared, answered)?;
        Ok(Recovery { declared, answered })
    }

    /// Waits until the operator starts a new incarnation.
    async fn wait_declared(&self) -> Result<()> {
        let sets: Api<StatefulSet> = Api::namespaced(self.stack.host.clone(), &self.control_plane.hosted);
        let previous = self.control_plane.pod.metadata.annotations.as_ref();
        let previous = previous
            .and_then(|all| all.get(INCARNATION))
            .context("a pod without incarnation")?;
        watch_for(
            "the loss to be declared",
            BACK_LIMIT,
            sets,
            "control-plane",
            |set: Option<StatefulSet>| {
                let template = set.and_then(|set| set.spec).and_then(|spec| spec.template.metadata);
                let annotations = template.and_then(|meta| meta.annotations).unwrap_or_default();
                Ok(annotations
                    .get(INCARNATION)
                    .is_some_and(|now| now != previous)
                    .then_some(()))
            },
        )
        .await
    }

    /// Waits until another pod on another node answers.
    async fn wait_answer(&self, control_plane: &ControlPlane) -> Result<()> {
        wait_until("the API to answer from elsewhere", BACK_LIMIT, async || {
            let pods = self.pods(control_plane).await?;
            let seen: Vec<_> = pods.iter().map(|pod| (&pod.metadata.uid, node_of(pod))).collect();
            let elsewhere =
                |pod: &Pod| pod.metadata.uid != control_plane.pod.metadata.uid && node_of(pod) != Some(&self.node.name);
            ensure!(pods.len() == 1 && pods.iter().all(elsewhere), "{seen:?}");
            let api = client(&control_plane.kubeconfig).await?;
            let answer = tokio::time::timeout(ANSWER_LIMIT, api.apiserver_version()).await;
            answer.context("no answer")??;
            Ok(true)
        })
        .await
    }

    /// Opens the log of the previous store. The open file outlives its removal by the kubelet.
    fn open_log(&self) -> Result<std::fs::File> {
        let ControlPlane { hosted, pod, .. } = &self.control_plane;
        let uid = pod.metadata.uid.as_deref().context("a pod without a uid")?;
        let folder = format!("log/pods/{hosted}_control-plane-0_{uid}/kine-nats/0.log");
        let path = self.node.folder().join(folder);
        std::fs::File::open(&path).with_context(|| format!("opening {}", path.display()))
    }

    /// Waits until the process of the previous pod has exited.
    async fn wait_gone(&self, previous: u32) -> Result<()> {
        wait_until("the previous control plane to exit", READY_LIMIT, async || {
            Ok(!PathBuf::from(format!("/proc/{previous}")).exists())
        })
        .await?;
        let pods = self.pods(&self.control_plane).await?;
        ensure!(pods.len() == 1, "{} pods", pods.len());
        Ok(())
    }
}

impl ControlPlane {
    async fn new(node: &HostNode, tenant: &TenantFixture, name: &str) -> Result<Self> {
        let (hosted, kubeconfig, pod) = node.ready_cluster(tenant, name).await?;
        Ok(Self {
            hosted,
            kubeconfig,
            pod,
        })
    }
}

fn read_all(file: &mut std::fs::File) -> Result<String> {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text).context("reading a log")?;
    Ok(text)
}

/// Ends the clients after the watch has delivered further objects, and checks the times. Returns a
/// report.
async fn conclude(watch: HeldWatch, clients: Clients, recovery: &Recovery) -> Result<String> {
    let noticed = check(watch, clients, recovery).await?;
    let Recovery { declared, answered } = recovery;
    ensure!(
        *declared < DECLARED_SOON && *answered < BACK_SOON,
        "too late: {noticed}"
    );
    Ok(noticed)
}

async fn check(watch: HeldWatch, clients: Clients, recovery: &Recovery) -> Result<String> {
    watch.wait_for_more(WRITES, READY_LIMIT).await?;
    let record = clients.stop().await?;
    watch.wait_for_all(&record, READY_LIMIT).await?;
    let (gap, lists) = watch.interruptions();
    watch.check(&record)?;
    // An event that kube-apiserver's watch cache had not delivered before its end is lost.
    ensure!(lists <= 1, "the watch listed again {lists} times");
    let Recovery { declared, answered } = recovery;
    Ok(format!(
        "The loss was declared after {declared:.1?}, and the API answered from another node after {answered:.1?}.\n\
         {} objects and {} changes of one, all as acknowledged; the longest outage {:.1?}. The watch delivered all of them once, in \
         order, paused {gap:.1?} and listed again {lists} times.",
        record.objects(),
        record.counted.reached,
        record.longest_outage()
    ))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_node_that_returns_does_no_harm() -> Result<()> {
    let _alone = ALONE.lock().await;
    let lost = LostCluster::place("node-loss").await?;
    let done = disconnect_and_report(&lost).await;
    // Restore the node whatever the result, because other tests use it too.
    lost.node.reconnect().await?;
    println!("{}", done?);
    lost.tenant.remove().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_is_replaced() -> Result<()> {
    let _alone = ALONE.lock().await;
    let lost = LostCluster::place("node-kill").await?;
    let done = kill_and_report(&lost).await;
    // Restore the node whatever the result, because other tests use it too.
    lost.node.start().await?;
    println!("{}", done?);
    lost.tenant.remove().await
}

/// The operator limits concurrent starts. One Tenant's control planes start half as many at a time
/// as there are cores, plus one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_planes_that_are_lost_together_all_recover() -> Result<()> {
    let _alone = ALONE.lock().await;
    let lost = LostCluster::place("node-many").await?;
    let mut all = Vec::new();
    for name in OTHERS {
        all.push(ControlPlane::new(&lost.node, &lost.tenant, name).await?);
    }
    lost.node.kill().await?;
    let killed = Instant::now();
    let waiting = all.iter().chain([&lost.control_plane]);
    let waiting = waiting.map(async |control_plane| lost.wait_answer(control_plane).await.map(|()| killed.elapsed()));
    let answered = try_join_all(waiting).await;
    // Restore the node whatever the result, because other tests use it too.
    lost.node.start().await?;
    let mut answered = answered?;
    answered.sort();
    println!(
        "{} control planes were lost together; their APIs answered from elsewhere after {answered:.1?}",
        answered.len()
    );
    lost.tenant.remove().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leading_operator_may_be_lost_with_it() -> Result<()> {
    let _alone = ALONE.lock().await;
    let lost = LostCluster::place("node-operator").await?;
    let deployments: Api<Deployment> = Api::namespaced(lost.stack.host.clone(), operators::NAMESPACE);
    let before = deployments.get(operators::NAME).await?.spec.context("no spec")?;
    let (replicas, before) = (before.replicas, before.template.spec.context("no pods")?);
    // One replica on each node, regardless of the scheduler's preference.
    let mut apart = before.topology_spread_constraints.clone().unwrap_or_default();
    for constraint in &mut apart {
        constraint.when_unsatisfiable = "DoNotSchedule".to_owned();
    }
    let change = |replicas, selector: Value, spread: Value| {
        let pods = json!({"nodeSelector": selector, "topologySpreadConstraints": spread});
        json!({"spec": {"replicas": replicas, "template": {"spec": pods}}})
    };
    let done = async {
        lost.node.take_all_new_pods(true).await?;
        let first = operators::change(&lost.stack, &change(Some(1), Value::Null, json!(apart))).await;
        lost.node.take_all_new_pods(false).await?;
        first?;
        // The first operator to start is the leader.
        wait_until(
            "the operator on the second node to be the leader",
            BACK_LIMIT,
            async || {
                let acting = operators::acting(&lost.stack).await?;
                Ok(node_of(&acting) == Some(&lost.node.name))
            },
        )
        .await?;
        operators::change(&lost.stack, &json!({"spec": {"replicas": 2}})).await?;
        kill_with_operator_and_report(&lost).await
    };
    let done = done.await;
    // Restore the node whatever the result, because other tests use it and rely on where the
    // operator runs.
    lost.node.start().await?;
    let back = (json!(before.node_selector), json!(before.topology_spread_constraints));
    operators::change(&lost.stack, &change(replicas, back.0, back.1)).await?;
    println!("{}", done?);
    lost.tenant.remove().await
}

/// Kills the node of the leading operator, and reports the result.
async fn kill_with_operator_and_report(lost: &LostCluster) -> Result<String> {
    let (watch, clients) = lost.start_clients().await?;
    lost.node.kill().await?;
    let recovery = lost.wait_recovery().await?;
    let noticed = check(watch, clients, &recovery).await?;
    ensure!(recovery.answered < BACK_BY_ANOTHER, "too late: {noticed}");
    Ok(format!("With the leading operator: {noticed}"))
}

/// Kills the node, and reports the result.
async fn kill_and_report(lost: &LostCluster) -> Result<String> {
    let (watch, clients) = lost.start_clients().await?;
    lost.node.kill().await?;
    let recovery = lost.wait_recovery().await?;
    conclude(watch, clients, &recovery).await
}

/// Disconnects and reconnects the node, and reports the result.
async fn disconnect_and_report(lost: &LostCluster) -> Result<String> {
    let store = network::container_pid(&lost.stack, &lost.control_plane.pod, "kine-nats").await?;
    let api_server = network::container_pid(&lost.stack, &lost.control_plane.pod, "kube-apiserver").await?;
    let mut log = lost.open_log()?;
    let (watch, clients) = lost.start_clients().await?;
    lost.node.disconnect().await?;
    let recovery = lost.wait_recovery().await?;

    // The log must fence the previous store, not the kubelet, which could be faster.
    let kubelet = lost.node.kubelet()?;
    signal(kubelet, "STOP").await?;
    lost.node.reconnect().await?;
    let mended = Instant::now();
    let fenced = wait_for("the previous store to be fenced", FENCE_LIMIT, async || {
        let said = read_all(&mut log.try_clone()?)?;
        let last: Vec<_> = said.lines().rev().take(4).collect();
        ensure!(said.contains(FENCED), "its last lines are {last:?}");
        Ok(Some(mended.elapsed()))
    })
    .await;
    signal(kubelet, "CONT").await?;
    let fenced = fenced?;
    lost.wait_gone(store).await?;
    lost.wait_gone(api_server).await?;
    let ended = mended.elapsed();
    ensure!(read_all(&mut log)?.contains(FENCED), "the log was replaced");

    let noticed = conclude(watch, clients, &recovery).await?;
    Ok(format!(
        "{noticed}\nThe node was reconnected: the previous store was fenced after {fenced:.1?}, and had exited after {ended:.1?}."
    ))
}
