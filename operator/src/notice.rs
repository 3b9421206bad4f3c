//! Hears that machines of the host are about to go, by taints on their Nodes or since their kubelets shut them down, and has
//! control planes taken over by pods on others before that. So it does with a pod that is told to end without such a notice.
//!
//! ```text
//!  each second: Nodes with such a taint ─▶ pods on them ─plan.rs─▶ Notices ─▶ each of their Clusters is called for
//!      ─▶ another pod stands by, then takes over (cluster/gate/takeover.rs)
//!  reconciliation: the pod that serves is to end ─▶ Notices
//! ```
//!
//! See docs/adr/0023-planned-takeover.md.

pub mod plan;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::SinkExt as _;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::{NodeCondition, Pod, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use kube::runtime::reflector::ObjectRef;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};
use yoke_api::Cluster;
use yoke_runtime::Drain;

use crate::conditions;
use crate::context::Context;
pub use plan::{Notice, State};

/// Pace of looking at Nodes.
const EVERY: Duration = Duration::from_secs(1);

/// Of a Node what is read here.
#[derive(Clone, Debug, Default, Serialize, Deserialize, kube::Resource)]
#[resource(inherit = k8s_openapi::api::core::v1::Node)]
pub struct Machine {
    /// Its name.
    pub metadata: ObjectMeta,
    /// Its taints.
    #[serde(default)]
    pub spec: MachineSpec,
    /// What its kubelet says of it.
    #[serde(default)]
    pub status: MachineStatus,
}

/// What keeps pods off a machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MachineSpec {
    /// Its taints.
    #[serde(default)]
    pub taints: Vec<Taint>,
}

/// What a kubelet says of its machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MachineStatus {
    /// Of which `Ready` is read.
    #[serde(default)]
    pub conditions: Vec<NodeCondition>,
    /// Of which `cpu` is read.
    #[serde(default)]
    pub allocatable: BTreeMap<String, Quantity>,
}

/// Control planes whose machines are about to go, or whose pods are to end, by the UID of their pod.
#[derive(Debug, Default)]
pub struct Notices(Mutex<Memory>);

#[derive(Debug, Default)]
struct Memory {
    notices: HashMap<String, Notice>,
    /// When takeovers were begun.
    past: VecDeque<Instant>,
}

impl Notices {
    /// What is to become of a pod.
    pub fn of(&self, pod: &str) -> Option<State> {
        Some(self.lock().notices.get(pod)?.state)
    }

    /// Looks at all Nodes. Answers the Clusters to call for.
    pub fn look(&self, context: &Context) -> Vec<ObjectRef<Cluster>> {
        let settings = &context.config.planned_takeover;
        if settings.per_minute == 0 {
            return Vec::new();
        }
        let machines = context.caches.machines.state();
        let leaving = machines
            .iter()
            .any(|machine| plan::is_leaving(machine, &settings.taints));
        let mut memory = self.lock();
        // Nearly always.
        if !leaving && memory.notices.is_empty() {
            return Vec::new();
        }
        let pods = context.caches.pods.state();
        let before = std::mem::take(&mut memory.notices);
        let mut leavers = plan::plan_leavers(&machines, &pods, &settings.taints, &before);
        // Nothing takes over from a control plane that is left as it is.
        leavers.retain(|leaver| {
            let cluster = context.caches.clusters.get(&leaver.cluster);
            cluster.is_some_and(|cluster| conditions::is_carried_out(&cluster))
        });
        let now = Instant::now();
        memory.notices = plan::plan_notices(&before, leavers, &mut memory.past, settings.per_minute, now);
        for (pod, notice) in &memory.notices {
            if before.get(pod).is_none_or(|known| known.state != notice.state) {
                tell(context, notice);
            }
        }
        plan::plan_calls(&before, &memory.notices)
    }

    /// Notes that a control plane's pod is to end, and looks at it until it has. What is to become of it; `None` where nothing
    /// takes over.
    pub fn note_end(&self, context: &Context, pod: &Pod) -> Option<State> {
        let settings = &context.config.planned_takeover;
        if settings.per_minute == 0 {
            return None;
        }
        let machines = context.caches.machines.state();
        let leaver = plan::plan_leaver(&machines, pod, &settings.taints)?;
        let uid = leaver.pod.clone();
        let Memory { notices, past } = &mut *self.lock();
        let before = notices.get(&uid);
        let notice = plan::plan_notice(before, leaver, past, settings.per_minute, Instant::now());
        if before.is_none_or(|known| known.state != notice.state) {
            tell(context, &notice);
        }
        let state = notice.state;
        notices.insert(uid, notice);
        Some(state)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        // Each entry is whole by itself.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(context: &Context, notice: &Notice) {
    let (machine, cluster) = (&notice.machine, &notice.cluster);
    match notice.state {
        State::StandBy(_) => {
            context.metrics.began_takeover();
            let what = if notice.ends {
                "pod is to end"
            } else {
                "machine is about to go"
            };
            tracing::info!(machine, %cluster, what, "another pod is to take over");
        }
        State::Failed(_) => {
            context.metrics.failed_takeover();
            tracing::warn!(machine, %cluster, "machine is about to go, and no other pod has come to stand by in time");
        }
        State::Nowhere => tracing::warn!(machine, %cluster, "machine is about to go, and there is no other one"),
        State::Waiting => tracing::info!(machine, %cluster, "machine is about to go; others come first"),
    }
}

/// Whether a pod's control plane could run on another machine than its own, by what is known of Nodes.
pub fn has_other(context: &Context, pod: &Pod) -> bool {
    let machines = context.caches.machines.state();
    plan::has_other(&machines, pod, &context.config.planned_takeover.taints)
}

/// Looks at Nodes, and calls for Clusters whose control planes are to be taken over, until the drain starts.
pub async fn run(context: Arc<Context>, mut calls: mpsc::Sender<ObjectRef<Cluster>>, drain: Drain) {
    if context.config.planned_takeover.per_minute == 0 {
        return;
    }
    let mut tick = interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while drain.until_started(tick.tick()).await.is_some() {
        for cluster in context.notices.look(&context) {
            // An error means that the controller has ended, with the process soon to follow.
            let _ = calls.send(cluster).await;
        }
    }
}
