mod simulation;

use serde_json::{Value, json};

use crate::cluster::tenant_cluster::worker_rollout::*;

const TARGET: &str = "v1.35.5";
const OLD: &str = "v1.35.4";

/// A Node with a kubelet, the requested version, and the worker's report. Ready unless its name
/// ends in `!`.
fn node(name: &str, kubelet: &str, requested: &str, reported: &str) -> Node {
    let mut annotations = serde_json::Map::new();
    for (key, text) in [(labels::KUBELET_VERSION, requested), (labels::KUBELET_UPGRADE, reported)] {
        if !text.is_empty() {
            annotations.insert(key.into(), text.into());
        }
    }
    let ready = if name.ends_with('!') { "Unknown" } else { "True" };
    build(json!({
        "metadata": {"name": name, "uid": name, "annotations": annotations},
        "status": {
            "nodeInfo": info(kubelet),
            "conditions": [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready}],
        },
    }))
}

fn info(kubelet: &str) -> Value {
    json!({
        "kubeletVersion": kubelet, "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
        "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
    })
}

fn build(node: Value) -> Node {
    serde_json::from_value(node).unwrap()
}

fn idle(name: &str) -> Node {
    node(name, OLD, "", "v1.35.4 Done")
}

fn done(name: &str) -> Node {
    node(name, TARGET, "", "v1.35.5 Done")
}

fn busy(name: &str) -> Node {
    node(name, OLD, TARGET, "v1.35.5 Draining")
}

fn failed(name: &str) -> Node {
    node(name, OLD, TARGET, "v1.35.5 Failed: no room")
}

fn limits(max_unavailable: u16, paused: bool) -> UpgradeSpec {
    UpgradeSpec {
        paused,
        max_unavailable,
        ..UpgradeSpec::default()
    }
}

/// Returns the steps (`+` for a request, `-` for a withdrawal), the status and the condition.
fn decide(nodes: &[Node], spec: &UpgradeSpec) -> (Vec<String>, WorkersStatus, State) {
    decide_after(nodes, spec, Duration::ZERO)
}

fn decide_after(nodes: &[Node], spec: &UpgradeSpec, waited: Duration) -> (Vec<String>, WorkersStatus, State) {
    let mut requests = UpgradeRequests::default();
    let (mut now, mut left) = (Instant::now(), waited);
    requests.record(nodes, now);
    while !left.is_zero() {
        let step = left.min(GAP);
        (now, left) = (now + step, left - step);
        requests.record(nodes, now);
    }
    let workers: Vec<_> = nodes.iter().map(|node| Worker::of(node, &requests)).collect();
    let plan = plan_rollout(&workers, TARGET.parse().unwrap(), spec);
    let steps = plan.steps.iter().map(|step| match step {
        UpgradeStep::Request(node) => format!("+{}", node.name_any()),
        UpgradeStep::Withdraw(node) => format!("-{}", node.name_any()),
    });
    (steps.collect(), plan.status, plan.state)
}

