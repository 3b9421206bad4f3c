//! A control plane whose machine is about to go, or whose pod is to end: what is known of it, and what is done beside its
//! StatefulSet.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::reflector::ObjectRef;

use super::build::{Blueprint, Reach, hosted, stateful_set};
pub(super) use super::gate::takeover::Step;
use super::gate::takeover::{self, Cause};
use super::gate::{self, ControlPlane};
use super::identity::Identity;
use super::observe::Observed;
use super::{probe, store_api};
use crate::apply::ApplyError;
use crate::context::Context;
use crate::notice::{self, State};
use crate::tenant_api::{Access, TenantApi, Way};

/// What a server answers once it has read who may do what: until then it lets nobody do anything.
const INFORMED: &str = "/readyz/informer-sync";
/// How long that is waited for.
const LONGEST: Duration = Duration::from_secs(10);
/// The same of one that is ready, by what is known of it.
const SHORT: Duration = Duration::from_secs(3);

/// Which pods there are to be.
#[derive(Clone, Debug)]
pub(super) struct Pods {
    /// Number of the one that serves.
    pub(super) first: i32,
    /// How many.
    pub(super) replicas: i32,
    /// What is to be done for that.
    pub(super) step: Step,
    /// The pod that serves though it is to end, and what is to become of that.
    pub(super) lingering: Option<(Arc<Pod>, State)>,
}

/// Number of the pod that serves. The watch may lag behind what was applied.
pub(super) fn find_first(context: &Context, identity: &Identity, set: Option<&StatefulSet>) -> i32 {
    takeover::first_of(set).max(context.seen(&identity.id).first)
}

impl Pods {
    /// None, of a control plane that is asleep.
    pub(super) const fn none(first: i32) -> Self {
        Self {
            first,
            replicas: 0,
            step: Step::Alone,
            lingering: None,
        }
    }
}

/// Which pods there are to be of a control plane that is awake, and is to run with this number of a start.
pub(super) fn plan_pods(context: &Context, identity: &Identity, observed: &Observed, incarnation: u64) -> Pods {
    let set = observed.stateful_set.as_deref();
    let first = find_first(context, identity, set);
    let is_known = takeover::first_of(set) == first;
    let lingering = is_known
        .then(|| find_lingering(context, identity, observed, incarnation))
        .flatten();
    let cause = match (&lingering, find_state(context, observed)) {
        (Some((_, State::StandBy(_))), _) => Some(Cause::End),
        (None, Some(State::StandBy(_))) => Some(Cause::Machine),
        _ => None,
    };
    let step = match is_known {
        false => Step::Alone,
        true => takeover::plan_step(set, &observed.pods, incarnation, cause),
    };
    let (first, replicas) = match step {
        Step::Alone => (first, 1),
        Step::StandBy => (first, 2),
        Step::TakeOver | Step::Replace => (first.saturating_add(1), 1),
    };
    Pods {
        first,
        replicas,
        step,
        lingering,
    }
}

/// The pod that serves though it is to end, if another one is to take over, and what has become of that.
fn find_lingering(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
) -> Option<(Arc<Pod>, State)> {
    let set = observed.stateful_set.as_deref();
    let pod = takeover::lingering(set, &observed.pods, incarnation, Timestamp::now())?;
    let uid = pod.metadata.uid.as_deref()?;
    if context.seen(&identity.id).released.contains(uid) {
        return None;
    }
    let state = context.notices.note_end(context, pod)?;
    let is_on = matches!(state, State::StandBy(_) | State::Waiting);
    is_on.then(|| (Arc::new(pod.clone()), state))
}

/// What is to become of the control plane, if its machine is about to go.
pub(super) fn find_state(context: &Context, observed: &Observed) -> Option<State> {
    context.notices.of(find_pod(observed)?.metadata.uid.as_deref()?)
}

/// Whether another pod takes over, or is to, so that this start ends anyway.
pub(super) fn is_leaving(context: &Context, observed: &Observed) -> bool {
    matches!(find_state(context, observed), Some(State::Waiting | State::StandBy(_)))
}

/// The pod that serves, and is not to end.
fn find_pod(observed: &Observed) -> Option<&Pod> {
    let mut serving = takeover::serving(observed.stateful_set.as_deref(), &observed.pods);
    serving.find(|pod| !takeover::ends(pod))
}

/// What a control plane is doing of which a pod that is to end serves on.
pub(super) fn plan_lingering(pods: &Pods, set: &StatefulSet) -> Option<ControlPlane> {
    let (pod, _) = pods.lingering.as_ref()?;
    let serves = pod.metadata.name == Some(stateful_set::pod_name(pods.first));
    serves.then(|| gate::plan_pod(Some(set), pod))
}

/// Whether the pod that serves is to end.
pub(super) fn is_ending(observed: &Observed) -> bool {
    takeover::serving(observed.stateful_set.as_deref(), &observed.pods).any(takeover::ends)
}

/// Has those pods end at once, when they are told to, that are not among those that there are to be.
pub(super) async fn release_others(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    incarnation: u64,
    wanted: &Pods,
) {
    let lingers = wanted.lingering.is_some();
    let pods = takeover::plan_released(&observed.pods, incarnation, (wanted.first, wanted.replicas), lingers);
    release(context, identity, observed, &pods).await;
}

