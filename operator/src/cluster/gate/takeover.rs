//! The planned takeover of a control plane whose machine is about to go: which pod serves, and what is to be done next. Pure.
//!
//! ```text
//!  serves: N                       ordinals.start N, replicas 1
//!  notice ─▶ stands by: N + 1      replicas 2      its store follows, its API server serves, its controllers wait for its store
//!  it is ready ─▶ serves: N + 1    ordinals.start N + 1, replicas 1      N gets SIGTERM, and its store resigns
//! ```
//!
//! The template stays as it is, or a rolling update would end the former first.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;

use super::{incarnation_of, running_incarnation};
use crate::cluster::build::stateful_set;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// One pod serves, and none stands by.
    Alone,
    /// Another pod is to stand by.
    StandBy,
    /// The one that stands by is ready, and is to serve.
    TakeOver,
    /// It is to serve, and is not ready yet: the former ends already.
    Replace,
}

/// The number of the pod that serves.
pub fn first_of(set: Option<&StatefulSet>) -> i32 {
    let ordinals = set.and_then(|set| set.spec.as_ref()?.ordinals.as_ref()?.start);
    ordinals.unwrap_or_default()
}

/// The pods that serve, of which there may be one that ends and the one that comes after it; none that stands by, nor one that
/// has served before.
pub fn serving<'p, P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &'p [P]) -> impl Iterator<Item = &'p Pod> {
    numbered(pods, first_of(set))
}

fn numbered<P: AsRef<Pod>>(pods: &[P], number: i32) -> impl Iterator<Item = &Pod> {
    let name = stateful_set::pod_name(number);
    let pods = pods.iter().map(AsRef::as_ref);
    pods.filter(move |pod| pod.metadata.name.as_ref() == Some(&name))
}

/// What is to be done with a control plane that is to run with this number of a start; `leaves`: the machine of its pod is about
/// to go, and there is another one.
pub fn plan_step<P: AsRef<Pod>>(set: Option<&StatefulSet>, pods: &[P], incarnation: u64, leaves: bool) -> Step {
    // Another start replaces the pod, which goes elsewhere by that.
    if running_incarnation(set) != Some(incarnation) {
        return Step::Alone;
    }
    let first = first_of(set);
    let of_this_start = |pod: &&Pod| {
        pod.metadata.deletion_timestamp.is_none()
            && incarnation_of(pod.metadata.annotations.as_ref()) == Some(incarnation)
    };
    let standby = numbered(pods, first.saturating_add(1)).find(of_this_start);
    // Who was evicted does not come back before the other one serves.
    let ends = numbered(pods, first).any(|pod| pod.metadata.deletion_timestamp.is_some());
    // A class may tolerate whatever keeps others off a machine.
    let is_elsewhere = |standby| numbered(pods, first).all(|pod| place_of(pod) != place_of(standby));
    match standby {
        Some(standby) if is_ready(standby) && (ends || leaves && is_elsewhere(standby)) => Step::TakeOver,
        Some(_) if ends => Step::Replace,
        _ if leaves => Step::StandBy,
        _ => Step::Alone,
    }
}

fn place_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

/// Whether the kubelet says so.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn set(first: i32, replicas: i32) -> StatefulSet {
        serde_json::from_value(serde_json::json!({
            "spec": {"replicas": replicas, "ordinals": {"start": first}, "selector": {}, "serviceName": "a",
                "template": {"metadata": {"annotations": {"yoke.drzzl.io/incarnation": "7"}}}},
        }))
        .unwrap()
    }

    fn pod(number: i32, is_ready: bool) -> Arc<Pod> {
        let ready = if is_ready { "True" } else { "False" };
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("control-plane-{number}"), "annotations": {"yoke.drzzl.io/incarnation": "7"}},
            "spec": {"containers": [], "nodeName": format!("machine-{number}")},
            "status": {"conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": ready}]},
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn ending(mut pod: Arc<Pod>) -> Arc<Pod> {
        Arc::make_mut(&mut pod).metadata.deletion_timestamp =
            Some(serde_json::from_value("2026-11-21T00:00:10Z".into()).unwrap());
        pod
    }

    #[test]
    fn another_pod_stands_by_and_takes_over() {
        let old = || pod(3, true);
        let (next, early) = (|| pod(4, true), || pod(4, false));
        let mut foreign = next();
        Arc::make_mut(&mut foreign).metadata.annotations =
            Some([("yoke.drzzl.io/incarnation".to_owned(), "6".to_owned())].into());
        let mut beside = next();
        Arc::make_mut(&mut beside).spec = old().spec.clone();
        for (rule, incarnation, leaves, pods, expected) in [
            ("on the same machine", 7, true, vec![old(), beside], Step::StandBy),
            ("all is well", 7, false, vec![old()], Step::Alone),
            ("notice", 7, true, vec![old()], Step::StandBy),
            ("it is not ready", 7, true, vec![old(), early()], Step::StandBy),
            ("it is ready", 7, true, vec![old(), next()], Step::TakeOver),
            ("of another start", 7, true, vec![old(), foreign], Step::StandBy),
            ("it ends itself", 7, true, vec![old(), ending(next())], Step::StandBy),
            ("the notice is taken back", 7, false, vec![old(), next()], Step::Alone),
            (
                "the former is evicted",
                7,
                false,
                vec![ending(old()), early()],
                Step::Replace,
            ),
            (
                "when it is ready",
                7,
                false,
                vec![ending(old()), next()],
                Step::TakeOver,
            ),
            ("with none beside it", 7, false, vec![ending(old())], Step::Alone),
            ("another start is due", 8, true, vec![old(), next()], Step::Alone),
        ] {
            let step = plan_step(Some(&set(3, 1)), &pods, incarnation, leaves);
            assert_eq!(step, expected, "{rule}");
        }
        assert_eq!(plan_step::<Arc<Pod>>(None, &[], 7, true), Step::Alone, "there is none");
    }

    #[test]
    fn who_serves_is_told_by_the_set() {
        let pods = [pod(3, true), pod(4, true), pod(10, true)];
        let names = |first| {
            let set = set(first, 1);
            let serving = serving(Some(&set), &pods).map(|pod| pod.metadata.name.clone().unwrap());
            serving.collect::<Vec<_>>()
        };
        assert_eq!(names(4), ["control-plane-4"]);
        assert_eq!(names(1), Vec::<String>::new());
        assert_eq!(first_of(None), 0);
    }
}
