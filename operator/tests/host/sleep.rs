//! A Cluster that sleeps on request, by an annotation, until the ingress records that a client
//! connected.

use k8s_openapi::api::core::v1::{Binding, ConfigMap, Event, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Resource;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use yoke_api::Cluster;
use yoke_api::cluster::{ClusterSpec, DesiredState};
use yoke_api::ingress::{Asleep, Callers, IngressConfig};

use crate::answers::{ready, run_pod, run_ready, see_set};
use crate::harness::{Host, TENANT, condition};
use crate::support::Server;
use crate::tenant_api::TenantServer;

const SLEEP: &str = "yoke.drzzl.io/sleep";

/// Returns the sleep state that is published to the ingress.
async fn told(host: &Host) -> Option<Asleep> {
    let map = host.api::<ConfigMap>(&host.hosted("a").await).get("yoke-ingress").await;
    let text = map.unwrap().data.unwrap().remove("ingress.json").unwrap();
    serde_json::from_str::<IngressConfig>(&text).unwrap().asleep
}

async fn replicas(host: &Host) -> Option<i32> {
    let set = host.stateful_set(&host.hosted("a").await).await?;
    set.spec.unwrap().replicas
}

async fn annotate(host: &Host, value: &str) {
    host.patch_cluster("a", json!({"metadata": {"annotations": {SLEEP: value}}}))
        .await;
}

async fn asleep(host: &Host) -> String {
    condition(&host.cluster("a").await, "Asleep")
}

async fn end_pod(host: &Host) {
    let pods = host.api::<Pod>(&host.hosted("a").await);
    let now = DeleteParams::default().grace_period(0);
    pods.delete("control-plane-0", &now).await.unwrap();
}

/// The kubelet has not reported yet that the API answers.
async fn be_unready(host: &Host) {
    let pods = host.api::<Pod>(&host.hosted("a").await);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let params = PatchParams::default();
    pods.patch_status("control-plane-0", &params, &Patch::Merge(status))
        .await
        .unwrap();
}

/// Records a connection as the ingress does: its own field, and nothing else.
async fn connect(host: &Host, time: Timestamp) {
    let patch = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
        "status": {"activity": {"wakeRequestedTime": time.to_string()}}});
    let params = PatchParams::apply("yoke-ingress-xds").force();
    host.clusters()
        .patch_status("a", &params, &Patch::Apply(&patch))
        .await
        .unwrap();
}

