use serde_json::{Value, json};

use crate::node_reaper::plan::*;

type Classify = fn(&Lease) -> Liveness<'_>;

const PACE: ReapIntervals = ReapIntervals {
    every: Duration::from_secs(15),
    checks: 3,
    taint_after: Duration::from_secs(15),
    delete_after: Duration::from_secs(60),
    min_observed: Duration::ZERO,
};

fn lease(reap_after: &str, renewed: Option<i64>) -> Lease {
    let renewed = renewed.map(|second| at(second).strftime("%Y-%m-%dT%H:%M:%S.000000Z").to_string());
    serde_json::from_value(
        json!({"metadata": {"name": "n", "uid": "l1", "creationTimestamp": at(1000),
        "labels": {"yoke.drzzl.io/reap-after": reap_after},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "n1"}]},
        "spec": {"renewTime": renewed}}),
    )
    .unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn a_node_is_silent_by_its_lease_and_by_enough_checks() {
    let limit = 300;
    for (rule, reap_after, renewed, checks, every, ready_for, expected) in [
        ("long ago", "5m", Some(2000 - limit), 3, 15, 300, true),
        ("a second less", "5m", Some(2001 - limit), 3, 15, 300, false),
        ("too few checks", "5m", Some(1000), 2, 15, 300, false),
        (
            "the cluster is not ready for long enough",
            "5m",
            Some(1000),
            3,
            15,
            299,
            false,
        ),
        ("a clock that is ahead", "5m", Some(9000), 3, 15, 300, false),
        (
            "a clock that is ahead, observed for long enough",
            "5m",
            Some(9000),
            3,
            150,
            300,
            true,
        ),
        ("never renewed, created long ago", "5m", None, 3, 15, 300, true),
        ("never renewed, created just now", "24h", None, 3, 15, 90_000, false),
        ("a gap between the checks", "5m", Some(1000), 3, 180, 300, false),
        ("the shortest limit", "1m", Some(1940), 3, 15, 60, true),
        ("an invalid limit", "soon", Some(1000), 3, 15, 9000, false),
        ("a limit below the minimum", "0m", Some(1940), 3, 15, 60, true),
    ] {
        let (lease, start) = (lease(reap_after, renewed), Instant::now());
        let mut watch = Watch::default();
        let mut now = start;
        for check in 0..checks {
            now = start + seconds(every) * check;
            watch.record(std::slice::from_ref(&lease), now);
        }
        let is_silent =
            |intervals: &ReapIntervals| watch.is_silent(&lease, seconds(ready_for), (at(2000), now), intervals);
        assert_eq!(is_silent(&PACE), expected, "{rule}");
        // Silent for as long as the Lease says, and not less.
        let strict = ReapIntervals {
            min_observed: Duration::MAX,
            ..PACE
        };
        let observed_for = now.saturating_duration_since(start);
        let is_observed = parse_short_time(reap_after).is_some_and(|limit| observed_for >= limit);
        assert_eq!(
            is_silent(&strict),
            expected && is_observed,
            "{rule}, by a process that has just started"
        );
    }
}

#[test]
fn a_renewed_lease_is_never_silent_whatever_its_clock() {
    let (mut watch, start) = (Watch::default(), Instant::now());
    for check in 0..20 {
        let (lease, now) = (lease("1m", Some(1000 + i64::from(check))), start + seconds(15) * check);
        watch.record(std::slice::from_ref(&lease), now);
        assert!(
            !watch.is_silent(&lease, seconds(9000), (at(9000), now), &PACE),
            "{check}"
        );
    }
    // Another Lease with the same name, never recorded before.
    let mut other = lease("1m", Some(1019));
    other.metadata.uid = Some("l2".into());
    let now = start + seconds(300);
    assert!(!watch.is_silent(&other, seconds(9000), (at(9000), now), &PACE));
    watch.record(&[], now);
    let removed = lease("1m", Some(1019));
    watch.record(std::slice::from_ref(&removed), now + seconds(15));
    assert!(!watch.is_silent(&removed, seconds(9000), (at(9000), now + seconds(15)), &PACE));
}

#[test]
fn a_new_process_releases_no_node_before_it_sees_a_renewal() {
    let (mut watch, start) = (Watch::default(), Instant::now());
    let mut classify = |lease: &Lease, seconds_on: u64| {
        let now = start + seconds(seconds_on);
        watch.record(std::slice::from_ref(lease), now);
        match watch.liveness(Some(lease), seconds(9000), (at(2000), now), &PACE) {
            Liveness::Silent(_) => "silent",
            Liveness::Unconfirmed => "unconfirmed",
            Liveness::Alive => "alive",
        }
    };
    let before = lease("5m", Some(1000));
    assert_eq!(classify(&before, 0), "unconfirmed");
    assert_eq!(classify(&before, 15), "unconfirmed");
    assert_eq!(classify(&before, 30), "silent");
    assert_eq!(classify(&lease("5m", Some(1001)), 45), "alive", "the Lease was renewed");
    assert_eq!(
        classify(&lease("soon", Some(1000)), 60),
        "alive",
        "the Lease has no limit"
    );
    // No checks for a while.
    assert_eq!(classify(&before, 300), "unconfirmed");
    let mut another = lease("5m", Some(1000));
    another.metadata.uid = Some("l2".into());
    assert_eq!(classify(&another, 315), "alive", "the Node was registered again");
}

