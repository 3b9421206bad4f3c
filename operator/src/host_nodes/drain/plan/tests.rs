use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;

use crate::host_nodes::drain::plan::*;

const TAINTS: [&str; 2] = ["node.kubernetes.io/unschedulable", "karpenter.sh/disrupted"];

fn taints() -> Vec<String> {
    TAINTS.map(str::to_owned).to_vec()
}

fn node(name: &str, taints: &[(&str, &str)]) -> std::sync::Arc<HostNode> {
    let taints: Vec<_> = taints
        .iter()
        .map(|(key, effect)| json!({"key": key, "effect": effect}))
        .collect();
    let value = json!({"metadata": {"name": name}, "spec": {"taints": taints, "podCIDR": "10.0.0.0/24"}});
    std::sync::Arc::new(serde_json::from_value(value).unwrap())
}

fn pod(uid: &str, node: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "control-plane-0", "uid": uid, "labels": {
            "yoke.drzzl.io/tenant": "demo", "yoke.drzzl.io/cluster": uid}},
        "spec": {"containers": [], "nodeName": node,
            "tolerations": [{"key": "spot", "operator": "Exists"}, {"key": "size", "value": "large", "effect": "NoSchedule"}]},
    }))
    .unwrap()
}

#[test]
fn a_node_drains_by_a_taint_or_a_kubelet_message() {
    let with_ready = |status: &str, message: &str| {
        let conditions = json!([{"type": "DiskPressure", "status": "False", "message": SHUTTING_DOWN},
            {"type": "Ready", "status": status, "message": message}]);
        let value = json!({"metadata": {"name": "a"}, "status": {"conditions": conditions, "images": []}});
        std::sync::Arc::new(serde_json::from_value::<HostNode>(value).unwrap())
    };
    for (rule, node, expected) in [
        ("running", node("a", &[]), false),
        ("tainted", node("a", &[(TAINTS[1], "NoSchedule")]), true),
        ("not ready by its taint", node("a", &[(AWAY[0], "NoExecute")]), false),
        ("ready", with_ready("True", "kubelet is posting ready status"), false),
        ("not ready", with_ready("False", "container runtime is down"), false),
        (
            "shut down",
            with_ready("False", "[node is shutting down, PLEG is not healthy]"),
            true,
        ),
        ("running again", with_ready("True", "node is shutting down"), false),
    ] {
        assert_eq!(is_draining(&node, &taints()), expected, "{rule}");
        assert!(!is_unreachable(&node), "{rule}");
    }
    assert!(is_unreachable(&node("a", &[(AWAY[1], "NoExecute")])));
}

#[test]
fn another_node_takes_a_pod_by_its_taints() {
    for (rule, others, expected) in [
        ("no other node", vec![], false),
        ("a node without taints", vec![node("b", &[])], true),
        ("a draining node", vec![node("b", &[(TAINTS[1], "NoSchedule")])], false),
        ("an unreachable node", vec![node("b", &[(AWAY[1], "NoExecute")])], false),
        (
            "a taint without a toleration",
            vec![node("b", &[("gpu", "NoSchedule")])],
            false,
        ),
        (
            "a taint that only prefers others",
            vec![node("b", &[("gpu", "PreferNoSchedule")])],
            true,
        ),
        ("a tolerated taint", vec![node("b", &[("spot", "NoSchedule")])], true),
        (
            "a toleration of another value",
            vec![node("b", &[("size", "NoSchedule")])],
            false,
        ),
        (
            "the second of two",
            vec![node("b", &[(TAINTS[0], "NoSchedule")]), node("c", &[])],
            true,
        ),
    ] {
        let nodes: Vec<_> = others.into_iter().chain([node("a", &[])]).collect();
        assert_eq!(has_other(&nodes, &pod("p", "a"), &taints()), expected, "{rule}");
    }
}