/// Records a connection later than the published start of the sleep, as of an ingress whose clock
/// is behind.
async fn ask(host: &Host) {
    let Some(Asleep::OnConnect { since, .. }) = told(host).await else {
        panic!("{:?}", told(host).await);
    };
    connect(host, since.0 + SignedDuration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_wakes_what_an_annotation_sent_to_sleep() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    assert_eq!(told(&host).await, None);

    annotate(&host, "now").await;
    host.bring("a", "the pod is to end", async || {
        ready(&host).await == "False/AsleepOnRequest" && replicas(&host).await == Some(0)
    })
    .await;
    let cluster = host.cluster("a").await;
    assert!(!cluster.metadata.annotations.unwrap_or_default().contains_key(SLEEP));
    let Some(Asleep::OnConnect { callers, .. }) = told(&host).await else {
        panic!("{:?}", told(&host).await);
    };
    assert_eq!(callers, Callers::Authenticated);
    end_pod(&host).await;
    host.bring("a", "it is asleep", async || {
        asleep(&host).await == "True/AsleepOnRequest"
    })
    .await;

    // An operator that has just started finds the same state.
    let mut host = host;
    host.restart_operator().await;
    host.reconcile("a").await.unwrap();
    assert_eq!(
        (replicas(&host).await, asleep(&host).await),
        (Some(0), "True/AsleepOnRequest".into())
    );

    ask(&host).await;
    host.bring("a", "a control plane is asked for", async || {
        replicas(&host).await == Some(1)
    })
    .await;
    let waking = told(&host).await;
    assert!(
        matches!(waking, Some(Asleep::Waking { .. })),
        "no API answers yet: {waking:?}"
    );
    run_pod(&host, "a").await;
    be_unready(&host).await;
    host.bring("a", "it is awake", async || ready(&host).await == "True/AsExpected")
        .await;
    assert_eq!(told(&host).await, None);
    assert_eq!(asleep(&host).await, "False/WokenOnConnect");

    // Again within the same second.
    annotate(&host, "now").await;
    host.bring("a", "it sleeps again", async || replicas(&host).await == Some(0))
        .await;
    let activity = host.cluster("a").await.status.unwrap().activity.unwrap();
    assert!(
        activity.sleep_requested_time > activity.wake_requested_time,
        "{activity:?}"
    );
}

/// Writes the time of a sleep request, as the operator does.
async fn write_sleep(host: &Host, time: Option<Timestamp>) {
    let activity = time.map_or(json!({}), |time| json!({"sleepRequestedTime": time.to_string()}));
    let patch = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
        "status": {"activity": activity}});
    let params = PatchParams::apply("yoke-operator-sleep").force();
    host.clusters()
        .patch_status("a", &params, &Patch::Apply(&patch))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_that_the_watch_does_not_tell_yet_starts_nothing() {
    let mut host = Host::start().await;
    let id = host.bring_up("a").await.id().unwrap();
    annotate(&host, "now").await;
    host.bring("a", "it sleeps", async || replicas(&host).await == Some(0))
        .await;
    ask(&host).await;
    host.stop_watches("a").await;
    // The cluster was woken, and has gone to sleep again since.
    let slept = Timestamp::now() + SignedDuration::from_secs(60);
    write_sleep(&host, Some(slept)).await;
    host.context
        .memory
        .update(&id, |memory| memory.sleep_requested = Some(Time(slept)));
    for _ in 0..3 {
        host.reconcile_known("a").await.unwrap();
        assert_eq!(replicas(&host).await, Some(0), "it is started by a Cluster from before");
    }
    // The request is withdrawn, as by the owner's wake request. The recorded time no longer counts.
    write_sleep(&host, None).await;
    host.reconcile_known("a").await.unwrap();
    assert_eq!(replicas(&host).await, Some(1));
    assert_eq!(host.context.memory.seen(&id).sleep_requested, None);
}

/// Returns the resource version of the control plane's NetworkPolicy, if there is one.
async fn restricted(host: &Host) -> Option<u64> {
    let policies = host.api::<NetworkPolicy>(&host.hosted("a").await);
    let policy = policies.get_opt("control-plane").await.unwrap();
    policy.map(|policy| version_of(&policy))
}