fn node(mark: Option<&str>, taints: &Value) -> Node {
    let labels: Value = mark.map_or(json!({}), |mark| json!({"yoke.drzzl.io/reaping": mark}));
    let metadata = json!({"name": "n", "uid": "n1", "labels": labels});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"taints": taints}})).unwrap()
}

#[test]
fn a_silent_node_is_marked_tainted_and_deleted() {
    let own = json!([{"key": "node.kubernetes.io/out-of-service", "value": "yoke-silent", "effect": "NoExecute"}]);
    let others = json!([{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    let none = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    let (silent, alive, unconfirmed): (Classify, Classify, Classify) = (
        |lease| Liveness::Silent(lease),
        |_| Liveness::Alive,
        |_| Liveness::Unconfirmed,
    );
    for (rule, mark, taints, liveness, expected) in [
        ("alive", None, &none, alive, Step::Nothing),
        ("silent", None, &none, silent, Step::Mark),
        ("marked just now", Some("1986"), &none, silent, Step::Nothing),
        ("marked", Some("1985"), &none, silent, Step::Taint),
        ("tainted just now", Some("1941"), &own, silent, Step::Nothing),
        ("tainted", Some("1940"), &own, silent, Step::Delete),
        (
            "tainted by another client",
            Some("1940"),
            &others,
            silent,
            Step::Release,
        ),
        ("an invalid mark", Some("x"), &own, silent, Step::Mark),
        ("a mark from the future", Some("2001"), &own, silent, Step::Mark),
        ("alive again, marked", Some("1985"), &none, alive, Step::Release),
        ("alive again, tainted", Some("1940"), &own, alive, Step::Release),
        (
            "marked by a previous process",
            Some("1985"),
            &none,
            unconfirmed,
            Step::Nothing,
        ),
        (
            "tainted by a previous process",
            Some("1940"),
            &own,
            unconfirmed,
            Step::Nothing,
        ),
    ] {
        let lease = lease("5m", Some(1000));
        let planned = plan(&node(mark, taints), liveness(&lease), at(2000), &PACE);
        assert_eq!(planned, expected, "{rule}");
    }
    let lease = lease("5m", Some(1000));
    let mut earlier = node(None, &none);
    earlier.metadata.uid = Some("n2".into());
    assert_eq!(plan(&earlier, Liveness::Silent(&lease), at(2000), &PACE), Step::Nothing);
    let mut terminating = node(Some("1940"), &own);
    terminating.metadata.deletion_timestamp = Some(Time(at(1999)));
    assert_eq!(
        plan(&terminating, Liveness::Silent(&lease), at(2000), &PACE),
        Step::Nothing
    );
}

/// Otherwise a kubelet could fall silent to get its Node re-created without them.
#[test]
fn a_node_with_other_taints_or_labels_is_not_deleted() {
    let lease = lease("5m", Some(1000));
    let joined = json!([{"key": "gpu", "value": "a100", "effect": "NoSchedule"}]);
    let others = json!([{"key": "gpu", "value": "a100", "effect": "NoExecute"}]);
    let none = json!([]);
    for (rule, mark, taints, label, expected) in [
        ("a taint of its JoinToken", None, &joined, "a.example/b", Step::Mark),
        ("a taint of another client", None, &others, "a.example/b", Step::Nothing),
        (
            "a taint of another client, marked",
            Some("1940"),
            &others,
            "a.example/b",
            Step::Release,
        ),
        (
            "a label",
            None,
            &none,
            "node-restriction.kubernetes.io/trusted",
            Step::Nothing,
        ),
        (
            "a label of a subdomain",
            None,
            &none,
            "a.node-restriction.kubernetes.io/b",
            Step::Nothing,
        ),
    ] {
        let mut node = node(mark, taints);
        let recorded = (
            "yoke.drzzl.io/joined-taints".into(),
            "x:NoExecute,gpu=a100:NoSchedule".into(),
        );
        node.metadata.annotations = Some([recorded].into());
        node.labels_mut().insert(label.into(), String::new());
        assert_eq!(
            plan(&node, Liveness::Silent(&lease), at(2000), &PACE),
            expected,
            "{rule}"
        );
    }
}

#[test]
fn taints_of_other_clients_stay() {
    let others = json!([{"key": "a", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    assert_eq!(without_taint(&node(None, &others)), None);
    let before = json!([{"key": "a", "effect": "NoSchedule"}]);
    let mut tainted = node(None, &before);
    tainted.spec.as_mut().unwrap().taints = Some(with_taint(&tainted, at(1000)));
    let taints = serde_json::to_value(taints(&tainted)).unwrap();
    let expected = json!([{"key": "a", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/out-of-service", "value": "yoke-silent", "effect": "NoExecute",
            "timeAdded": "1970-01-01T00:16:40Z"}]);
    assert_eq!(taints, expected);
    let remaining = serde_json::to_value(without_taint(&tainted)).unwrap();
    assert_eq!(remaining, before);
}

#[test]
fn a_lease_is_the_same_until_it_is_renewed_or_unlabelled() {
    let before = lease("5m", Some(1000));
    assert!(is_same(&before, &lease("5m", Some(1000))));
    assert!(is_same(&before, &lease("6m", Some(1000))));
    assert!(!is_same(&before, &lease("5m", Some(1001))));
    assert!(!is_same(&before, &lease("no", Some(1000))));
    let mut other = before.clone();
    other.metadata.uid = Some("l2".into());
    assert!(!is_same(&before, &other));
    assert!(!is_unclaimed(&before, at(1000 + 86_399)));
    assert!(is_unclaimed(&before, at(1000 + 86_400)));
}
