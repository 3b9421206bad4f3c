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
fn a_machine_leaves_by_a_taint_or_by_its_kubelets_word() {
    let said = |status: &str, message: &str| {
        let conditions = json!([{"type": "DiskPressure", "status": "False", "message": SHUTTING_DOWN},
            {"type": "Ready", "status": status, "message": message}]);
        let value = json!({"metadata": {"name": "a"}, "status": {"conditions": conditions, "images": []}});
        std::sync::Arc::new(serde_json::from_value::<HostNode>(value).unwrap())
    };
    for (rule, node, expected) in [
        ("at work", node("a", &[]), false),
        ("tainted", node("a", &[(TAINTS[1], "NoSchedule")]), true),
        ("not at work", node("a", &[(AWAY[0], "NoExecute")]), false),
        ("ready", said("True", "kubelet is posting ready status"), false),
        ("not ready", said("False", "container runtime is down"), false),
        (
            "shut down",
            said("False", "[node is shutting down, PLEG is not healthy]"),
            true,
        ),
        ("up again", said("True", "node is shutting down"), false),
    ] {
        assert_eq!(is_leaving(&node, &taints()), expected, "{rule}");
        assert!(!is_unreachable(&node), "{rule}");
    }
    assert!(is_unreachable(&node("a", &[(AWAY[1], "NoExecute")])));
}