fn version_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_policy_is_there_as_long_as_there_may_be_a_pod() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    for _ in 0..3 {
        let made = restricted(&host).await.expect("a pod is there");
        annotate(&host, "now").await;
        host.bring("a", "the pod is to end", async || replicas(&host).await == Some(0))
            .await;
        host.reconcile("a").await.unwrap();
        assert_eq!(restricted(&host).await, Some(made), "the pod is still there");
        end_pod(&host).await;
        host.bring("a", "it is asleep", async || asleep(&host).await.starts_with("True"))
            .await;
        host.reconcile("a").await.unwrap();
        assert_eq!(restricted(&host).await, Some(made), "a pod may still be made");
        see_set(&host, "a", 0).await;
        host.bring("a", "no pod can come", async || restricted(&host).await.is_none())
            .await;

        // Before a watch may deliver its deletion.
        ask(&host).await;
        host.bring("a", "a control plane is asked for", async || {
            replicas(&host).await == Some(1)
        })
        .await;
        let set = host.stateful_set(&host.hosted("a").await).await.unwrap();
        let made = restricted(&host).await.expect("a pod is to come");
        assert!(made < version_of(&set), "the pod was asked for first");
        run_pod(&host, "a").await;
        host.bring("a", "it is awake", async || ready(&host).await == "True/AsExpected")
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_never_awake_has_no_network_policy() {
    let host = Host::start().await;
    let mut cluster = Cluster::new("a", ClusterSpec::default());
    cluster.spec.state = DesiredState::Asleep;
    host.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    host.bring("a", "its control plane is known", async || {
        replicas(&host).await == Some(0)
    })
    .await;
    assert_eq!(restricted(&host).await, None);
    host.patch_cluster("a", json!({"spec": {"state": "Running"}})).await;
    host.bring("a", "a pod is asked for", async || replicas(&host).await == Some(1))
        .await;
    let set = host.stateful_set(&host.hosted("a").await).await.unwrap();
    assert!(restricted(&host).await.expect("a pod is to come") < version_of(&set));
}

/// Puts it to sleep, and records a connection.
async fn wake(host: &Host) {
    annotate(host, "now").await;
    host.bring("a", "it sleeps", async || {
        matches!(told(host).await, Some(Asleep::OnConnect { .. }))
    })
    .await;
    if host
        .api::<Pod>(&host.hosted("a").await)
        .get_opt("control-plane-0")
        .await
        .unwrap()
        .is_some()
    {
        end_pod(host).await;
    }
    ask(host).await;
    host.bring("a", "a control plane is asked for", async || {
        replicas(host).await == Some(1)
    })
    .await;
    run_pod(host, "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_woke_it_is_let_in_before_what_was_there_is_made_sure_of() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let server = TenantServer::start(&host, "a").await;
    {
        let mut behaviour = server.behaviour.lock().unwrap();
        (behaviour.has_account, behaviour.is_starting) = (true, true);
        behaviour.hangs = true;
    }
    wake(&host).await;
    for (why, lacks_namespaces, hangs) in [
        ("nobody may do anything there yet", false, true),
        ("what comes first has no place", true, false),
    ] {
        {
            let mut behaviour = server.behaviour.lock().unwrap();
            (behaviour.lacks_namespaces, behaviour.hangs) = (lacks_namespaces, hangs);
        }
        host.reconcile("a").await.unwrap();
        let told = told(&host).await;
        assert!(matches!(told, Some(Asleep::Waking { .. })), "{why}: {told:?}");
    }
    server.behaviour.lock().unwrap().lacks_namespaces = false;
    host.bring("a", "callers are let in", async || told(&host).await.is_none())
        .await;
    assert_eq!(ready(&host).await, "False/APIServerNotReady", "roles are still made");
    server.behaviour.lock().unwrap().is_starting = false;
    host.bring("a", "it is awake", async || ready(&host).await == "True/AsExpected")
        .await;
    assert_eq!(told(&host).await, None);

    server.behaviour.lock().unwrap().is_starting = true;
    wake(&host).await;
    be_unready(&host).await;
    host.bring("a", "callers are let in", async || told(&host).await.is_none())
        .await;
    assert_eq!(ready(&host).await, "False/APIServerNotReady");
}

/// Kubelets whose certificates have expired could not register again.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_nodes_does_not_sleep_for_too_long() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let sleep = json!({"withWorkers": "Allow", "schedules": [{"sleep": "0 0 1 1 *"}]});
    host.patch_cluster("a", json!({"spec": {"sleep": sleep}})).await;
    let _server = run_ready(&host).await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps", async || replicas(&host).await == Some(0))
        .await;
    end_pod(&host).await;
    let slept = async |days: i64, nodes: i32| {
        let since = Timestamp::now() - SignedDuration::from_hours(24 * days);
        let activity = json!({"sleepRequestedTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
        let patch = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"},
            "status": {"nodes": nodes, "activity": activity}});
        // With the operator's field manager, so that the operator can remove the field.
        let params = PatchParams::apply("yoke-operator-sleep").force();
        host.clusters()
            .patch_status("a", &params, &Patch::Apply(&patch))
            .await
            .unwrap();
    };
    for (rule, days, nodes) in [("not for five days", 5, 1), ("there is none", 80, 0)] {
        slept(days, nodes).await;
        for _ in 0..3 {
            host.reconcile("a").await.unwrap();
            assert_eq!(replicas(&host).await, Some(0), "{rule}");
        }
    }
    host.patch_cluster("a", json!({"spec": {"sleep": {"withWorkers": "Prevent"}}}))
        .await;
    slept(80, 1).await;
    host.bring("a", "it is said what that means", async || {
        let conditions = host.cluster("a").await.status.unwrap().conditions;
        let mut asleep = conditions.iter().filter(|condition| condition.type_ == "Asleep");
        asleep.any(|condition| condition.message.contains("cannot reconnect"))
    })
    .await;
    assert_eq!(replicas(&host).await, Some(0));
    host.patch_cluster("a", json!({"spec": {"sleep": {"withWorkers": "Allow"}}}))
        .await;
    host.bring("a", "it is woken for its Nodes", async || {
        replicas(&host).await == Some(1)
    })
    .await;
    let events = host.api::<Event>(TENANT).list(&Default::default()).await.unwrap().items;
    let mut reasons = events.iter().filter_map(|event| event.reason.as_deref());
    assert!(reasons.any(|reason| reason == "WokenForWorkers"));
    run_pod(&host, "a").await;
    host.bring("a", "it is awake", async || ready(&host).await == "True/AsExpected")
        .await;
    assert_eq!(replicas(&host).await, Some(1));
}

/// Sets the wake request to a minute ago.
async fn wait_long(host: &Host) {
    let hosted = host.hosted("a").await;
    let map = host.api::<ConfigMap>(&hosted).get("yoke-ingress").await.unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&map.data.unwrap()["ingress.json"]).unwrap();
    let past = Timestamp::now() - SignedDuration::from_mins(1);
    config["asleep"]["waking"]["since"] = past.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    let patch = json!({"data": {"ingress.json": config.to_string()}});
    host.api::<ConfigMap>(&hosted)
        .patch("yoke-ingress", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
}

/// Waiting clients get a reason that the owner can act on, but no internal failure of the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_wake_that_fails_says_so() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps", async || replicas(&host).await == Some(0))
        .await;
    end_pod(&host).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
    host.context.host.replace_root_certificate(leaf).await;
    ask(&host).await;
    host.bring("a", "it is woken, and that fails", async || {
        matches!(told(&host).await, Some(Asleep::Waking { problem: None, .. }))
            && condition(&host.cluster("a").await, "Degraded") == "True/ReconcileFailed"
    })
    .await;
    wait_long(&host).await;
    host.bring("a", "who waits is told", async || {
        matches!(told(&host).await, Some(Asleep::Waking { problem: Some(_), .. }))
    })
    .await;
    let Some(Asleep::Waking { problem: Some(why), .. }) = told(&host).await else {
        unreachable!();
    };
    assert_eq!(
        why,
        "The host cannot apply the Cluster (ReconcileFailed). See its condition Degraded."
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_without_a_store_says_so() {
    // Room for the host's own store, and for less than the default size of a Cluster's.
    let host = Host::start_on(Server::start_with_room("3GB").await).await;
    host.make_cluster("a").await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps, and never ran", async || {
        condition(&host.cluster("a").await, "CertificatesReady") == "True/AsExpected"
    })
    .await;
    let store = condition(&host.cluster("a").await, "StoreReady");
    assert_eq!(store, "False/StoreQuotaExceeded");
    ask(&host).await;
    host.bring("a", "it is woken", async || {
        matches!(told(&host).await, Some(Asleep::Waking { problem: None, .. }))
    })
    .await;
    wait_long(&host).await;
    host.bring("a", "who waits is told", async || {
        matches!(told(&host).await, Some(Asleep::Waking { problem: Some(why), .. }) if why.contains("StoreQuotaExceeded"))
    })
    .await;
    assert_eq!(asleep(&host).await, "False/WakeDelayed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_that_takes_too_long_says_why() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let server = run_ready(&host).await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps", async || replicas(&host).await == Some(0))
        .await;
    end_pod(&host).await;
    ask(&host).await;
    host.bring("a", "it is woken", async || {
        matches!(told(&host).await, Some(Asleep::Waking { problem: None, .. }))
    })
    .await;

    // No pod has appeared either.
    wait_long(&host).await;
    host.bring("a", "it is said", async || asleep(&host).await == "False/WakeDelayed")
        .await;
    let late = told(&host).await;
    assert!(
        matches!(&late, Some(Asleep::Waking { problem: Some(why), .. }) if why.contains("pod")),
        "{late:?}"
    );
    host.until("it is an event", async || {
        host.events().await.contains(&"WakeDelayed".to_owned())
    })
    .await;

    run_pod(&host, "a").await;
    host.bring("a", "it is awake", async || ready(&host).await == "True/AsExpected")
        .await;
    assert_eq!(
        (told(&host).await, asleep(&host).await),
        (None, "False/WokenOnConnect".into())
    );
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owners_word_wins() {
    let host = Host::start().await;
    host.bring_up("a").await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps", async || replicas(&host).await == Some(0))
        .await;
    host.patch_cluster("a", json!({"spec": {"state": "Asleep"}})).await;
    host.bring("a", "its owner has it sleep", async || {
        asleep(&host).await == "True/AsleepByOwner"
    })
    .await;
    let Some(Asleep::Held { why }) = told(&host).await else {
        panic!("{:?}", told(&host).await);
    };
    assert!(why.contains("spec.state"), "{why}");
    connect(&host, Timestamp::now() + SignedDuration::from_secs(60)).await;
    host.reconcile("a").await.unwrap();
    assert_eq!(
        (replicas(&host).await, asleep(&host).await),
        (Some(0), "True/AsleepByOwner".into())
    );

    // The owner's request to run also counts: the earlier sleep request is over.
    host.patch_cluster("a", json!({"spec": {"state": "Running"}})).await;
    host.bring("a", "it is to run", async || replicas(&host).await == Some(1))
        .await;

    // A connection does not wake a Cluster whose owner forbids that, but the owner can.
    host.patch_cluster("a", json!({"spec": {"sleep": {"wakeOnConnect": "Never"}}}))
        .await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps again", async || replicas(&host).await == Some(0))
        .await;
    let held = told(&host).await;
    assert!(
        matches!(&held, Some(Asleep::Held { why }) if why.contains("sleep=end")),
        "{held:?}"
    );
    annotate(&host, "end").await;
    host.bring("a", "it wakes", async || replicas(&host).await == Some(1))
        .await;
    let annotations = host.cluster("a").await.metadata.annotations.unwrap_or_default();
    assert!(!annotations.contains_key(SLEEP));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_or_refused_stays_as_it_is() {
    let host = Host::start().await;
    host.bring_up("a").await;
    annotate(&host, "now").await;
    host.bring("a", "it sleeps", async || replicas(&host).await == Some(0))
        .await;
    for (change, part) in [
        (json!({"spec": {"paused": true}}), "spec.paused"),
        (json!({"spec": {"paused": false, "class": "huge"}}), "refused"),
    ] {
        host.patch_cluster("a", change).await;
        host.bring(
            "a",
            "the ingress is told",
            async || matches!(told(&host).await, Some(Asleep::Held { why }) if why.contains(part)),
        )
        .await;
        connect(&host, Timestamp::now() + SignedDuration::from_secs(60)).await;
        host.reconcile("a").await.unwrap();
        assert_eq!(replicas(&host).await, Some(0), "{part}");
        assert!(matches!(told(&host).await, Some(Asleep::Held { .. })), "{part}");
    }
}

/// The node of its pod is down, and its kubelet with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_nobody_ends_keeps_no_cluster_from_sleep() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;
    let hosted = host.hosted("a").await;
    let pods = host.api::<Pod>(&hosted);
    let binding = json!({"metadata": {"name": "control-plane-0"}, "target": {"kind": "Node", "name": "dead"}});
    let binding: Binding = serde_json::from_value(binding).unwrap();
    let params = PostParams::default();
    pods.create_subresource::<_, Status>("binding", "control-plane-0", &params, &binding)
        .await
        .unwrap();
    let number = async || {
        let template = host.stateful_set(&hosted).await.unwrap().spec.unwrap().template;
        let annotations = template.metadata.unwrap().annotations.unwrap();
        annotations["yoke.drzzl.io/incarnation"].parse::<u64>().unwrap()
    };
    let before = number().await;

    annotate(&host, "now").await;
    host.bring("a", "the pod is to end", async || replicas(&host).await == Some(0))
        .await;
    let short = DeleteParams::default().grace_period(1);
    pods.delete("control-plane-0", &short).await.unwrap();
    // The pod may still run: the next one has another incarnation.
    host.bring("a", "another start is asked for", async || number().await > before)
        .await;
    assert!(pods.get_opt("control-plane-0").await.unwrap().is_some());
    host.bring("a", "it is asleep", async || {
        see_set(&host, "a", 0).await;
        asleep(&host).await == "True/AsleepOnRequest"
    })
    .await;
    assert!(pods.get_opt("control-plane-0").await.unwrap().is_none());

    ask(&host).await;
    host.bring("a", "a control plane is asked for", async || {
        see_set(&host, "a", 1).await;
        replicas(&host).await == Some(1)
    })
    .await;
    assert!(number().await > before);
}
