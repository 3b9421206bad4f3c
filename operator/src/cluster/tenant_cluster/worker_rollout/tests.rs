mod simulation;

use serde_json::{Value, json};

use crate::cluster::tenant_cluster::worker_rollout::*;

const TARGET: &str = "v1.35.5";
const OLD: &str = "v1.35.4";

/// A Node with a kubelet, the requested version, and the worker's report. Ready unless its name
/// ends in `!`.
fn node(name: &str, kubelet: &str, requested: &str, reported: &str) -> Node {
    let mut annotations = serde_json::Map::new();
    for (key, text) in [
        (labels::KUBELET_VERSION, requested),
        (labels::KUBELET_UPGRADE, reported),
    ] {
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
    let (mut now, mut remaining) = (Instant::now(), waited);
    requests.record(nodes, now);
    while !remaining.is_zero() {
        let step = remaining.min(GAP);
        (now, remaining) = (now + step, remaining - step);
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
fn upgrades_are_requested_in_order() {
    let with_metadata = |key: &str, value: Value| {
        let mut node = serde_json::to_value(idle("a")).unwrap();
        node["metadata"][key] = value;
        build(node)
    };
    let rows: Vec<Row> = vec![
        ("no Nodes", vec![], limits(1, false), &[], Reason::AsExpected),
        (
            "all have the version",
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
            "as many as the limit allows",
            vec![idle("a"), idle("b"), idle("c")],
            limits(2, false),
            &["+a", "+b"],
            Reason::Updating,
        ),
        (
            "one upgrades",
            vec![busy("a"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one of two upgrades",
            vec![busy("a"), idle("b"), idle("c")],
            limits(2, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "one has the version, and has not finished",
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
            "the only Node is not ready",
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
            "paused while one upgrades",
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
            "one has failed, and another upgrades",
            vec![failed("a"), busy("b"), idle("c")],
            limits(9, false),
            &[],
            Reason::WorkerUpgradeFailed,
        ),
        (
            "one has failed to install another version",
            vec![node("a", OLD, "v1.35.6", "v1.35.6 Failed: x"), idle("b")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "one installs another version",
            vec![node("a", OLD, "v1.35.6", "v1.35.6 Draining"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one has a request for another version, and has not started",
            vec![node("a", TARGET, "v1.35.6", "v1.35.5 Done")],
            limits(1, false),
            &["-a"],
            Reason::AsExpected,
        ),
        (
            "one may retry, and has not seen that yet",
            vec![node("a", OLD, "", "v1.35.5 Failed: x"), idle("b")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "one may retry, and two may be unavailable",
            vec![node("a", OLD, "", "v1.35.5 Failed: x"), idle("b")],
            limits(2, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "one has failed, and another version was requested since",
            vec![node("a", OLD, "v1.35.6", "v1.35.5 Failed: x"), idle("b")],
            limits(1, false),
            &["-a"],
            Reason::WorkersPending,
        ),
        (
            "one has failed to install a version that is not requested any more",
            vec![node("a", OLD, "", "v1.35.6 Failed: x")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "one has started, and its request is withdrawn",
            vec![node("a", OLD, "", "v1.35.5 Draining"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one has the version, and has started with another one",
            vec![node("a", TARGET, "", "v1.35.6 Replacing"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one has started with another version, and this one is requested",
            vec![node("a", OLD, TARGET, "v1.35.6 Draining"), idle("b")],
            limits(1, false),
            &[],
            Reason::Updating,
        ),
        (
            "one has a request for another version, and counts as unavailable",
            vec![node("b", OLD, "v1.35.6", "v1.35.4 Done"), idle("a")],
            limits(1, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "one has a request for another version during a pause",
            vec![node("b", OLD, "v1.35.6", "v1.35.4 Done"), idle("a")],
            limits(1, true),
            &[],
            Reason::Paused,
        ),
        (
            "one has a request for another version, and is not ready",
            vec![node("b!", OLD, "v1.35.6", "v1.35.4 Done"), idle("a")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "one that is too new has a request for another version",
            vec![node("b", "v1.36.0", "v1.36.1", "v1.36.0 Done"), idle("a")],
            limits(1, false),
            &[],
            Reason::WorkersPending,
        ),
        (
            "one has the version, and counts as unavailable by another request",
            vec![node("b", TARGET, "v1.35.6", "v1.35.5 Done"), idle("a")],
            limits(1, false),
            &["-b"],
            Reason::WorkersPending,
        ),
        (
            "no yoke-worker handles the request",
            vec![node("b", OLD, "v1.35.6", ""), idle("a")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "invalid version requested",
            vec![node("a", OLD, "$(reboot)", "v1.35.4 Done")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "no yoke-worker",
            vec![node("a", OLD, "", ""), done("b")],
            limits(1, false),
            &[],
            Reason::WorkersUnmanaged,
        ),
        (
            "kubelet is newer than the API server",
            vec![node("a", "v1.36.0", "", "v1.36.0 Done")],
            limits(1, false),
            &[],
            Reason::WorkersUnmanaged,
        ),
        (
            "newer patch version is downgraded",
            vec![node("a", "v1.35.6", "", "v1.35.6 Done")],
            limits(1, false),
            &["+a"],
            Reason::Updating,
        ),
        (
            "vendor build of the version",
            vec![node("a", "v1.35.5+x", "", "v1.35.5 Done")],
            limits(1, false),
            &[],
            Reason::AsExpected,
        ),
        (
            "kubelet without a version",
            vec![node("a", "", "", "")],
            limits(1, false),
            &[],
            Reason::WorkersUnmanaged,
        ),
        (
            "Node is being deleted",
            vec![
                with_metadata("deletionTimestamp", json!("2026-11-23T07:00:00Z")),
                idle("b"),
            ],
            limits(1, false),
            &["+b"],
            Reason::Updating,
        ),
        (
            "Node is being removed as silent",
            vec![with_metadata("labels", json!({labels::REAPING: "1"})), idle("b")],
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
fn failed_node_is_named_with_the_reason() {
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
fn upgrade_that_never_finishes_has_failed() {
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
fn time_without_checks_does_not_count() {
    let nodes = [busy("a")];
    let (mut requests, started) = (UpgradeRequests::default(), Instant::now());
    requests.record(&nodes, started);
    requests.record(&nodes, started + Duration::from_hours(10));
    assert_eq!(requests.waited(&nodes[0]), GAP);
    requests.record(&[node("a", OLD, "v1.35.6", "v1.35.5 Draining")], started);
    assert_eq!(
        requests.waited(&nodes[0]),
        Duration::ZERO,
        "another version is requested"
    );
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
