use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::Role;
use kube::Resource;
use serde::Serialize;
use serde_json::{Value, json};
use yoke_api::{Cluster, JoinToken, Tenant, labels};

use crate::host_api::triggers::memory::Memory;
use crate::host_api::triggers::requeues::{OtherClusters, Requeues};
use crate::model::cluster_summary::ClusterSummary;

fn calls(tenant: bool, cluster: Option<&str>, others: OtherClusters) -> Requeues {
    Requeues {
        tenant,
        cluster: cluster.map(str::to_owned),
        others,
        ..Requeues::default()
    }
}

/// Plans one event of an object, and checks the requeues.
fn check<K>(rule: &str, memory: &mut Memory, value: Value, gone: bool, expected: &Requeues)
where
    K: Resource<DynamicType = ()> + Serialize + serde::de::DeserializeOwned,
{
    let object: K = serde_json::from_value(value).unwrap();
    assert_eq!(&memory.plan(&object, gone), expected, "{rule}");
}

#[test]
fn clusters_are_called_for_what_they_are_held_against() {
    let mut memory = Memory::default();
    let tenant = |generation: i64, clusters: i64, retained: Option<i64>| {
        json!({"metadata": {"name": "t", "uid": "1", "generation": generation}, "spec": {},
            "status": {"clusters": clusters, "retainedStorage": retained}})
    };
    let (all, none) = (
        calls(true, None, OtherClusters::All),
        calls(true, None, OtherClusters::None),
    );
    for (rule, value, expected) in [
        ("first sight", tenant(1, 0, None), &all),
        ("the reported retained data", tenant(1, 0, Some(1)), &none),
        ("a Cluster more", tenant(1, 1, Some(1)), &none),
        ("another quota", tenant(2, 1, Some(1)), &all),
        ("listed again", tenant(2, 1, Some(1)), &none),
    ] {
        check::<Tenant>(rule, &mut memory, value, false, expected);
    }
    check::<Tenant>("gone", &mut memory, tenant(2, 1, Some(1)), true, &all);
}

