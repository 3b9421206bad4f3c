//! Finds out within seconds that a machine of the host is lost, and has its control planes started on others.
//!
//! ```text
//!  each second, for each machine: end of the log of one of its control planes ─NATS─▶ plan.rs ─▶ lost?
//!      ─▶ Losses ─▶ each of its Clusters is called for
//!                     ─▶ incarnation raised, template changed, pod deleted without its kubelet (cluster/apply.rs)
//! ```
//!
//! A store that has nothing to write adds a record to its log each second, so nothing is asked of control planes for this. A
//! pod that runs on, on a machine that was cut off, is fenced by its incarnation. See docs/adr/0022-detect-node-loss-by-silent-stores.md.

pub mod plan;

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

use crate::cluster::build::stateful_set;
use crate::cluster::gate::takeover;
use crate::context::Context;
use crate::notice;
use crate::tenant_api::Way;
pub use plan::Lost;
use plan::{Evidence, JURY, Member, REMEMBERED, Room, Sight, TRIAL, Verdict};

/// Pace of looking at each machine.
const EVERY: Duration = Duration::from_secs(1);
/// How long NATS may take to say where a log ends.
const ASK_LIMIT: Duration = Duration::from_millis(900);
/// How long an API may take to answer; it is over before the trial is.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// After NATS was away stores connect again, all at once: silence says nothing for so long.
const CALM: Duration = Duration::from_secs(30);
/// Logs that are looked at at once.
const AT_ONCE: usize = 64;

/// Which pods were lost lately, and machines with them.
#[derive(Debug, Default)]
pub struct Losses(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    machines: BTreeMap<String, Instant>,
    pods: HashMap<ClusterId, (Lost, Instant)>,
}

impl Losses {
    /// The pod of a Cluster that was lost lately.
    pub fn of(&self, id: &ClusterId) -> Option<Lost> {
        let memory = self.lock();
        let (lost, since) = memory.pods.get(id)?;
        (since.elapsed() < REMEMBERED).then(|| lost.clone())
    }

    /// Whether the pod of a Cluster with this UID was lost lately.
    pub fn has(&self, id: &ClusterId, uid: Option<&str>) -> bool {
        self.of(id).is_some_and(|lost| Some(lost.pod.as_str()) == uid)
    }

    /// Notes that a machine is lost, and these with it.
    fn note(&self, machine: &str, members: &[&Member], now: Instant) {
        let mut memory = self.lock();
        memory.forget(now);
        memory.machines.insert(machine.to_owned(), now);
        let machines: Vec<_> = memory.machines.keys().cloned().collect();
        for member in members {
            let lost = Lost {
                pod: member.pod.clone(),
                machines: machines.iter().cloned().collect(),
            };
            memory.pods.insert(member.id.clone(), (lost, now));
        }
    }

    /// Machines that were lost lately.
    fn machines(&self, now: Instant) -> Vec<String> {
        let mut memory = self.lock();
        memory.forget(now);
        memory.machines.keys().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        // Each entry is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn forget(&mut self, now: Instant) {
        self.machines.retain(|_, since| now.duration_since(*since) < REMEMBERED);
        self.pods
            .retain(|_, (_, since)| now.duration_since(*since) < REMEMBERED);
    }
}

/// What is known of machines.
#[derive(Debug, Default)]
struct Watch {
    sights: HashMap<String, Sight>,
    trials: JoinSet<(String, Verdict)>,
    tried: HashSet<String>,
    /// When machines were given up.
    past: VecDeque<Instant>,
    /// Until when silence says nothing.
    calm: Option<Instant>,
}

/// Looks at all machines, and calls for Clusters that have lost theirs, until the drain starts.
pub async fn run(context: Arc<Context>, mut calls: mpsc::Sender<ObjectRef<Cluster>>, drain: Drain) {
    if context.config.machine_loss.per_minute == 0 {
        return;
    }
    let mut watch = Watch::default();
    let mut connected = context.nats.connected();
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let called = tokio::select! {
            () = drain.started() => return,
            Ok(()) = connected.changed() => watch.calm_down(),
            _ = tick.tick() => watch.look(&context).await,
            Some(Ok((machine, verdict))) = watch.trials.join_next() => watch.judge(&context, machine, verdict),
        };
        for cluster in called {
            // An error means that the controller has ended, with the process soon to follow.
            let _ = calls.send(cluster).await;
        }
    }
}

