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
    plan_machines(&pods.into_iter().map(Box::new).collect::<Vec<_>>())
}

#[test]
fn control_planes_are_counted_where_they_are() {
    let mut foreign = running(A, "d", "one");
    foreign.metadata.labels = None;
    let nodes = members(vec![
        running(B, "b", "one"),
        running(A, "a", "one"),
        running("bcdfghjk26", "c", "two"),
        pod("bcdfghjk27", "e", None, false, None),
        foreign,
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
fn what_a_kubelet_says_has_ended_is_not_heard() {
    let mut pod = running(A, "a", "one");
    assert!(to_member(&pod).unwrap().is_ready);
    let ended = json!({"name": "kine-nats", "image": "", "imageID": "", "restartCount": 1, "ready": false,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    let statuses = &mut pod.status.as_mut().unwrap().container_statuses;
    statuses.as_mut().unwrap().push(serde_json::from_value(ended).unwrap());
    assert!(!to_member(&pod).unwrap().is_ready);
}

#[test]
fn one_that_runs_is_followed_and_then_goes_on_to_be() {
    let nodes = members(vec![
        pod(A, "a", Some("one"), false, None),
        running(B, "b", "one"),
        running("bcdfghjk26", "c", "one"),
    ]);
    let sight = |of: &str| Sight {
        id: id(of),
        sequence: 1,
        since: Instant::now(),
        grew: None,
    };
    for (rule, before, expected) in [
        ("the first that is ready", None, "b"),
        ("the one of before", Some(sight("bcdfghjk26")), "c"),
        ("not one that is ready no more", Some(sight(A)), "b"),
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
fn a_machine_whose_control_planes_turned_unready_is_another_one() {
    let mut unready = running(B, "b", "two");
    unready.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0].ready = false;
    let mut ends = running("bcdfghjk26", "c", "three");
    ends.metadata.deletion_timestamp = ends.metadata.creation_timestamp.clone();
    let nodes = members(vec![
        running(A, "a", "one"),
        unready,
        ends,
        pod("bcdfghjk27", "d", Some("four"), false, Some("1970-01-01T00:01:41Z")),
    ]);
    assert!(!nodes["two"][0].is_ready);
    assert_eq!(plan_others(&nodes, "one").collect::<Vec<_>>(), ["two"]);
}

#[test]
fn silence_is_counted_while_nothing_is_new() {
    let began = Instant::now();
    let at = |millis: u64| began + Duration::from_millis(millis);
    let first = plan_sight(None, &id(A), Some(7), began);
    for (rule, of, sequence, expected, grew) in [
        ("nothing new", A, Some(7), Some(0), None),
        ("a record", A, Some(8), Some(2000), Some(2000)),
        ("a log that was made anew", A, Some(3), Some(2000), Some(2000)),
        ("another's log", B, Some(7), Some(2000), None),
        ("nobody says", A, None, Some(2000), None),
    ] {
        let next = plan_sight(first.clone(), &id(of), sequence, at(2000));
        assert_eq!(next.as_ref().map(|sight| sight.since), expected.map(at), "{rule}");
        assert_eq!(next.as_ref().and_then(|sight| sight.grew), grew.map(at), "{rule}");
        assert_eq!(next.as_ref().map(|sight| &sight.id), Some(&id(of)), "{rule}");
        let suspect = next.is_some_and(|sight| is_suspect(&sight, at(2000)));
        assert_eq!(suspect, expected == Some(0), "{rule}");
    }
}

#[test]
fn one_sign_of_life_clears_a_machine() {
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
    let unheard = Sample {
        last: None,
        ..silent(B)
    };
    let answers = Sample {
        answers: true,
        ..silent(B)
    };
    for (rule, evidence, expected) in [
        ("all silent", vec![silent(A), silent(B)], Conclusion::Lost),
        ("one alone, silent", vec![silent(A)], Conclusion::Lost),
        ("one writes", vec![silent(A), writes], Conclusion::Alive(id(B), 8)),
        (
            "NATS does not say of one",
            vec![silent(A), unheard],
            Conclusion::Unknown,
        ),
        ("an API answers", vec![silent(A), answers], Conclusion::Unknown),
        ("nobody to ask", vec![], Conclusion::Unknown),
    ] {
        assert_eq!(plan_verdict(&evidence), expected, "{rule}");
    }
}

#[test]
fn so_many_machines_are_given_up_in_a_minute() {
    let began = Instant::now();
    let mut past = VecDeque::new();
    let mut room = |(is_given, second): (bool, u64)| {
        let now = began + Duration::from_secs(second);
        plan_loss(&mut past, is_given, now, 2)
    };
    let (new, again) = (false, true);
    for (node, second, expected) in [
        (new, 0, Room::There),
        (again, 0, Room::Given),
        (again, 1, Room::Given),
        (new, 1, Room::There),
        (new, 2, Room::Taken),
        (again, 2, Room::Given),
        (new, 59, Room::Taken),
        (new, 60, Room::There),
        (new, 60, Room::Taken),
        (new, 61, Room::There),
        (new, 62, Room::Taken),
    ] {
        assert_eq!(room((node, second)), expected, "second {second}");
    }
}

#[test]
fn a_pod_that_no_kubelet_takes_is_stranded() {
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
fn a_loss_is_credible_while_others_write() {
    let began = Instant::now();
    let now = began + Duration::from_secs(60);
    let ago = |seconds: u64| now - Duration::from_secs(seconds);
    let sight = |seconds: u64| Sight {
        id: id(A),
        sequence: 1,
        since: ago(seconds),
        grew: Some(ago(seconds)),
    };
    let (fresh, old) = (sight(1), sight(7));
    // After a trial without a conclusion the log is followed again, and has not grown.
    let first = plan_sight(None, &id(A), Some(1), ago(1)).unwrap();
    let unheard = plan_sight(Some(fresh.clone()), &id(A), None, now).unwrap();
    // Another control plane is followed, since the first is no longer ready.
    let other = plan_sight(Some(fresh.clone()), &id(B), Some(1), now).unwrap();
    for (rule, others, is_unreachable, expected) in [
        ("another writes", vec![Some(&fresh)], false, true),
        ("one of two writes", vec![Some(&old), Some(&fresh)], false, true),
        ("all are silent", vec![Some(&old)], false, false),
        (
            "another was looked at for the first time",
            vec![Some(&first)],
            false,
            false,
        ),
        ("another wrote a moment ago", vec![Some(&other)], false, true),
        (
            "NATS does not say whether it goes on",
            vec![Some(&unheard)],
            false,
            true,
        ),
        ("the other is tried, too", vec![None], false, false),
        ("all are silent, and it is unreachable", vec![None], true, true),
    ] {
        for has_place in [false, true] {
            let is_credible = is_credible(others.clone(), (is_unreachable, has_place), now);
            assert_eq!(is_credible, expected, "{rule}, another one takes them: {has_place}");
        }
    }
    for (rule, is_unreachable, has_place, expected) in [
        ("another one takes them", false, true, true),
        ("there is no other one", false, false, false),
        ("and it is unreachable", true, false, true),
    ] {
        let is_credible = is_credible([], (is_unreachable, has_place), now);
        assert_eq!(is_credible, expected, "the only one with control planes: {rule}");
    }
}