#[test]
fn only_pods_on_draining_nodes_are_taken_over() {
    let nodes = [
        node("a", &[(TAINTS[0], "NoSchedule")]),
        node("b", &[("gpu", "NoExecute")]),
    ];
    let mut terminating = pod("r", "a");
    terminating.metadata.deletion_timestamp = Some(serde_json::from_value("2026-11-21T00:00:00Z".into()).unwrap());
    let mut unscheduled = pod("s", "a");
    unscheduled.spec.as_mut().unwrap().node_name = None;
    let pods = [pod("q", "a"), pod("p", "a"), pod("o", "b"), terminating, unscheduled].map(Box::new);
    let none = HashMap::new();
    let draining = plan_draining(&nodes, &pods, &taints(), &none);
    let names = |draining: &[DrainingControlPlane]| {
        draining
            .iter()
            .map(|control_plane_pod| control_plane_pod.pod.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&draining), ["p", "q"]);
    let recorded = |is_terminating| {
        let cluster = ObjectRef::new("r").within("demo");
        let (node, state) = ("a".to_owned(), State::Waiting);
        HashMap::from([(
            "r".to_owned(),
            PlannedTakeover {
                cluster,
                node,
                is_terminating,
                state,
            },
        )])
    };
    let same = plan_draining(&nodes, &pods, &taints(), &recorded(false));
    assert_eq!(same, draining, "listed although it was taken over");
    let more = plan_draining(&nodes, &pods, &taints(), &recorded(true));
    assert_eq!(names(&more), ["p", "q", "r"], "a terminating pod still serves");
    assert_eq!(draining[0].cluster, ObjectRef::new("p").within("demo"));
    assert!(!draining[0].has_other, "the other node has a taint");
}

fn control_plane_pod(pod: &str, has_other: bool) -> DrainingControlPlane {
    DrainingControlPlane {
        pod: pod.into(),
        cluster: ObjectRef::new(pod).within("demo"),
        node: "a".into(),
        has_other,
        is_terminating: false,
    }
}

#[test]
fn takeovers_alternate_between_tenants() {
    let of = |pod: &str, tenant: &str| DrainingControlPlane {
        cluster: ObjectRef::new(pod).within(tenant),
        ..control_plane_pod(pod, true)
    };
    let draining = vec![
        of("a", "many"),
        of("b", "many"),
        of("c", "many"),
        of("d", "few"),
        of("e", "few"),
    ];
    let order: Vec<_> = alternate(draining)
        .into_iter()
        .map(|control_plane_pod| control_plane_pod.pod)
        .collect();
    assert_eq!(order, ["a", "d", "b", "e", "c"]);
}

#[test]
fn a_terminating_pod_needs_no_other_node() {
    let mut terminating = pod("p", "a");
    terminating.metadata.deletion_timestamp = Some(serde_json::from_value("2026-11-21T00:00:00Z".into()).unwrap());
    for (rule, node, expected) in [
        ("its node stays", node("a", &[]), true),
        ("its node drains", node("a", &[(TAINTS[1], "NoSchedule")]), false),
    ] {
        let control_plane_pod = describe_draining(&[node], &terminating, &taints()).unwrap();
        assert!(control_plane_pod.is_terminating);
        assert_eq!(control_plane_pod.has_other, expected, "{rule}");
    }
    let now = Instant::now();
    let plan_at = |before: Option<&PlannedTakeover>, is_terminating, at: u64| {
        let control_plane_pod = DrainingControlPlane {
            is_terminating,
            ..control_plane_pod("p", true)
        };
        let now = now + Duration::from_secs(at);
        plan_takeover(before, control_plane_pod, &mut VecDeque::new(), 1, now)
    };
    let first = plan_at(None, false, 0);
    assert_eq!(
        plan_at(Some(&first), true, 111).state,
        first.state,
        "a terminating pod has no timeout"
    );
    assert_eq!(
        plan_at(Some(&first), false, 111).state,
        State::Failed(now + Duration::from_secs(111))
    );
}

