use serde_json::json;

use crate::host_nodes::loss::plan::*;

const A: &str = "bcdfghjk24";
const B: &str = "bcdfghjk25";

fn id(text: &str) -> ClusterId {
    text.parse().unwrap()
}

fn pod(id: &str, uid: &str, node: Option<&str>, ready: bool, started: Option<&str>) -> Pod {
    let value = json!({
        "metadata": {"name": "control-plane-0", "uid": uid, "creationTimestamp": "1970-01-01T00:01:40Z", "labels": {
            "yoke.drzzl.io/id": id, "yoke.drzzl.io/tenant": "demo", "yoke.drzzl.io/cluster": "a"}},
        "spec": {"containers": [], "nodeName": node},
        "status": {"startTime": started, "containerStatuses": [
            {"name": "kube-apiserver", "image": "", "imageID": "", "restartCount": 0, "ready": ready, "started": ready,
                "state": {"running": {}}}]},
    });
    serde_json::from_value(value).unwrap()
}

fn running(id: &str, uid: &str, node: &str) -> Pod {
    pod(id, uid, Some(node), true, Some("1970-01-01T00:01:41Z"))
}

fn members(pods: Vec<Pod>) -> BTreeMap<String, Vec<Member>> {
    plan_nodes(&pods.into_iter().map(Box::new).collect::<Vec<_>>())
}

#[test]
fn control_planes_are_grouped_by_node() {
    let mut unlabelled = running(A, "d", "one");
    unlabelled.metadata.labels = None;
    let nodes = members(vec![
        running(B, "b", "one"),
        running(A, "a", "one"),
        running("bcdfghjk26", "c", "two"),
        pod("bcdfghjk27", "e", None, false, None),
        unlabelled,
    ]);
    let uids = |node: &str| -> Vec<_> { nodes[node].iter().map(|member| member.pod.as_str()).collect() };
    assert_eq!((nodes.len(), uids("one"), uids("two")), (2, vec!["a", "b"], vec!["c"]));
    let first = &nodes["one"][0];
    assert_eq!(
        (first.cluster.name.as_str(), first.cluster.namespace.as_deref()),
        ("a", Some("demo"))
    );
    assert!(first.is_ready && first.waits_since.is_none());
}