impl Watch {
    /// NATS is there again. Calls for nobody.
    fn calm_down(&mut self) -> Vec<ObjectRef<Cluster>> {
        self.calm = Some(Instant::now() + CALM);
        Vec::new()
    }

    fn is_calm(&self, now: Instant) -> bool {
        self.calm.is_some_and(|until| now < until)
    }

    /// Looks at one log of each machine, and has those tried where nothing is new. Answers Clusters to call for.
    async fn look(&mut self, context: &Arc<Context>) -> Vec<ObjectRef<Cluster>> {
        let machines = list_machines(context);
        let mut asked = Vec::new();
        for (machine, members) in &machines {
            if !self.tried.contains(machine)
                && let Some(member) = plan::plan_followed(members, self.sights.get(machine))
            {
                asked.push(look_at(Arc::clone(context), machine.clone(), member.clone()));
            }
        }
        let asked: Vec<_> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.sights);
        if self.is_calm(now) {
            return Vec::new();
        }
        for (machine, id, end) in asked {
            let Some(sight) = plan::plan_sight(before.remove(&machine), &id, end, now) else {
                continue;
            };
            if plan::is_suspect(&sight, now) {
                let members = machines.get(&machine).cloned().unwrap_or_default();
                let (context, name) = (Arc::clone(context), machine.clone());
                self.tried.insert(machine.clone());
                self.trials
                    .spawn(async move { (name, try_machine(&context, members).await) });
            }
            self.sights.insert(machine, sight);
        }
        find_stranded(context, &machines)
    }

    /// Does what a trial came to. Answers Clusters to call for.
    fn judge(&mut self, context: &Context, machine: String, verdict: Verdict) -> Vec<ObjectRef<Cluster>> {
        self.tried.remove(&machine);
        let now = Instant::now();
        let is_told = verdict != Verdict::Lost || !self.is_calm(now);
        match if is_told { verdict } else { Verdict::Unknown } {
            Verdict::Alive(id, sequence) => {
                // When it grew is not known, other than that it did within the trial.
                let sight = Sight {
                    id,
                    sequence,
                    since: now,
                    grew: None,
                };
                self.sights.insert(machine, sight);
            }
            Verdict::Unknown => {
                tracing::info!(
                    machine,
                    "a control plane is silent, and its machine not known to be lost"
                );
                self.sights.remove(&machine);
            }
            Verdict::Lost if !self.is_credible(context, &machine, now) => {
                tracing::warn!(
                    machine,
                    "machine is silent, and so are all others: it is not given up before Kubernetes finds it unreachable"
                );
                self.sights.remove(&machine);
            }
            Verdict::Lost => {
                self.sights.remove(&machine);
                let members = list_machines(context).remove(&machine).unwrap_or_default();
                let is_given = members
                    .iter()
                    .all(|member| !serves(context, member) || context.losses.has(&member.id, Some(&member.pod)));
                let most = context.config.machine_loss.per_minute;
                match plan::plan_loss(&mut self.past, is_given, now, most) {
                    Room::Given => {}
                    Room::There => {
                        context.metrics.lost_machine();
                        tracing::warn!(
                            machine,
                            control_planes = members.len(),
                            "machine is lost; its control planes are started elsewhere"
                        );
                    }
                    Room::Taken => {
                        context.metrics.held_loss();
                        tracing::warn!(
                            machine,
                            most,
                            "machine is silent, and is not given up: too many were within a minute"
                        );
                        return Vec::new();
                    }
                }
                return give_up(context, &machine, &members.iter().collect::<Vec<_>>());
            }
        }
        Vec::new()
    }
}

impl Watch {
    fn is_credible(&self, context: &Context, machine: &str, now: Instant) -> bool {
        let machines = list_machines(context);
        let sights = plan::plan_others(&machines, machine).map(|name| self.sights.get(name));
        let node = context.caches.machines.get(&ObjectRef::new(machine));
        let is_unreachable = node.is_some_and(|node| notice::plan::is_unreachable(&node));
        let is_there = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(machine);
        let pods = context.caches.pods.state();
        let has_place = pods.iter().any(|pod| is_there(pod) && notice::has_other(context, pod));
        plan::is_credible(sights, (is_unreachable, has_place), now)
    }
}