#[test]
fn takeovers_per_minute_are_limited() {
    let now = Instant::now();
    let mut past = VecDeque::new();
    let mut states = |before: &HashMap<String, PlannedTakeover>, at: u64, draining: &[DrainingControlPlane]| {
        let now = now + Duration::from_secs(at);
        plan_takeovers(before, draining.to_vec(), &mut past, 1, now)
    };
    let both = [control_plane_pod("p", true), control_plane_pod("q", true)];
    let first = states(&HashMap::new(), 0, &both);
    assert_eq!(first["p"].state, State::StandBy(now));
    assert_eq!(first["q"].state, State::Waiting);
    let second = states(&first, 61, &both);
    assert_eq!(second["p"].state, State::StandBy(now), "the takeover continues");
    assert_eq!(second["q"].state, State::StandBy(now + Duration::from_secs(61)));
    let third = states(&second, 111, &both);
    let failed = State::Failed(now + Duration::from_secs(111));
    assert_eq!(third["p"].state, failed, "no standby in time");
    let fourth = states(&third, 710, &both[..1]);
    assert_eq!(fourth["p"].state, failed, "retried too early");
    assert!(!fourth.contains_key("q"), "a pod that is gone is still listed");
    let fifth = states(&fourth, 711, &both[..1]);
    let again = State::StandBy(now + Duration::from_secs(711));
    assert_eq!(fifth["p"].state, again, "not retried");
    let sixth = states(&fifth, 821, &both[..1]);
    assert_eq!(sixth["p"].state, State::Failed(now + Duration::from_secs(821)));
    let alone = states(&HashMap::new(), 900, &[control_plane_pod("p", false)]);
    assert_eq!(alone["p"].state, State::Nowhere);
    let again = states(&alone, 901, &both[..1]);
    assert!(
        matches!(again["p"].state, State::StandBy(_)),
        "another node is available now"
    );
}

#[test]
fn clusters_are_requeued_while_a_takeover_runs() {
    let takeover = |pod: &str, state| {
        let cluster = ObjectRef::new(pod).within("demo");
        let node = "a".to_owned();
        (
            pod.to_owned(),
            PlannedTakeover {
                cluster,
                node,
                is_terminating: false,
                state,
            },
        )
    };
    let now = Instant::now();
    let before: HashMap<_, _> = [
        takeover("removed", State::Nowhere),
        takeover("failed", State::Failed(now)),
        takeover("fails", State::StandBy(now)),
        takeover("on", State::StandBy(now)),
        takeover("waits", State::Waiting),
    ]
    .into();
    let after: HashMap<_, _> = [
        takeover("failed", State::Failed(now)),
        takeover("fails", State::Failed(now)),
        takeover("on", State::StandBy(now)),
        takeover("waits", State::Waiting),
        takeover("new", State::Waiting),
    ]
    .into();
    let mut requeued: Vec<_> = plan_requeues(&before, &after).into_iter().map(|it| it.name).collect();
    requeued.sort();
    assert_eq!(requeued, ["fails", "new", "on", "removed"]);
}

#[test]
fn only_nodes_that_take_pods_count_for_cores() {
    let with = |cpu: &str, taints: &[(&str, &str)]| {
        let mut node = std::sync::Arc::unwrap_or_clone(node("a", taints));
        node.status.allocatable = [("cpu".to_owned(), Quantity(cpu.into()))].into();
        node
    };
    let nodes = [
        with("2", &[]),
        with("940m", &[("spot", "NoSchedule")]),
        with("16", &[("node-role.kubernetes.io/control-plane", "NoSchedule")]),
        with("32", &[(TAINTS[1], "NoSchedule")]),
        with("64", &[(AWAY[1], "NoExecute")]),
        with("many", &[]),
    ];
    let nodes = nodes.map(std::sync::Arc::new);
    let tolerations = pod("p", "a").spec.unwrap().tolerations.unwrap();
    assert_eq!(count_cores(&nodes, &taints(), &[&[], &tolerations]), 3);
    assert_eq!(count_cores(&nodes[..2], &taints(), &[&[]]), 2);
    assert_eq!(count_cores::<std::sync::Arc<HostNode>>(&[], &taints(), &[&[]]), 0);
}