/// Rule, Nodes, limits, expected steps, and expected reason.
type Row = (&'static str, Vec<Node>, UpgradeSpec, &'static [&'static str], Reason);

#[test]
fn workers_are_asked_in_their_turn() {
    let leaving = |key: &str, value: Value| {
        let mut node = serde_json::to_value(idle("a")).unwrap();
        node["metadata"][key] = value;
        build(node)
    };
    let rows: Vec<Row> = vec![
        ("there are none", vec![], limits(1, false), &[], Reason::AsExpected),
        (
            "all have it",
            vec![done("a"), done("b")],
            limits(1, false),
            &[],
            Reason::AsExpected,
        ),
        (
            "one at a time, by name",
            vec![idle("b"), idle("a")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "the oldest first",
            vec![
                idle("a"),
                node("b", "v1.34.9", "", "v1.34.9 Done"),
                node("c", "v1.9.0", "", "v1.9.0 Done"),
            ],
            limits(2, false),
            &["+c", "+b"],
            Reason::Updating,
        ),
        (
            "as many as may",
            vec![idle("a"), idle("b"), idle("c")],
            limits(2, false),
            &["+a", "+b"],
            Reason::Updating,
        ),
        (
            "one is at it",
            vec![busy("a"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one of two is at it",
            vec![busy("a"), idle("b"), idle("c")],
            limits(2, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "one has the version, and has not ended",
            vec![node("a", TARGET, TARGET, "v1.35.5 Replacing"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "another is not ready",
            vec![done("a!"), idle("b")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "it is not ready itself",
            vec![idle("a!")],
            limits(2, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "two may be unavailable",
            vec![done("a!"), idle("b")],
            limits(2, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "paused",
            vec![idle("a"), done("b")],
            limits(1, true),
            &[],
            Reason::Paused,
        ),
        (
            "paused while one is at it",
            vec![busy("a"), idle("b")],
            limits(9, true),
            &[],
            Reason::Updating,
        ),
        (
            "one has failed",
            vec![failed("a"), idle("b")],
            limits(9, false),
            &[],
            Reason::WorkerUpgradeFailed,
        ),
        (
            "one has failed, and another is at it",
            vec![failed("a"), busy("b"), idle("c")],
            limits(9, false),
            &[],
            Reason::WorkerUpgradeFailed,
        ),
        (
            "one has failed to come to another version",
            vec![node("a", OLD, "v1.35.6", "v1.35.6 Failed: x"), idle("b")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "one comes to another version",
            vec![node("a", OLD, "v1.35.6", "v1.35.6 Draining"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one was to come to another version, and has not begun",
            vec![node("a", TARGET, "v1.35.6", "v1.35.5 Done")],
            limits(1, false),
            &["-a"],
            Reason::AsExpected,
        ),
        (
            "one may try again, and has not seen it yet",
            vec![node("a", OLD, "", "v1.35.5 Failed: x"), idle("b")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "one may try again, and there is room for two",
            vec![node("a", OLD, "", "v1.35.5 Failed: x"), idle("b")],
            limits(2, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "one has failed, and was requested for another since",
            vec![node("a", OLD, "v1.35.6", "v1.35.5 Failed: x"), idle("b")],
            limits(1, false),
            &["-a"],
            Reason::WorkersPending,
        ),
        (
            "one may try what nobody asks for any more",
            vec![node("a", OLD, "", "v1.35.6 Failed: x")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "one has begun, and is not requested any more",
            vec![node("a", OLD, "", "v1.35.5 Draining"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one has the version, and has begun with another",
            vec![node("a", TARGET, "", "v1.35.6 Replacing"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one has begun with another, and is requested for this one",
            vec![node("a", OLD, TARGET, "v1.35.6 Draining"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one is requested for another, and has room already",
            vec![node("b", OLD, "v1.35.6", "v1.35.4 Done"), idle("a")],
            limits(1, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "one is requested for another during a pause",
            vec![node("b", OLD, "v1.35.6", "v1.35.4 Done"), idle("a")],
            limits(1, true),
            &[],
            Reason::Paused,
        ),
        (
            "one is requested for another, and not ready",
            vec![node("b!", OLD, "v1.35.6", "v1.35.4 Done"), idle("a")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "one that is too new is requested for another",
            vec![node("b", "v1.36.0", "v1.36.1", "v1.36.0 Done"), idle("a")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "one has the version, is requested for another, and takes room",
            vec![node("b", TARGET, "v1.35.6", "v1.35.5 Done"), idle("a")],
            limits(1, false),
            &["-b"],
            Reason::WorkersPending,
        ),
        (
            "nobody there does what is requested",
            vec![node("b", OLD, "v1.35.6", ""), idle("a")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "somebody wrote something",
            vec![node("a", OLD, "$(reboot)", "v1.35.4 Done")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "no worker of ours",
            vec![node("a", OLD, "", ""), done("b")],
            limits(1, false),
            &[],
            Reason::WorkersUnmanaged,
        ),
        (
            "newer than the API",
            vec![node("a", "v1.36.0", "", "v1.36.0 Done")],
            limits(1, false),
            &[],
            Reason::WorkersUnmanaged,
        ),
        (
            "a newer patch goes back",
            vec![node("a", "v1.35.6", "", "v1.35.6 Done")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "a vendor's build",
            vec![node("a", "v1.35.5+x", "", "v1.35.5 Done")],
            limits(1, false),
            &[],
            Reason::AsExpected,
        ),
        (
            "a kubelet that says nothing",
            vec![node("a", "", "", "")],
            limits(1, false),
            &[],
            Reason::WorkersUnmanaged,
        ),
        (
            "it is deleted",
            vec![leaving("deletionTimestamp", json!("2026-11-23T07:00:00Z")), idle("b")],
            limits(1, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "it is silent",
            vec![leaving("labels", json!({labels::REAPING: "1"})), idle("b")],
            limits(1, false),
            &["+b"],
            Reason::Updating,
        ),
    ];
    for (rule, nodes, spec, steps, reason) in rows {
        let (found, _, state) = decide(&nodes, &spec);
        assert_eq!(
            (found.as_slice(), state.reason),
            (steps.map_owned().as_slice(), reason),
            "{rule}"
        );
        assert_eq!(state.status, Some(reason == Reason::AsExpected), "{rule}");
    }
}

trait MapOwned {
    fn map_owned(&self) -> Vec<String>;
}

impl MapOwned for [&str] {
    fn map_owned(&self) -> Vec<String> {
        self.iter().map(|text| (*text).to_owned()).collect()
    }
}

#[test]
fn who_failed_is_named_with_why() {
    let (_, status, state) = decide(
        &[failed("a"), done("b"), node("c!", "v1.34.0", "", "v1.34.0 Done")],
        &limits(1, false),
    );
    assert_eq!(
        status,
        WorkersStatus {
            total: 3,
            updated: 1,
            unavailable: 1,
            oldest_version: Some("v1.34.0".into()),
            upgrading: vec![],
        }
    );
    assert!(
        state
            .message
            .starts_with("1 of 3 Nodes have kubelet v1.35.5. The upgrade of Node a failed: no room. "),
        "{}",
        state.message
    );
}

#[test]
fn who_never_ends_has_failed() {
    let limit = Duration::from_mins(5) + PATIENCE;
    let nodes = [busy("a"), idle("b")];
    assert_eq!(decide_after(&nodes, &limits(2, false), limit).0, ["+b"]);
    let (steps, _, state) = decide_after(&nodes, &limits(2, false), limit + Duration::from_secs(1));
    assert_eq!((steps.len(), state.reason), (0, Reason::WorkerUpgradeFailed));
    assert!(
        state.message.contains("the upgrade was requested 25 minutes ago"),
        "{}",
        state.message
    );
}

#[test]
fn time_that_nobody_looked_does_not_count() {
    let nodes = [busy("a")];
    let (mut requests, began) = (UpgradeRequests::default(), Instant::now());
    requests.record(&nodes, began);
    requests.record(&nodes, began + Duration::from_hours(10));
    assert_eq!(requests.waited(&nodes[0]), GAP);
    requests.record(&[node("a", OLD, "v1.35.6", "v1.35.5 Draining")], began);
    assert_eq!(requests.waited(&nodes[0]), Duration::ZERO, "something else is requested");
    // The request is withdrawn, and the upgrade does not end.
    let nodes = [node("a", OLD, "", "v1.35.5 Draining"), idle("b")];
    let (steps, _, state) = decide_after(&nodes, &limits(9, false), Duration::from_hours(1));
    assert_eq!((steps.len(), state.reason), (0, Reason::WorkerUpgradeFailed));
}

#[test]
fn a_status_is_bounded() {
    let nodes: Vec<_> = (0..200).map(|number| busy(&format!("n{number:03}"))).collect();
    let (_, status, state) = decide(&nodes, &limits(1, false));
    assert_eq!((status.unavailable, status.upgrading.len()), (200, NODES_IN_STATUS));
    assert!(
        state.message.ends_with("Upgrading: n000, n001, n002 and 197 more."),
        "{}",
        state.message
    );
    let long = format!("v1.35.5 Failed: {}", "a".repeat(100_000));
    let (_, _, state) = decide(&[node("a", OLD, TARGET, &long)], &limits(1, false));
    assert!(state.message.len() < 700, "{}", state.message.len());
}
