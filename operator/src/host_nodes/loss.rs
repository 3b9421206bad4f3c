//! Detects within seconds that a node of the host is lost, and starts its control planes on other
//! nodes.
//!
//! ```text
//!  each second, for each node: end of the log of one of its control planes ─NATS─▶ plan.rs ─▶ lost?
//!      ─▶ LostPods ─▶ each of its Clusters is requeued
//!                     ─▶ incarnation raised, template changed, pod deleted without its kubelet (cluster/failover)
//! ```
//!
//! An idle store adds a record to its log each second, so control planes need no extra probe for
//! this. A pod that continues to run on a partitioned node is fenced by its incarnation. See
//! docs/adr/0022-detect-node-loss-by-silent-stores.md.

mod metrics;
pub mod plan;

pub use crate::host_nodes::loss::metrics::LossMetrics;
pub use crate::model::lost_pod::LostPod;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use futures::future::join_all;
use futures::{SinkExt as _, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use yoke_api::{Cluster, ClusterId};
use yoke_runtime::Drain;

use crate::host_api::Host;
use crate::host_nodes::budget::LossBudget;
use crate::host_nodes::drain;
use crate::host_nodes::loss::plan::{CONFIRM_FOR, Conclusion, Member, Observation, REMEMBERED, SAMPLE_SIZE, Sample};
use crate::model::control_plane::{self, NAME};
use crate::nats::Nats;
use crate::tenant_client::{TenantApis, Way};

/// Interval of checks of each node.
const EVERY: Duration = Duration::from_secs(1);
/// Timeout of a request to NATS for the end of a log.
const REQUEST_LIMIT: Duration = Duration::from_millis(900);
/// Timeout of a probe of an API. It is shorter than [`CONFIRM_FOR`].
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// Time after a NATS reconnect in which silence means nothing: all stores reconnect at once.
const SILENCE_IGNORED: Duration = Duration::from_secs(30);
/// Logs checked concurrently.
const AT_ONCE: usize = 64;

/// Everything that the detection of lost nodes works with.
#[derive(Debug)]
pub struct Context {
    /// The host.
    pub host: Arc<Host>,
    /// The NATS server of all stores.
    pub nats: Nats,
    /// Clients of the tenants' APIs.
    pub apis: Arc<TenantApis>,
    /// Pods that were lost with their nodes.
    pub losses: Arc<LostPods>,
    /// Metrics.
    pub metrics: LossMetrics,
}

/// Pods that were lost recently, and the lost nodes.
#[derive(Debug, Default)]
pub struct LostPods(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    nodes: BTreeMap<String, Instant>,
    pods: HashMap<ClusterId, (LostPod, Instant)>,
}

impl LostPods {
    /// Returns the pod of a Cluster that was lost recently.
    pub fn of(&self, id: &ClusterId) -> Option<LostPod> {
        let memory = self.lock();
        let (lost, since) = memory.pods.get(id)?;
        (since.elapsed() < REMEMBERED).then(|| lost.clone())
    }

    /// Returns whether the pod of a Cluster with this UID was lost recently.
    pub fn has(&self, id: &ClusterId, uid: Option<&str>) -> bool {
        self.of(id).is_some_and(|lost| Some(lost.pod.as_str()) == uid)
    }

    /// Records that a node is lost, with these control planes.
    fn record(&self, node: &str, members: &[&Member], now: Instant) {
        let mut memory = self.lock();
        memory.forget(now);
        memory.nodes.insert(node.to_owned(), now);
        let nodes: Vec<_> = memory.nodes.keys().cloned().collect();
        for member in members {
            let lost = LostPod {
                pod: member.pod.clone(),
                nodes: nodes.iter().cloned().collect(),
            };
            memory.pods.insert(member.id.clone(), (lost, now));
        }
    }

    /// Returns the nodes that were lost recently.
    fn nodes(&self, now: Instant) -> Vec<String> {
        let mut memory = self.lock();
        memory.forget(now);
        memory.nodes.keys().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        // Every change is one insert or removal, so each entry is complete after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn forget(&mut self, now: Instant) {
        self.nodes.retain(|_, since| now.duration_since(*since) < REMEMBERED);
        self.pods
            .retain(|_, (_, since)| now.duration_since(*since) < REMEMBERED);
    }
}

/// Observations of all nodes.
#[derive(Debug, Default)]
struct Watch {
    observations: HashMap<String, Observation>,
    trials: JoinSet<(String, Conclusion)>,
    tried: HashSet<String>,
    /// When nodes were given up as lost.
    past: VecDeque<Instant>,
    /// Time until which silence means nothing.
    silence_ignored_until: Option<Instant>,
}

/// Checks all nodes, and requeues Clusters whose node is lost, until the drain starts.
pub async fn run(context: Arc<Context>, mut requeues: mpsc::Sender<ObjectRef<Cluster>>, drain: Drain) {
    if context.host.config.machine_loss.per_minute == 0 {
        return;
    }
    let mut watch = Watch::default();
    let mut connected = context.nats.connected();
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let requeued = tokio::select! {
            () = drain.started() => return,
            Ok(()) = connected.changed() => watch.ignore_silence(),
            _ = tick.tick() => watch.check(&context).await,
            Some(Ok((node, conclusion))) = watch.trials.join_next() => watch.act_on(&context, node, conclusion),
        };
        for cluster in requeued {
            // An error means that the controller has ended. The process ends soon after.
            let _ = requeues.send(cluster).await;
        }
    }
}