#[test]
fn another_machine_takes_a_pod_by_its_taints() {
    for (rule, others, expected) in [
        ("none", vec![], false),
        ("one", vec![node("b", &[])], true),
        (
            "one that is about to go",
            vec![node("b", &[(TAINTS[1], "NoSchedule")])],
            false,
        ),
        (
            "one that is not at work",
            vec![node("b", &[(AWAY[1], "NoExecute")])],
            false,
        ),
        ("one for others", vec![node("b", &[("gpu", "NoSchedule")])], false),
        (
            "one rather for others",
            vec![node("b", &[("gpu", "PreferNoSchedule")])],
            true,
        ),
        (
            "one that it bears with",
            vec![node("b", &[("spot", "NoSchedule")])],
            true,
        ),
        ("another value", vec![node("b", &[("size", "NoSchedule")])], false),
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
fn who_leaves_is_on_a_machine_with_a_notice() {
    let nodes = [
        node("a", &[(TAINTS[0], "NoSchedule")]),
        node("b", &[("gpu", "NoExecute")]),
    ];
    let mut ending = pod("r", "a");
    ending.metadata.deletion_timestamp = Some(serde_json::from_value("2026-11-21T00:00:00Z".into()).unwrap());
    let mut unplaced = pod("s", "a");
    unplaced.spec.as_mut().unwrap().node_name = None;
    let pods = [pod("q", "a"), pod("p", "a"), pod("o", "b"), ending, unplaced].map(Box::new);
    let none = HashMap::new();
    let leavers = plan_leavers(&nodes, &pods, &taints(), &none);
    let names = |leavers: &[DrainingControlPlane]| leavers.iter().map(|leaver| leaver.pod.clone()).collect::<Vec<_>>();
    assert_eq!(names(&leavers), ["p", "q"]);
    let noted = |ends| {
        let cluster = ObjectRef::new("r").within("demo");
        let (node, state) = ("a".to_owned(), State::Waiting);
        HashMap::from([(
            "r".to_owned(),
            Notice {
                cluster,
                node,
                ends,
                state,
            },
        )])
    };
    let same = plan_leavers(&nodes, &pods, &taints(), &noted(false));
    assert_eq!(same, leavers, "another one has taken over");
    let more = plan_leavers(&nodes, &pods, &taints(), &noted(true));
    assert_eq!(names(&more), ["p", "q", "r"], "it serves on");
    assert_eq!(leavers[0].cluster, ObjectRef::new("p").within("demo"));
    assert!(!leavers[0].has_other, "the other machine is for others");
}

fn leaver(pod: &str, has_other: bool) -> DrainingControlPlane {
    DrainingControlPlane {
        pod: pod.into(),
        cluster: ObjectRef::new(pod).within("demo"),
        node: "a".into(),
        has_other,
        ends: false,
    }
}

#[test]
fn tenants_take_turns() {
    let of = |pod: &str, tenant: &str| DrainingControlPlane {
        cluster: ObjectRef::new(pod).within(tenant),
        ..leaver(pod, true)
    };
    let leavers = vec![
        of("a", "many"),
        of("b", "many"),
        of("c", "many"),
        of("d", "few"),
        of("e", "few"),
    ];
    let order: Vec<_> = alternate(leavers).into_iter().map(|leaver| leaver.pod).collect();
    assert_eq!(order, ["a", "d", "b", "e", "c"]);
}

#[test]
fn a_pod_that_is_to_end_needs_no_other_machine() {
    let mut ending = pod("p", "a");
    ending.metadata.deletion_timestamp = Some(serde_json::from_value("2026-11-21T00:00:00Z".into()).unwrap());
    for (rule, node, expected) in [
        ("its machine stays", node("a", &[]), true),
        ("its machine goes", node("a", &[(TAINTS[1], "NoSchedule")]), false),
    ] {
        let leaver = plan_leaver(&[node], &ending, &taints()).unwrap();
        assert!(leaver.ends);
        assert_eq!(leaver.has_other, expected, "{rule}");
    }
    let now = Instant::now();
    let told = |before: Option<&Notice>, ends, at: u64| {
        let leaver = DrainingControlPlane {
            ends,
            ..leaver("p", true)
        };
        let now = now + Duration::from_secs(at);
        plan_notice(before, leaver, &mut VecDeque::new(), 1, now)
    };
    let first = told(None, false, 0);
    assert_eq!(told(Some(&first), true, 111).state, first.state, "it ends by itself");
    assert_eq!(
        told(Some(&first), false, 111).state,
        State::Failed(now + Duration::from_secs(111))
    );
}

#[test]
fn so_many_are_taken_over_in_a_minute() {
    let now = Instant::now();
    let mut past = VecDeque::new();
    let mut states = |before: &HashMap<String, Notice>, at: u64, leavers: &[DrainingControlPlane]| {
        let now = now + Duration::from_secs(at);
        plan_notices(before, leavers.to_vec(), &mut past, 1, now)
    };
    let both = [leaver("p", true), leaver("q", true)];
    let first = states(&HashMap::new(), 0, &both);
    assert_eq!(first["p"].state, State::StandBy(now));
    assert_eq!(first["q"].state, State::Waiting);
    let second = states(&first, 61, &both);
    assert_eq!(second["p"].state, State::StandBy(now), "it goes on");
    assert_eq!(second["q"].state, State::StandBy(now + Duration::from_secs(61)));
    let third = states(&second, 111, &both);
    let failed = State::Failed(now + Duration::from_secs(111));
    assert_eq!(third["p"].state, failed, "nobody has come in time");
    let fourth = states(&third, 710, &both[..1]);
    assert_eq!(fourth["p"].state, failed, "it is not tried again yet");
    assert!(!fourth.contains_key("q"), "it has left");
    let fifth = states(&fourth, 711, &both[..1]);
    let again = State::StandBy(now + Duration::from_secs(711));
    assert_eq!(fifth["p"].state, again, "a machine may have come");
    let sixth = states(&fifth, 821, &both[..1]);
    assert_eq!(sixth["p"].state, State::Failed(now + Duration::from_secs(821)));
    let alone = states(&HashMap::new(), 900, &[leaver("p", false)]);
    assert_eq!(alone["p"].state, State::Nowhere);
    let again = states(&alone, 901, &both[..1]);
    assert!(
        matches!(again["p"].state, State::StandBy(_)),
        "there is another machine now"
    );
}

#[test]
fn clusters_are_called_for_while_there_is_something_to_do() {
    let notice = |pod: &str, state| {
        let cluster = ObjectRef::new(pod).within("demo");
        let node = "a".to_owned();
        (
            pod.to_owned(),
            Notice {
                cluster,
                node,
                ends: false,
                state,
            },
        )
    };
    let now = Instant::now();
    let before: HashMap<_, _> = [
        notice("gone", State::Nowhere),
        notice("failed", State::Failed(now)),
        notice("fails", State::StandBy(now)),
        notice("on", State::StandBy(now)),
        notice("waits", State::Waiting),
    ]
    .into();
    let after: HashMap<_, _> = [
        notice("failed", State::Failed(now)),
        notice("fails", State::Failed(now)),
        notice("on", State::StandBy(now)),
        notice("waits", State::Waiting),
        notice("new", State::Waiting),
    ]
    .into();
    let mut called: Vec<_> = plan_calls(&before, &after).into_iter().map(|it| it.name).collect();
    called.sort();
    assert_eq!(called, ["fails", "gone", "new", "on"]);
}

#[test]
fn cores_count_where_a_pod_can_be_put() {
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
