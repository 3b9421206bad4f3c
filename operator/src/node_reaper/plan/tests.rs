use serde_json::{Value, json};

use crate::node_reaper::plan::*;

type See = fn(&Lease) -> Sight<'_>;

const PACE: Pace = Pace {
    every: Duration::from_secs(15),
    looks: 3,
    doubt: Duration::from_secs(15),
    linger: Duration::from_secs(60),
    known: Duration::ZERO,
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
fn silent_is_who_is_heard_of_neither_by_the_clock_nor_by_looking() {
    let limit = 300;
    for (rule, reap_after, renewed, looks, every, well, expected) in [
        ("long ago", "5m", Some(2000 - limit), 3, 15, 300, true),
        ("a second less", "5m", Some(2001 - limit), 3, 15, 300, false),
        ("seen too seldom", "5m", Some(1000), 2, 15, 300, false),
        ("the cluster is not well for long", "5m", Some(1000), 3, 15, 299, false),
        ("by a clock that is ahead", "5m", Some(9000), 3, 15, 300, false),
        (
            "by a clock that is ahead, seen for long",
            "5m",
            Some(9000),
            3,
            150,
            300,
            true,
        ),
        ("never renewed, made long ago", "5m", None, 3, 15, 300, true),
        ("never renewed, made just now", "24h", None, 3, 15, 90_000, false),
        ("a gap that nobody looked over", "5m", Some(1000), 3, 180, 300, false),
        ("the shortest time", "1m", Some(1940), 3, 15, 60, true),
        ("no time", "soon", Some(1000), 3, 15, 9000, false),
        ("a time out of bounds", "0m", Some(1940), 3, 15, 60, true),
    ] {
        let (lease, begun) = (lease(reap_after, renewed), Instant::now());
        let mut watch = Watch::default();
        let mut now = begun;
        for look in 0..looks {
            now = begun + seconds(every) * look;
            watch.note(std::slice::from_ref(&lease), now);
        }
        let is_silent = |pace: &Pace| watch.is_silent(&lease, seconds(well), (at(2000), now), pace);
        assert_eq!(is_silent(&PACE), expected, "{rule}");
        // Silent for as long as the Lease says, and not less.
        let strict = Pace {
            known: Duration::MAX,
            ..PACE
        };
        let looked = now.saturating_duration_since(begun);
        let is_known = parse_short_time(reap_after).is_some_and(|limit| looked >= limit);
        assert_eq!(
            is_silent(&strict),
            expected && is_known,
            "{rule}, by one that has just begun"
        );
    }
}

#[test]
fn whoever_renews_is_never_silent_whatever_its_clock_says() {
    let (mut watch, begun) = (Watch::default(), Instant::now());
    for look in 0..20 {
        let (lease, now) = (lease("1m", Some(1000 + i64::from(look))), begun + seconds(15) * look);
        watch.note(std::slice::from_ref(&lease), now);
        assert!(
            !watch.is_silent(&lease, seconds(9000), (at(9000), now), &PACE),
            "{look}"
        );
    }
    // Another Lease with the same name, never recorded before.
    let mut other = lease("1m", Some(1019));
    other.metadata.uid = Some("l2".into());
    let now = begun + seconds(300);
    assert!(!watch.is_silent(&other, seconds(9000), (at(9000), now), &PACE));
    watch.note(&[], now);
    let gone = lease("1m", Some(1019));
    watch.note(std::slice::from_ref(&gone), now + seconds(15));
    assert!(!watch.is_silent(&gone, seconds(9000), (at(9000), now + seconds(15)), &PACE));
}

#[test]
fn one_that_begins_to_look_takes_nothing_back_before_it_has_heard_of_a_node() {
    let (mut watch, begun) = (Watch::default(), Instant::now());
    let mut kind = |lease: &Lease, seconds_on: u64| {
        let now = begun + seconds(seconds_on);
        watch.note(std::slice::from_ref(lease), now);
        match watch.sight(Some(lease), seconds(9000), (at(2000), now), &PACE) {
            Sight::Silent(_) => "silent",
            Sight::Unheard => "unheard",
            Sight::Heard => "heard",
        }
    };
    let before = lease("5m", Some(1000));
    assert_eq!(kind(&before, 0), "unheard");
    assert_eq!(kind(&before, 15), "unheard");
    assert_eq!(kind(&before, 30), "silent");
    assert_eq!(kind(&lease("5m", Some(1001)), 45), "heard", "it was renewed");
    assert_eq!(kind(&lease("soon", Some(1000)), 60), "heard", "it is not to be removed");
    // No checks for a while.
    assert_eq!(kind(&before, 300), "unheard");
    let mut another = lease("5m", Some(1000));
    another.metadata.uid = Some("l2".into());
    assert_eq!(kind(&another, 315), "heard", "its Node came back under this name");
}

fn node(mark: Option<&str>, taints: &Value) -> Node {
    let labels: Value = mark.map_or(json!({}), |mark| json!({"yoke.drzzl.io/reaping": mark}));
    let metadata = json!({"name": "n", "uid": "n1", "labels": labels});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"taints": taints}})).unwrap()
}