impl Watch {
    /// Ignores silence for a while after a NATS reconnect. Requeues no Cluster.
    fn ignore_silence(&mut self) -> Vec<ObjectRef<Cluster>> {
        self.silence_ignored_until = Some(Instant::now() + SILENCE_IGNORED);
        Vec::new()
    }

    fn ignores_silence(&self, now: Instant) -> bool {
        self.silence_ignored_until.is_some_and(|until| now < until)
    }

    /// Checks one log of each node, and starts trials of silent nodes. Returns the Clusters to
    /// requeue.
    async fn check(&mut self, context: &Arc<Context>) -> Vec<ObjectRef<Cluster>> {
        let nodes = list_nodes(context);
        let mut requests = Vec::new();
        for (node, members) in &nodes {
            if !self.tried.contains(node)
                && let Some(member) = plan::plan_followed(members, self.observations.get(node))
            {
                requests.push(find_node_end(Arc::clone(context), node.clone(), member.clone()));
            }
        }
        let ends: Vec<_> = stream::iter(requests).buffer_unordered(AT_ONCE).collect().await;
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.observations);
        if self.ignores_silence(now) {
            return Vec::new();
        }
        for (node, id, end) in ends {
            let Some(observation) = plan::plan_observation(before.remove(&node), &id, end, now) else {
                continue;
            };
            if plan::is_suspect(&observation, now) {
                let members = nodes.get(&node).cloned().unwrap_or_default();
                let (context, name) = (Arc::clone(context), node.clone());
                self.tried.insert(node.clone());
                self.trials
                    .spawn(async move { (name, try_node(&context, members).await) });
            }
            self.observations.insert(node, observation);
        }
        find_stranded(context, &nodes)
    }

    /// Acts on the result of a trial. Returns the Clusters to requeue.
    fn act_on(&mut self, context: &Context, node: String, conclusion: Conclusion) -> Vec<ObjectRef<Cluster>> {
        self.tried.remove(&node);
        let now = Instant::now();
        let is_reliable = conclusion != Conclusion::Lost || !self.ignores_silence(now);
        match if is_reliable { conclusion } else { Conclusion::Unknown } {
            Conclusion::Alive(id, sequence) => {
                // The exact time of growth is unknown, only that it was within the trial.
                let observation = Observation {
                    id,
                    sequence,
                    since: now,
                    grew: None,
                };
                self.observations.insert(node, observation);
            }
            Conclusion::Unknown => {
                tracing::info!(
                    node,
                    "a control plane is unresponsive, but its node is not known to be lost"
                );
                self.observations.remove(&node);
            }
            Conclusion::Lost if !self.is_credible(context, &node, now) => {
                tracing::warn!(
                    node,
                    "node is unresponsive, but so are all others; waiting for Kubernetes to mark it unreachable"
                );
                self.observations.remove(&node);
            }
            Conclusion::Lost => return self.record_lost(context, &node, now),
        }
        Vec::new()
    }

    /// Gives up a lost node, unless too many were given up within a minute. Returns the Clusters to
    /// requeue.
    fn record_lost(&mut self, context: &Context, node: &str, now: Instant) -> Vec<ObjectRef<Cluster>> {
        self.observations.remove(node);
        let members = list_nodes(context).remove(node).unwrap_or_default();
        let is_recorded = members
            .iter()
            .all(|member| !serves(context, member) || context.losses.has(&member.id, Some(&member.pod)));
        let most = context.host.config.machine_loss.per_minute;
        match plan::take_loss(&mut self.past, is_recorded, now, most) {
            LossBudget::Recorded => {}
            LossBudget::Available => {
                context.metrics.count_lost_node();
                tracing::warn!(
                    node,
                    control_planes = members.len(),
                    "node is lost; starting its control planes on other nodes"
                );
            }
            LossBudget::Exhausted => {
                context.metrics.count_limited_loss();
                tracing::warn!(
                    node,
                    most,
                    "node is unresponsive, but the limit of lost nodes per minute is reached (machineLoss.perMinute)"
                );
                return Vec::new();
            }
        }
        record_loss(context, node, &members.iter().collect::<Vec<_>>())
    }

    fn is_credible(&self, context: &Context, node: &str, now: Instant) -> bool {
        let nodes = list_nodes(context);
        let observations = plan::plan_other_nodes(&nodes, node).map(|name| self.observations.get(name));
        let known = context.host.caches.nodes.get(&ObjectRef::new(node));
        let is_unreachable = known.is_some_and(|known| drain::plan::is_unreachable(&known));
        let is_there = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
        let pods = context.host.caches.pods.state();
        let has_other_node = pods
            .iter()
            .any(|pod| is_there(pod) && drain::has_other(&context.host, pod));
        plan::is_credible(observations, is_unreachable, has_other_node, now)
    }
}

