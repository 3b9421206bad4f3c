//! Simulates workers that do anything, in any order.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::cluster::tenant_cluster::worker_rollout::tests::*;

/// Workers upgrade, fail, vanish and recover in any order, while other clients write to their
/// Nodes. Three rules hold:
///
/// - Requests never make more workers unavailable than the limit.
/// - There are no requests after a failure or during a pause.
/// - Without failures, all workers reach the version.
#[test]
fn limit_holds_for_any_order_of_events() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let limit = random.random_range(1..4);
        let may_fail = random.random_bool(0.5);
        let mut nodes: Vec<_> = (0..random.random_range(1..9))
            .map(|number| idle(&format!("n{number}")))
            .collect();
        let mut settled = false;
        for round in 0..2000 {
            let is_calm = round > 200;
            let paused = random.random_bool(0.2);
            let before = unavailable(&nodes);
            let has_failed = nodes.iter().any(has_failed);
            let (steps, status, state) = decide(&nodes, &limits(limit, paused));
            for step in &steps {
                let (kind, name) = step.split_at(1);
                let one = nodes.iter_mut().find(|node| node.name_any() == name).unwrap();
                if kind == "-" {
                    one.annotations_mut().remove(labels::KUBELET_VERSION);
                    continue;
                }
                assert!(!paused && !has_failed, "seed {seed}: {steps:?}");
                assert_ne!(version(one), TARGET, "seed {seed}");
                assert!(
                    !report_of(one).starts_with("v1.35.5 Failed"),
                    "seed {seed}: it would not see that"
                );
                one.annotations_mut()
                    .insert(labels::KUBELET_VERSION.into(), TARGET.into());
            }
            let after = unavailable(&nodes);
            assert!(
                after <= before.max(limit.into()),
                "seed {seed}: {steps:?}: {before}, then {after}"
            );
            assert_eq!(has_failed, state.reason == Reason::WorkerUpgradeFailed, "seed {seed}");
            settled = is_calm && (status.updated == status.total || has_failed);
            if settled {
                break;
            }
            let at = random.random_range(0..nodes.len());
            if is_calm {
                set_ready(&mut nodes[at], true);
                act(&mut nodes[at], may_fail, &mut random);
            } else if random.random_bool(0.8) {
                act(&mut nodes[at], may_fail, &mut random);
            } else {
                interfere(&mut nodes, at, &mut random);
            }
        }
        assert!(settled, "seed {seed}: {nodes:?}");
    }
}

/// The next action of a worker.
fn act(one: &mut Node, may_fail: bool, random: &mut StdRng) {
    let (kubelet, now) = (version(one).to_owned(), report_of(one).to_owned());
    let requested = one.annotations().get(labels::KUBELET_VERSION).cloned();
    let (at, state) = now.split_once(' ').unwrap();
    let is_requested = requested.as_deref() == Some(at);
    let done = format!("{kubelet} Done");
    let (kubelet, requested, report) = match state {
        "Done" => match requested {
            Some(requested) if requested == kubelet => (kubelet, None, done),
            Some(requested) => (kubelet, Some(requested.clone()), format!("{requested} Draining")),
            None => return,
        },
        "Draining" if may_fail && random.random_bool(0.2) => (kubelet, requested, format!("{at} Failed: x")),
        "Draining" if is_requested => (at.to_owned(), requested, format!("{at} Replacing")),
        "Replacing" => (kubelet, None, done),
        _ if is_requested => return,
        _ => (kubelet, requested, done),
    };
    let is_ready = has_ready_condition(one.status.as_ref().unwrap());
    *one = node(
        &one.name_any(),
        &kubelet,
        requested.as_deref().unwrap_or_default(),
        &report,
    );
    set_ready(one, is_ready);
}

/// An action of another client: toggles readiness, removes the request, changes it to another
/// version, or deletes the Node.
fn interfere(nodes: &mut Vec<Node>, at: usize, random: &mut StdRng) {
    let one = &mut nodes[at];
    match random.random_range(0..4) {
        0 => {
            let is_ready = has_ready_condition(one.status.as_ref().unwrap());
            set_ready(one, !is_ready);
        }
        1 => {
            one.annotations_mut().remove(labels::KUBELET_VERSION);
        }
        2 => {
            if let Some(requested) = one.annotations_mut().get_mut(labels::KUBELET_VERSION) {
                "v1.35.6".clone_into(requested);
            }
        }
        _ if nodes.len() > 1 => {
            nodes.remove(at);
        }
        _ => {}
    }
}

fn set_ready(one: &mut Node, is_ready: bool) {
    for condition in one.status.as_mut().unwrap().conditions.iter_mut().flatten() {
        if condition.type_ == "Ready" {
            condition.status = if is_ready { "True" } else { "Unknown" }.into();
        }
    }
}

fn report_of(node: &Node) -> &str {
    node.annotations().get(labels::KUBELET_UPGRADE).unwrap()
}

fn version(node: &Node) -> &str {
    &node
        .status
        .as_ref()
        .unwrap()
        .node_info
        .as_ref()
        .unwrap()
        .kubelet_version
}

fn has_failed(node: &Node) -> bool {
    let requested = node.annotations().get(labels::KUBELET_VERSION);
    requested.is_some_and(|requested| requested == TARGET) && report_of(node).starts_with("v1.35.5 Failed")
}

/// Counts Nodes that are not ready, have a request that did not fail, or have a started upgrade.
fn unavailable(nodes: &[Node]) -> usize {
    let is_out = |node: &&Node| {
        let requested = node.annotations().get(labels::KUBELET_VERSION);
        let may_start = requested.is_some_and(|requested| !report_of(node).starts_with(&format!("{requested} Failed")));
        let has_started = report_of(node).ends_with("Draining") || report_of(node).ends_with("Replacing");
        may_start || has_started || !has_ready_condition(node.status.as_ref().unwrap())
    };
    nodes.iter().filter(is_out).count()
}