/// Has all pods end at once, when they are told to.
pub(super) async fn release_all(context: &Context, identity: &Identity, observed: &Observed) {
    let pods: Vec<_> = observed.pods.iter().map(AsRef::as_ref).collect();
    release(context, identity, observed, &pods).await;
}

/// Has those pods end at once that are told to.
pub(super) async fn release_ending(context: &Context, identity: &Identity, observed: &Observed) {
    let pods = observed.pods.iter().map(AsRef::as_ref);
    let pods: Vec<_> = pods.filter(|pod| takeover::ends(pod)).collect();
    release(context, identity, observed, &pods).await;
}

/// Tells each once. Who is not reached ends a while later, by itself.
async fn release(context: &Context, identity: &Identity, observed: &Observed, pods: &[&Pod]) {
    let known = context.seen(&identity.id).released;
    let started = |pod: &&&Pod| pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
    let told = pods.iter().filter(started).filter_map(|pod| {
        let uid = pod.metadata.uid.clone()?;
        let is_lost = context.losses.has(&identity.id, Some(&uid));
        (!known.contains(&uid) && !is_lost).then_some(async move { (uid, store_api::release(pod).await) })
    });
    let told = futures::future::join_all(told).await;
    if told.is_empty() {
        return;
    }
    context.note(&identity.id, |seen| {
        let is_there = |uid: &String| observed.pods.iter().any(|pod| pod.metadata.uid.as_ref() == Some(uid));
        seen.released.retain(is_there);
        for (uid, result) in told {
            match result {
                Ok(()) => {
                    seen.released.insert(uid);
                }
                // Of a pod that has ended but for its object nobody answers.
                Err(error) => {
                    tracing::info!(cluster = %identity.id, uid, error = %crate::chain(&error), "store was not released");
                }
            }
        }
    });
}

/// Sends everybody to the pod that serves from now on, as soon as it lets them in: who waited in its queue would be the first
/// to be refused, while it has not read yet who may do what. False if it has not answered in time, and there is another one
/// that does.
pub(super) async fn hand_over(
    context: &Context,
    blueprint: &Blueprint<'_>,
    observed: &Observed,
    reach: Option<&Reach>,
    (first, has_other): (i32, bool),
) -> Result<bool, ApplyError> {
    let (identity, konnectivity) = (blueprint.identity, blueprint.open().konnectivity);
    let name = stateful_set::pod_name(first);
    let mut pods = observed.pods.iter();
    let pod = pods.find(|pod| pod.metadata.name.as_ref() == Some(&name));
    let address = pod.and_then(|pod| pod.status.as_ref()?.pod_ip.as_deref()?.parse().ok());
    let longest = if has_other { SHORT } else { LONGEST };
    let answers = match (address, reach) {
        (Some(address), Some(reach)) => {
            let informed = wait_informed(probe::at(identity, address, reach));
            tokio::time::timeout(longest, informed).await.is_ok()
        }
        _ => false,
    };
    if !answers {
        tracing::warn!(cluster = %identity.id, pod = name, "pod that takes over does not answer yet");
        if has_other {
            return Ok(false);
        }
    }
    context.apis.forget_way(&identity.id, Way::Inside);
    let service = hosted::build_service(identity, konnectivity, first);
    context.clusters.apply(&context.caches.services, &service).await?;
    tracing::info!(cluster = %identity.id, pod = name, "another pod has taken over");
    Ok(true)
}

/// Remembers that the pod of this number serves: the watch may lag behind.
pub(super) fn note_first(context: &Context, identity: &Identity, first: i32) {
    context.note(&identity.id, |seen| seen.first = first);
    context.note_awake(&identity.id, |awake| awake.slow = None);
}

async fn wait_informed(access: Access) {
    let Ok(api) = TenantApi::new(&access) else {
        return;
    };
    // Whoever waits for this says how long.
    let _ = probe::wait(&api, INFORMED, Duration::MAX).await;
}

/// Whether an eviction is to wait until another pod takes over: not where none will.
pub(super) fn holds_evictions(context: &Context, observed: &Observed) -> bool {
    let state = find_state(context, observed);
    context.config.planned_takeover.per_minute > 0
        && !matches!(state, Some(State::Failed(_) | State::Nowhere))
        && find_pod(observed).is_some_and(|pod| notice::has_other(context, pod))
}

/// Has evictions wait, or not.
pub(super) async fn ensure_budget(context: &Context, identity: &Identity, holds: bool) -> Result<(), ApplyError> {
    let budgets = &context.caches.budgets;
    if holds {
        return context.clusters.apply(budgets, &hosted::build_budget(identity)).await;
    }
    let hosted = identity.hosted().to_string();
    let key = ObjectRef::<PodDisruptionBudget>::new(stateful_set::NAME).within(&hosted);
    let Some(budget) = budgets
        .get(&key)
        .filter(|budget| budget.metadata.deletion_timestamp.is_none())
    else {
        return Ok(());
    };
    let api = Api::namespaced(context.client.clone(), &hosted);
    context.clusters.delete(&api, budget.as_ref()).await
}