/// Which control planes are on which machine. Those that do not serve say nothing of it: their logs are written elsewhere.
fn list_machines(context: &Context) -> BTreeMap<String, Vec<Member>> {
    let mut machines = plan::plan_machines(&context.caches.pods.state());
    for member in machines.values_mut().flatten() {
        let serves = serves(context, member);
        member.is_ready &= serves;
        member.is_started &= serves;
    }
    machines
}

/// Hears some of a machine's control planes, and asks their APIs.
async fn try_machine(context: &Context, members: Vec<Member>) -> Verdict {
    // Of an API that nobody has looked at yet nothing is known.
    let known = |member: &Member| member.is_ready && context.apis.known(&member.id, Way::Inside).is_some();
    let jury: Vec<_> = members.into_iter().filter(known).take(JURY).collect();
    let heard = join_all(jury.into_iter().map(|member| hear(context, member))).await;
    plan::plan_verdict(&heard.into_iter().flatten().collect::<Vec<_>>())
}

/// Hears one control plane; `None` if NATS does not say of it to begin with.
async fn hear(context: &Context, member: Member) -> Option<Evidence> {
    let first = find_end(context, &member).await?;
    let (answers, ()) = tokio::join!(answers(context, &member.id), sleep(TRIAL));
    Some(Evidence {
        last: find_end(context, &member).await,
        id: member.id,
        first,
        answers,
    })
}

async fn look_at(context: Arc<Context>, machine: String, member: Member) -> (String, ClusterId, Option<u64>) {
    let end = find_end(&context, &member).await;
    (machine, member.id, end)
}

/// Whether an API answers, on a connection of its own: the one that there is may be dead where another is not.
async fn answers(context: &Context, id: &ClusterId) -> bool {
    context.apis.forget_way(id, Way::Inside);
    let Some(api) = context.apis.known(id, Way::Inside) else {
        return false;
    };
    timeout(PROBE_LIMIT, api.check_ready())
        .await
        .is_ok_and(|ready| ready.is_ok())
}

/// Where the log of a Cluster ends, if NATS says so now.
async fn find_end(context: &Context, member: &Member) -> Option<u64> {
    let cluster = context.caches.clusters.get(&member.cluster)?;
    let account = &cluster.status.as_ref()?.storage.as_ref()?.account;
    let end = context.nats.find_log_end(&member.id, account);
    timeout(ASK_LIMIT, end).await.ok()?
}

/// Clusters whose next pod was put on a machine that is lost.
fn find_stranded(context: &Context, machines: &BTreeMap<String, Vec<Member>>) -> Vec<ObjectRef<Cluster>> {
    let lost = context.losses.machines(Instant::now());
    let mut called = Vec::new();
    for machine in lost {
        let members = machines.get(&machine).map_or(&[][..], Vec::as_slice);
        let stranded = plan::plan_stranded(members, Timestamp::now());
        if !stranded.is_empty() {
            called.extend(give_up(context, &machine, &stranded));
        }
    }
    called
}

/// Notes what is lost with a machine. Answers the Clusters to call for: what is paused stays as it is.
fn give_up(context: &Context, machine: &str, members: &[&Member]) -> Vec<ObjectRef<Cluster>> {
    let members: Vec<_> = members
        .iter()
        .copied()
        .filter(|member| serves(context, member))
        .collect();
    context.losses.note(machine, &members, Instant::now());
    let is_paused = |member: &Member| {
        let cluster = context.caches.clusters.get(&member.cluster);
        cluster.is_none_or(|cluster| cluster.spec.paused)
    };
    let members = members.iter().filter(|member| !is_paused(member));
    members.map(|member| member.cluster.clone()).collect()
}

/// Whether a pod is the one that serves: one that stood by, or ends since another one took over, is no loss.
fn serves(context: &Context, member: &Member) -> bool {
    let hosted = member.id.hosted_namespace().to_string();
    let set = ObjectRef::new(stateful_set::NAME).within(&hosted);
    let set = context.caches.stateful_sets.get(&set);
    member.name == stateful_set::pod_name(takeover::first_of(set.as_deref()))
}