#[test]
fn a_pod_with_an_exited_container_is_not_ready() {
    let mut pod = running(A, "a", "one");
    assert!(to_member(&pod).unwrap().is_ready);
    let crashed = json!({"name": "kine-nats", "image": "", "imageID": "", "restartCount": 1, "ready": false,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    let statuses = &mut pod.status.as_mut().unwrap().container_statuses;
    statuses
        .as_mut()
        .unwrap()
        .push(serde_json::from_value(crashed).unwrap());
    assert!(!to_member(&pod).unwrap().is_ready);
}

#[test]
fn the_followed_control_plane_stays_the_same_while_it_is_ready() {
    let nodes = members(vec![
        pod(A, "a", Some("one"), false, None),
        running(B, "b", "one"),
        running("bcdfghjk26", "c", "one"),
    ]);
    let observation = |of: &str| Observation {
        id: id(of),
        sequence: 1,
        since: Instant::now(),
        grew: None,
    };
    for (rule, before, expected) in [
        ("the first ready control plane", None, "b"),
        ("the previous control plane", Some(observation("bcdfghjk26")), "c"),
        ("the previous control plane is not ready", Some(observation(A)), "b"),
    ] {
        let followed = plan_followed(&nodes["one"], before.as_ref());
        assert_eq!(followed.map(|member| member.pod.as_str()), Some(expected), "{rule}");
    }
    assert_eq!(
        plan_followed(&members(vec![pod(A, "a", Some("one"), false, None)])["one"], None),
        None
    );
}

#[test]
fn a_node_with_unready_control_planes_counts_as_another_node() {
    let mut unready = running(B, "b", "two");
    unready.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0].ready = false;
    let mut terminating = running("bcdfghjk26", "c", "three");
    terminating.metadata.deletion_timestamp = terminating.metadata.creation_timestamp.clone();
    let nodes = members(vec![
        running(A, "a", "one"),
        unready,
        terminating,
        pod("bcdfghjk27", "d", Some("four"), false, Some("1970-01-01T00:01:41Z")),
    ]);
    assert!(!nodes["two"][0].is_ready);
    assert_eq!(plan_other_nodes(&nodes, "one").collect::<Vec<_>>(), ["two"]);
}

#[test]
fn a_log_is_silent_while_it_has_no_new_record() {
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let first = plan_observation(None, &id(A), Some(7), start);
    for (rule, of, sequence, expected, grew) in [
        ("no new record", A, Some(7), Some(0), None),
        ("a new record", A, Some(8), Some(2000), Some(2000)),
        ("a recreated log", A, Some(3), Some(2000), Some(2000)),
        ("another log", B, Some(7), Some(2000), None),
        ("NATS does not answer", A, None, Some(2000), None),
    ] {
        let next = plan_observation(first.clone(), &id(of), sequence, at(2000));
        assert_eq!(
            next.as_ref().map(|observation| observation.since),
            expected.map(at),
            "{rule}"
        );
        assert_eq!(
            next.as_ref().and_then(|observation| observation.grew),
            grew.map(at),
            "{rule}"
        );
        assert_eq!(
            next.as_ref().map(|observation| &observation.id),
            Some(&id(of)),
            "{rule}"
        );
        let suspect = next.is_some_and(|observation| is_suspect(&observation, at(2000)));
        assert_eq!(suspect, expected == Some(0), "{rule}");
    }
}

#[test]
fn one_live_control_plane_clears_its_node() {
    let silent = |of: &str| Sample {
        id: id(of),
        first: 7,
        last: Some(7),
        answers: false,
    };
    let writes = Sample {
        last: Some(8),
        ..silent(B)
    };
    let unanswered = Sample {
        last: None,
        ..silent(B)
    };
    let answers = Sample {
        answers: true,
        ..silent(B)
    };
    for (rule, samples, expected) in [
        ("all silent", vec![silent(A), silent(B)], Conclusion::Lost),
        ("a single control plane, silent", vec![silent(A)], Conclusion::Lost),
        ("one writes", vec![silent(A), writes], Conclusion::Alive(id(B), 8)),
        (
            "NATS does not answer for one",
            vec![silent(A), unanswered],
            Conclusion::Unknown,
        ),
        ("an API answers", vec![silent(A), answers], Conclusion::Unknown),
        ("no control plane to check", vec![], Conclusion::Unknown),
    ] {
        assert_eq!(plan_conclusion(&samples), expected, "{rule}");
    }
}

#[test]
fn lost_nodes_per_minute_are_limited() {
    let start = Instant::now();
    let mut past = VecDeque::new();
    let mut take = |(is_recorded, second): (bool, u64)| {
        let now = start + Duration::from_secs(second);
        take_loss(&mut past, is_recorded, now, 2)
    };
    let (new, again) = (false, true);
    for (node, second, expected) in [
        (new, 0, LossBudget::Available),
        (again, 0, LossBudget::Recorded),
        (again, 1, LossBudget::Recorded),
        (new, 1, LossBudget::Available),
        (new, 2, LossBudget::Exhausted),
        (again, 2, LossBudget::Recorded),
        (new, 59, LossBudget::Exhausted),
        (new, 60, LossBudget::Available),
        (new, 60, LossBudget::Exhausted),
        (new, 61, LossBudget::Available),
        (new, 62, LossBudget::Exhausted),
    ] {
        assert_eq!(take((node, second)), expected, "second {second}");
    }
}

#[test]
fn a_pod_without_a_kubelet_is_stranded() {
    let nodes = members(vec![
        pod(A, "a", Some("one"), false, None),
        pod(B, "b", Some("one"), false, Some("1970-01-01T00:01:41Z")),
    ]);
    let stranded = |second: i64| -> Vec<_> {
        let now = Timestamp::from_second(second).unwrap();
        let found = plan_stranded(&nodes["one"], now).into_iter();
        found.map(|member| member.pod.clone()).collect()
    };
    assert_eq!((stranded(105), stranded(106)), (vec![], vec!["a".to_owned()]));
    // The pod waited for free resources before.
    let mut late = pod(A, "a", Some("one"), false, None);
    let scheduled = json!([{"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:03:20Z"}]);
    late.status.as_mut().unwrap().conditions = serde_json::from_value(scheduled).unwrap();
    assert_eq!(to_member(&late).unwrap().waits_since, Timestamp::from_second(200).ok());
}

#[test]
fn a_loss_is_credible_while_other_nodes_write() {
    let start = Instant::now();
    let now = start + Duration::from_secs(60);
    let ago = |seconds: u64| now - Duration::from_secs(seconds);
    let observation = |seconds: u64| Observation {
        id: id(A),
        sequence: 1,
        since: ago(seconds),
        grew: Some(ago(seconds)),
    };
    let (fresh, old) = (observation(1), observation(7));
    // After a trial without a conclusion the log is followed again, and has not grown.
    let first = plan_observation(None, &id(A), Some(1), ago(1)).unwrap();
    let unanswered = plan_observation(Some(fresh.clone()), &id(A), None, now).unwrap();
    // Another control plane is followed, since the first is no longer ready.
    let other = plan_observation(Some(fresh.clone()), &id(B), Some(1), now).unwrap();
    for (rule, others, is_unreachable, expected) in [
        ("another node writes", vec![Some(&fresh)], false, true),
        ("one of two nodes writes", vec![Some(&old), Some(&fresh)], false, true),
        ("all are silent", vec![Some(&old)], false, false),
        (
            "another node was observed for the first time",
            vec![Some(&first)],
            false,
            false,
        ),
        ("another node wrote a moment ago", vec![Some(&other)], false, true),
        (
            "NATS does not answer for a node that wrote",
            vec![Some(&unanswered)],
            false,
            true,
        ),
        ("the other node is in a trial", vec![None], false, false),
        ("all are silent, and the node is unreachable", vec![None], true, true),
    ] {
        for has_other_node in [false, true] {
            let is_credible = is_credible(others.clone(), is_unreachable, has_other_node, now);
            assert_eq!(
                is_credible, expected,
                "{rule}, another node takes them: {has_other_node}"
            );
        }
    }
    for (rule, is_unreachable, has_other_node, expected) in [
        ("another node takes them", false, true, true),
        ("no other node", false, false, false),
        ("the node is unreachable", true, false, true),
    ] {
        let is_credible = is_credible([], is_unreachable, has_other_node, now);
        assert_eq!(is_credible, expected, "the only node with control planes: {rule}");
    }
}