/// Lists the control planes by node. Only pods that serve count: the logs of others are written
/// elsewhere.
fn list_nodes(context: &Context) -> BTreeMap<String, Vec<Member>> {
    let mut nodes = plan::plan_nodes(&context.host.caches.pods.state());
    for member in nodes.values_mut().flatten() {
        let serves = serves(context, member);
        member.is_ready &= serves;
        member.is_started &= serves;
    }
    nodes
}

/// Checks several control planes of a node: their logs, and their APIs.
async fn try_node(context: &Context, members: Vec<Member>) -> Conclusion {
    // An API without a client has never been probed, so it proves nothing.
    let known = |member: &Member| member.is_ready && context.apis.known(&member.id, Way::Inside).is_some();
    let sampled: Vec<_> = members.into_iter().filter(known).take(SAMPLE_SIZE).collect();
    let samples = join_all(sampled.into_iter().map(|member| sample(context, member))).await;
    plan::plan_conclusion(&samples.into_iter().flatten().collect::<Vec<_>>())
}

/// Checks one control plane. Returns `None` if NATS does not answer the first request.
async fn sample(context: &Context, member: Member) -> Option<Sample> {
    let first = find_end(context, &member).await?;
    let (answers, ()) = tokio::join!(answers(context, &member.id), sleep(CONFIRM_FOR));
    Some(Sample {
        last: find_end(context, &member).await,
        id: member.id,
        first,
        answers,
    })
}

async fn find_node_end(context: Arc<Context>, node: String, member: Member) -> (String, ClusterId, Option<u64>) {
    let end = find_end(&context, &member).await;
    (node, member.id, end)
}

/// Probes an API on a new connection: the existing connection may be dead while a new one works.
async fn answers(context: &Context, id: &ClusterId) -> bool {
    context.apis.forget_way(id, Way::Inside);
    let Some(api) = context.apis.known(id, Way::Inside) else {
        return false;
    };
    timeout(PROBE_LIMIT, api.check_ready())
        .await
        .is_ok_and(|ready| ready.is_ok())
}

/// Returns the end of a Cluster's log, if NATS answers.
async fn find_end(context: &Context, member: &Member) -> Option<u64> {
    let cluster = context.host.caches.clusters.get(&member.cluster)?;
    let account = &cluster.status.as_ref()?.storage.as_ref()?.account;
    let end = context.nats.find_log_end(&member.id, account);
    timeout(REQUEST_LIMIT, end).await.ok()?
}

/// Returns the Clusters whose next pod was scheduled on a lost node.
fn find_stranded(context: &Context, nodes: &BTreeMap<String, Vec<Member>>) -> Vec<ObjectRef<Cluster>> {
    let lost = context.losses.nodes(Instant::now());
    let mut requeued = Vec::new();
    for node in lost {
        let members = nodes.get(&node).map_or(&[][..], Vec::as_slice);
        let stranded = plan::plan_stranded(members, Timestamp::now());
        if !stranded.is_empty() {
            requeued.extend(record_loss(context, &node, &stranded));
        }
    }
    requeued
}

/// Records the control planes that are lost with a node. Returns the Clusters to requeue; paused
/// ones are left as they are.
fn record_loss(context: &Context, node: &str, members: &[&Member]) -> Vec<ObjectRef<Cluster>> {
    let members: Vec<_> = members
        .iter()
        .copied()
        .filter(|member| serves(context, member))
        .collect();
    context.losses.record(node, &members, Instant::now());
    let is_paused = |member: &Member| {
        let cluster = context.host.caches.clusters.get(&member.cluster);
        cluster.is_none_or(|cluster| cluster.spec.paused)
    };
    let members = members.iter().filter(|member| !is_paused(member));
    members.map(|member| member.cluster.clone()).collect()
}

/// Returns whether a pod is the one that serves. A standby pod, and one that ends after a takeover,
/// are no loss.
fn serves(context: &Context, member: &Member) -> bool {
    let hosted = member.id.hosted_namespace().to_string();
    let set = ObjectRef::new(NAME).within(&hosted);
    let set = context.host.caches.stateful_sets.get(&set);
    member.name == control_plane::pod_name(control_plane::first_of(set.as_deref()))
}