#[test]
fn a_silent_node_goes_step_by_step() {
    let own = json!([{"key": "node.kubernetes.io/out-of-service", "value": "yoke-silent", "effect": "NoExecute"}]);
    let others = json!([{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}]);
    let none = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    let (silent, heard, unheard): (See, See, See) =
        (|lease| Sight::Silent(lease), |_| Sight::Heard, |_| Sight::Unheard);
    for (rule, mark, taints, sight, expected) in [
        ("well", None, &none, heard, Step::Nothing),
        ("silent", None, &none, silent, Step::Mark),
        ("marked just now", Some("1986"), &none, silent, Step::Nothing),
        ("marked", Some("1985"), &none, silent, Step::Taint),
        ("tainted just now", Some("1941"), &own, silent, Step::Nothing),
        ("tainted", Some("1940"), &own, silent, Step::Delete),
        ("tainted by somebody else", Some("1940"), &others, silent, Step::Release),
        ("a mark that is no time", Some("x"), &own, silent, Step::Mark),
        ("a mark from the future", Some("2001"), &own, silent, Step::Mark),
        ("back, marked", Some("1985"), &none, heard, Step::Release),
        ("back, tainted", Some("1940"), &own, heard, Step::Release),
        (
            "marked by a process that is gone",
            Some("1985"),
            &none,
            unheard,
            Step::Nothing,
        ),
        (
            "tainted by a process that is gone",
            Some("1940"),
            &own,
            unheard,
            Step::Nothing,
        ),
    ] {
        let lease = lease("5m", Some(1000));
        let planned = plan(&node(mark, taints), sight(&lease), at(2000), &PACE);
        assert_eq!(planned, expected, "{rule}");
    }
    let lease = lease("5m", Some(1000));
    let mut earlier = node(None, &none);
    earlier.metadata.uid = Some("n2".into());
    assert_eq!(plan(&earlier, Sight::Silent(&lease), at(2000), &PACE), Step::Nothing);
    let mut ending = node(Some("1940"), &own);
    ending.metadata.deletion_timestamp = Some(Time(at(1999)));
    assert_eq!(plan(&ending, Sight::Silent(&lease), at(2000), &PACE), Step::Nothing);
}

/// Otherwise a kubelet could fall silent to get its Node re-created without them.
#[test]
fn what_administrators_gave_a_node_keeps_it() {
    let lease = lease("5m", Some(1000));
    let joined = json!([{"key": "gpu", "value": "a100", "effect": "NoSchedule"}]);
    let others = json!([{"key": "gpu", "value": "a100", "effect": "NoExecute"}]);
    let none = json!([]);
    for (rule, mark, taints, label, expected) in [
        ("a taint of its JoinToken", None, &joined, "a.example/b", Step::Mark),
        ("another one", None, &others, "a.example/b", Step::Nothing),
        (
            "another one, marked",
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
            "a label of a part",
            None,
            &none,
            "a.node-restriction.kubernetes.io/b",
            Step::Nothing,
        ),
    ] {
        let mut node = node(mark, taints);
        let noted = (
            "yoke.drzzl.io/joined-taints".into(),
            "x:NoExecute,gpu=a100:NoSchedule".into(),
        );
        node.metadata.annotations = Some([noted].into());
        node.labels_mut().insert(label.into(), String::new());
        assert_eq!(plan(&node, Sight::Silent(&lease), at(2000), &PACE), expected, "{rule}");
    }
}

#[test]
fn taints_of_others_stay() {
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
    let left = serde_json::to_value(without_taint(&tainted)).unwrap();
    assert_eq!(left, before);
}

#[test]
fn a_lease_is_the_same_until_it_is_renewed_or_kept() {
    let seen = lease("5m", Some(1000));
    assert!(is_same(&seen, &lease("5m", Some(1000))));
    assert!(is_same(&seen, &lease("6m", Some(1000))));
    assert!(!is_same(&seen, &lease("5m", Some(1001))));
    assert!(!is_same(&seen, &lease("no", Some(1000))));
    let mut other = seen.clone();
    other.metadata.uid = Some("l2".into());
    assert!(!is_same(&seen, &other));
    assert!(!is_unclaimed(&seen, at(1000 + 86_399)));
    assert!(is_unclaimed(&seen, at(1000 + 86_400)));
}