#[test]
fn a_join_token_is_called_for_by_what_it_asks_and_who_joined() {
    let mut memory = Memory::default();
    let token = |generation: i64, uses: &Value, message: &str| {
        json!({"metadata": {"name": "j", "namespace": "t", "uid": "1", "generation": generation},
            "spec": {"clusterName": "a"}, "status": {"uses": uses, "conditions": [{"type": "Ready", "status": "False",
            "reason": "x", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    let calls = |is_new: bool, itself: bool| Requeues {
        tenant: is_new,
        cluster: is_new.then(|| "a".to_owned()),
        join_token: itself.then(|| "j".to_owned()),
        ..Requeues::default()
    };
    let used = json!([{"request": "r", "node": "n", "time": "2026-01-01T00:00:00Z"}]);
    for (rule, value, expected) in [
        ("made", token(1, &json!([]), "x"), calls(true, true)),
        ("what is said of it", token(1, &json!([]), "y"), calls(false, false)),
        ("a worker joined", token(1, &used, "y"), calls(false, true)),
        ("listed again", token(1, &used, "y"), calls(false, false)),
    ] {
        check::<JoinToken>(rule, &mut memory, value, false, &expected);
    }
    let gone = Requeues {
        tenant: true,
        ..Requeues::default()
    };
    check::<JoinToken>("gone", &mut memory, token(1, &used, "y"), true, &gone);
}

#[test]
fn an_api_that_answers_again_calls_for_those_who_wait_for_it() {
    let mut memory = Memory::default();
    let cluster = |available: &str, message: &str| {
        json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": 1}, "spec": {},
            "status": {"conditions": [{"type": "APIServerAvailable", "status": available, "reason": "x",
            "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    };
    let nobody = Requeues::default();
    let waiting = Requeues {
        join_tokens_of: Some("a".to_owned()),
        ..Requeues::default()
    };
    let itself = calls(true, Some("a"), OtherClusters::Refused);
    for (rule, value, expected) in [
        ("first sight", cluster("True", "x"), &itself),
        ("it starts again", cluster("False", "x"), &nobody),
        ("it answers", cluster("True", "x"), &waiting),
        ("what else is said of it", cluster("True", "y"), &nobody),
    ] {
        check::<Cluster>(rule, &mut memory, value, false, expected);
    }
}

#[test]
fn who_waits_is_called_for_by_what_it_waits_for() {
    let token = |cluster: &str, reason: &str| -> JoinToken {
        serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": {"clusterName": cluster},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap()
    };
    let readers = Requeues {
        readers: true,
        ..Requeues::default()
    };
    let waiting = Requeues {
        join_tokens_of: Some("a".to_owned()),
        ..Requeues::default()
    };
    for (cluster, reason, by_role, by_api) in [
        ("a", "RolePending", true, false),
        ("a", "ClusterNotReady", false, true),
        ("b", "ClusterNotReady", false, false),
        ("a", "UsedUp", false, false),
    ] {
        let token = token(cluster, reason);
        let found = (readers.concern_waiting(&token), waiting.concern_waiting(&token));
        assert_eq!(found, (by_role, by_api), "{cluster} {reason}");
    }
}

#[test]
fn objects_of_a_tenant_call_for_no_cluster() {
    let role = json!({"metadata": {"name": "yoke-tenant", "namespace": "t"}});
    let expected = Requeues {
        readers: true,
        ..calls(true, None, OtherClusters::None)
    };
    check::<Role>("role", &mut Memory::default(), role, false, &expected);
}

#[test]
fn stores_call_for_those_who_wait_for_their_room() {
    for (component, others) in [("store", OtherClusters::Refused), ("pki", OtherClusters::None)] {
        let labels = json!({"yoke.drzzl.io/cluster": "a", "yoke.drzzl.io/tenant": "t",
            "yoke.drzzl.io/component": component});
        let secret = json!({"metadata": {"name": "x", "namespace": "yoke-pki", "labels": labels}});
        let expected = calls(false, Some("a"), others);
        check::<Secret>(component, &mut Memory::default(), secret, false, &expected);
    }
}

#[test]
fn labels_of_a_cluster_and_a_tenant_say_nothing() {
    let mut memory = Memory::default();
    let labels = json!({"yoke.drzzl.io/cluster": "x", "yoke.drzzl.io/tenant": "y"});
    let cluster = json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "labels": labels}, "spec": {}});
    let itself = calls(true, Some("a"), OtherClusters::Refused);
    check::<Cluster>("cluster", &mut memory, cluster, false, &itself);
    let tenant = json!({"metadata": {"name": "t", "uid": "2", "labels": labels}, "spec": {}});
    check::<Tenant>(
        "tenant",
        &mut memory,
        tenant,
        false,
        &calls(true, None, OtherClusters::All),
    );
}

#[test]
fn a_word_to_sleep_and_one_to_wake_call_for_the_cluster() {
    let mut memory = Memory::default();
    let cluster = |annotation: &str, slept: &str, woken: &str| {
        json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "annotations": {labels::SLEEP: annotation}},
            "spec": {}, "status": {"activity": {"sleepRequestedTime": slept, "wakeRequestedTime": woken}}})
    };
    let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
    let itself = calls(false, Some("a"), OtherClusters::Refused);
    let nobody = Requeues::default();
    for (rule, cluster, expected) in [
        (
            "new",
            cluster("end", early, early),
            &calls(true, Some("a"), OtherClusters::Refused),
        ),
        ("a word", cluster("now", early, early), &itself),
        ("noted by the operator", cluster("now", late, early), &nobody),
        ("somebody connects", cluster("now", late, late), &itself),
        ("nothing new", cluster("now", late, late), &nobody),
    ] {
        check::<Cluster>(rule, &mut memory, cluster, false, expected);
    }
}

#[test]
fn who_takes_or_leaves_a_name_calls_for_those_who_ask_for_it() {
    let mut memory = Memory::default();
    let asking = |namespace: &str, name: &str| {
        let spec = json!({"endpoint": {"extraSANs": [name]}});
        let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "b", "namespace": namespace}, "spec": spec});
        ClusterSummary::of(&serde_json::from_value(value).unwrap())
    };
    let cluster = |generation: i64, names: &[&str]| -> Cluster {
        let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": generation},
            "spec": {"endpoint": {"extraSANs": names}}});
        serde_json::from_value(value).unwrap()
    };
    let (same, other) = (asking("u", "x.example.org"), asking("u", "y.example.org"));
    for (rule, object, gone, expected) in [
        ("asks for none", cluster(1, &[]), false, false),
        ("takes it", cluster(2, &["x.example.org"]), false, true),
        ("nothing new", cluster(2, &["x.example.org"]), false, false),
        ("leaves it", cluster(3, &[]), false, true),
        ("takes it again", cluster(4, &["x.example.org"]), false, true),
        ("goes", cluster(4, &["x.example.org"]), true, true),
    ] {
        let calls = memory.plan(&object, gone);
        assert_eq!(calls.concern("t", &same), expected, "{rule}");
        assert!(!calls.concern("t", &other), "{rule}");
    }
    let tenant = |generation: i64, domains: &[&str]| -> Tenant {
        let value = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "t", "uid": "2", "generation": generation}, "spec": {"allowedDomains": domains}});
        serde_json::from_value(value).unwrap()
    };
    for (rule, object, expected) in [
        ("has none", tenant(1, &[]), false),
        ("is given the domain", tenant(2, &["example.org"]), true),
        ("loses it", tenant(3, &["example.net"]), true),
        ("never had it", tenant(4, &["example.net", "example.com"]), false),
    ] {
        assert_eq!(memory.plan(&object, false).concern("t", &same), expected, "{rule}");
    }
}

#[test]
fn a_cluster_calls_for_itself_and_for_those_that_wait_for_room() {
    let mut memory = Memory::default();
    let cluster = |generation: i64, phase: &str| {
        json!({"metadata": {"name": "a", "namespace": "t", "uid": "1", "generation": generation}, "spec": {},
            "status": {"phase": phase}})
    };
    for (rule, value, expected) in [
        (
            "made",
            cluster(1, "Provisioning"),
            calls(true, Some("a"), OtherClusters::Refused),
        ),
        ("status", cluster(1, "Running"), calls(false, None, OtherClusters::None)),
        (
            "spec",
            cluster(2, "Running"),
            calls(false, Some("a"), OtherClusters::Refused),
        ),
    ] {
        check::<Cluster>(rule, &mut memory, value, false, &expected);
    }
    let gone = calls(true, Some("a"), OtherClusters::Refused);
    check::<Cluster>("gone", &mut memory, cluster(2, "Deleting"), true, &gone);
    let pod = json!({"metadata": {"name": "p", "labels": {"yoke.drzzl.io/cluster": "a"}}});
    check::<Pod>(
        "its pod",
        &mut memory,
        pod,
        false,
        &calls(false, Some("a"), OtherClusters::None),
    );
}
