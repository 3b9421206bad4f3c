//! A Cluster that goes to sleep when it has been idle for long enough, by the activity that its
//! store reports.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use yoke_api::JoinToken;
use yoke_api::sleep::SleepReason;

use crate::harness::{Host, TENANT, condition};
use crate::readiness::{run_pod, run_ready};
use crate::tenant_api::TenantServer;

/// A store that only reports activity. It stops listening when dropped.
struct Store {
    /// Answer to each query.
    report: Arc<Mutex<Value>>,
    /// Number of queries.
    queries: Arc<Mutex<usize>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Store {
    /// Listens at the address of the Cluster's Service, and reports the pod as running there.
    async fn start(host: &Host, name: &str) -> Self {
        let hosted = host.hosted(name).await;
        let service = host.api::<Service>(&hosted).get(name).await.unwrap();
        let address = service.spec.unwrap().cluster_ip.unwrap();
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let pods = host.api::<Pod>(&hosted);
        pods.patch_status("control-plane-0", &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
        let listener = TcpListener::bind(format!("{address}:2381")).await.unwrap();
        let (report, queries) = (Arc::new(Mutex::new(json!({}))), Arc::new(Mutex::new(0)));
        let (shared, count) = (Arc::clone(&report), Arc::clone(&queries));
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 4096];
                let length = stream.read(&mut request).await.unwrap();
                // The store is also notified before its pod ends.
                if request[..length].starts_with(b"POST /release ") {
                    continue;
                }
                assert!(request[..length].starts_with(b"GET /activity "));
                *count.lock().unwrap() += 1;
                let body = shared.lock().unwrap().to_string();
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        Self { report, queries, task }
    }

    /// Sets the report: seconds since the start of the API server, when the last request came, and
    /// the number of open requests.
    fn set_report(&self, passed: i64, last: i64, open: u64) {
        let now = Timestamp::now().as_second();
        *self.report.lock().unwrap() =
            json!({"now": now + passed, "since": now - 60, "last": now + last, "open": open});
    }

    /// Returns the number of queries so far.
    fn queries(&self) -> usize {
        *self.queries.lock().unwrap()
    }
}

/// Returns whether the current template makes the store count requests.
async fn counts_requests(host: &Host) -> bool {
    let set = host.stateful_set(&host.hosted("a").await).await.unwrap();
    let mut containers = set.spec.unwrap().template.spec.unwrap().containers;
    let store = containers.remove(0);
    store.args.unwrap().contains(&"--audit=127.0.0.1:2382".to_owned())
}

async fn reconcile_until_counting(host: &Host) {
    let observe = async || counts_requests(host).await;
    host.reconcile_until_equal("a", "the store's counting of requests", observe, true)
        .await;
}

/// Makes the operator query the store at once, as after a restart.
async fn query_store(host: &mut Host) {
    host.restart_operator().await;
    host.reconcile_until_ready("a").await;
}

/// Creates a Cluster that goes to sleep after ten idle minutes, with a store that counts requests.
async fn bring_up_with_sleep(host: &Host) -> TenantServer {
    host.bring_up("a").await;
    host.patch_cluster("a", json!({"spec": {"sleep": {"afterInactivity": "10m"}}}))
        .await;
    let server = TenantServer::start(host, "a").await;
    server.behaviour.lock().unwrap().has_account = true;
    reconcile_until_counting(host).await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_cluster_goes_to_sleep() {
    let mut host = Host::start().await;
    let server = bring_up_with_sleep(&host).await;
    let hosted = host.hosted("a").await;
    let policy = host.api::<NetworkPolicy>(&hosted).get("control-plane").await.unwrap();
    assert!(
        format!("{policy:?}").contains("2381"),
        "the operator cannot query the store"
    );
    run_pod(&host, "a").await;
    let store = Store::start(&host, "a").await;

    // One query, and the next not before the Cluster could go to sleep.
    store.set_report(300, 10, 0);
    query_store(&mut host).await;
    // Another query once the number of Nodes is known.
    let id = host.cluster("a").await.id().unwrap();
    let due_in = async || {
        let activity = host.context.memory.running(&id).activity;
        activity.map(|activity| activity.due.saturating_duration_since(Instant::now()))
    };
    host.reconcile_until("a", "a next query in more than a minute", due_in, |due_in| {
        due_in.is_some_and(|due_in| due_in > Duration::from_mins(1))
    })
    .await;
    let queries = store.queries();
    assert!(queries > 0);
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    assert_eq!(store.queries(), queries);
    assert_eq!(host.replicas("a").await, Some(1));
    let activity = host.cluster("a").await.status.unwrap().activity.unwrap();
    assert!(activity.last_activity_time.is_some());

    // A client has an open watch.
    store.set_report(9000, 10, 1);
    query_store(&mut host).await;
    assert_eq!(host.replicas("a").await, Some(1), "a request is open");

    // A worker may join.
    let tokens = host.api::<JoinToken>(TENANT);
    let token = json!({"metadata": {"name": "j"}, "spec": {"clusterName": "a"}});
    let token: JoinToken = serde_json::from_value(token).unwrap();
    tokens.create(&PostParams::default(), &token).await.unwrap();
    store.set_report(9000, 10, 0);
    query_store(&mut host).await;
    assert_eq!(host.replicas("a").await, Some(1), "a JoinToken blocks sleep");
    host.reconcile_until_condition("a", "SleepPossible", "False/JoinTokenHolds")
        .await;
    tokens.delete("j", &Default::default()).await.unwrap();

    // A worker is connected, and then silent for as long as the last use is ago.
    let node = |ready: &str| {
        let past = Timestamp::now() - SignedDuration::from_mins(6);
        let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": past.to_string()});
        json!({"metadata": {"name": "n"}, "status": {"conditions": [ready]}})
    };
    server.behaviour.lock().unwrap().nodes = vec![node("True")];
    query_store(&mut host).await;
    assert_eq!(host.replicas("a").await, Some(1), "a worker is connected");
    host.reconcile_until_condition("a", "SleepPossible", "False/WorkersConnected")
        .await;
    server.behaviour.lock().unwrap().nodes = vec![node("Unknown")];

    host.restart_operator().await;
    host.reconcile_until_replicas("a", 0).await;
    let cluster = host.cluster("a").await;
    assert_eq!(condition(&cluster, "Ready"), "False/AsleepOnInactivity");
    let activity = cluster.status.unwrap().activity.unwrap();
    assert_eq!(activity.sleep_reason, Some(SleepReason::Inactivity));
    let pods = host.api::<Pod>(&hosted);
    let now = kube::api::DeleteParams::default().grace_period(0);
    pods.delete("control-plane-0", &now).await.unwrap();
    host.reconcile_until_condition("a", "Asleep", "True/AsleepOnInactivity")
        .await;
    let queries = store.queries();
    host.reconcile("a").await.unwrap();
    assert_eq!(store.queries(), queries, "a sleeping store was queried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_on_workers_blocks_sleep() {
    let mut host = Host::start().await;
    host.bring_up("a").await;
    host.patch_cluster(
        "a",
        json!({"spec": {"sleep": {"afterInactivity": "10m", "withWorkers": "Allow"}}}),
    )
    .await;
    reconcile_until_counting(&host).await;
    let server = run_ready(&host).await;
    let store = Store::start(&host, "a").await;
    store.set_report(9000, 10, 0);
    let hook = |policy: &str| {
        json!({"metadata": {"name": "guard"}, "webhooks": [{"name": "guard.example.org", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "failurePolicy": policy,
            "clientConfig": {"service": {"namespace": "guard", "name": "guard"}},
            "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]}]})
    };
    {
        let mut behaviour = server.behaviour.lock().unwrap();
        behaviour.nodes = vec![json!({"metadata": {"name": "n"}})];
        behaviour.webhooks = vec![hook("Fail")];
    }
    query_store(&mut host).await;
    host.reconcile_until_condition("a", "SleepPossible", "False/WebhookBlocksWake")
        .await;
    assert_eq!(host.replicas("a").await, Some(1));

    server.behaviour.lock().unwrap().webhooks = vec![hook("Ignore")];
    host.restart_operator().await;
    host.reconcile_until_replicas("a", 0).await;
}

/// Sets the last handled time of a schedule to a day ago.
async fn age_schedule(host: &Host) {
    let scheduled = async || {
        let status = host.cluster("a").await.status.unwrap_or_default();
        status.activity.and_then(|activity| activity.scheduled_time)
    };
    host.reconcile_until("a", "a last handled time of the schedule", scheduled, Option::is_some)
        .await;
    let past = Timestamp::now() - SignedDuration::from_hours(24);
    let status = json!({"status": {"activity": {"scheduledTime": past.to_string()}}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(status));
    host.clusters().patch_status("a", &params, &patch).await.unwrap();
}

async fn schedule(host: &Host, schedule: Value) {
    host.patch_cluster("a", json!({"spec": {"sleep": {"schedules": [schedule]}}}))
        .await;
    host.reconcile("a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_puts_a_cluster_to_sleep_and_wakes_it() {
    let host = Host::start().await;
    host.bring_up("a").await;
    let _server = run_ready(&host).await;

    // Times before the schedule existed have no effect.
    schedule(&host, json!({"sleep": "0 0 * * *", "timeZone": "Europe/Berlin"})).await;
    host.reconcile("a").await.unwrap();
    assert_eq!(host.replicas("a").await, Some(1));
    schedule(&host, json!({"sleep": "* * * * *"})).await;
    age_schedule(&host).await;
    host.reconcile_until_replicas("a", 0).await;
    let cluster = host.cluster("a").await;
    assert_eq!(condition(&cluster, "Ready"), "False/AsleepOnSchedule");

    // The schedule wakes it, without a connection.
    schedule(&host, json!({"wake": "* * * * *"})).await;
    age_schedule(&host).await;
    host.reconcile_until_replicas("a", 1).await;

    // With an unknown time zone.
    schedule(&host, json!({"wake": "0 8 * * *", "timeZone": "Europe/Atlantis"})).await;
    host.reconcile_until_condition("a", "Accepted", "False/ScheduleInvalid")
        .await;
}

/// A refused Cluster continues to run. Otherwise a missed sleep would take effect when the spec is
/// fixed, while the Cluster is in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_cluster_is_not_put_to_sleep() {
    let mut host = Host::start().await;
    let _server = bring_up_with_sleep(&host).await;
    run_pod(&host, "a").await;
    host.reconcile_until_ready("a").await;
    let store = Store::start(&host, "a").await;
    let change = json!({"spec": {"class": "huge", "sleep": {"schedules": [{"sleep": "0 0 * * *"}]}}});
    host.patch_cluster("a", change).await;
    host.reconcile_until_condition("a", "Accepted", "False/UnknownClass")
        .await;

    // The Cluster has been idle for hours, and it was midnight.
    store.set_report(9000, 10, 0);
    host.restart_operator().await;
    age_schedule(&host).await;
    let scheduled = async || {
        host.cluster("a")
            .await
            .status
            .unwrap()
            .activity
            .unwrap()
            .scheduled_time
            .unwrap()
    };
    let late = scheduled().await;
    host.reconcile_until("a", "a later handled time of the schedule", scheduled, |time| {
        time.0 > late.0
    })
    .await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    let activity = host.cluster("a").await.status.unwrap().activity.unwrap();
    assert_eq!(activity.sleep_requested_time, None);

    // By now the Cluster is in use again.
    store.set_report(9000, 8990, 0);
    host.patch_cluster("a", json!({"spec": {"class": null}})).await;
    host.restart_operator().await;
    host.reconcile_until_condition("a", "Accepted", "True/Valid").await;
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
    }
    let activity = host.cluster("a").await.status.unwrap().activity.unwrap();
    assert_eq!(activity.sleep_requested_time, None);
    assert_eq!(host.replicas("a").await, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_sleep_settings_are_refused() {
    let host = Host::start().await;
    host.create_cluster("a").await;
    for (sleep, part) in [
        (json!({"afterInactivity": "0m"}), "afterInactivity"),
        (json!({"afterInactivity": "30s"}), "afterInactivity"),
        (json!({"afterInactivity": "soon"}), "afterInactivity"),
        (json!({"ignoreUserAgents": ["a*b"]}), "ignoreUserAgents"),
        (json!({"ignoreUserAgents": ["*"]}), "ignoreUserAgents"),
        (json!({"ignoreUserAgents": [""]}), "ignoreUserAgents"),
        (
            json!({"schedules": [{"timeZone": "UTC"}]}),
            "a schedule must have sleep, wake, or both",
        ),
        (json!({"schedules": [{"wake": "0 8 * *"}]}), "wake"),
        (json!({"schedules": [{"wake": "0 8 * * * UTC"}]}), "wake"),
    ] {
        let patch = Patch::Merge(json!({"spec": {"sleep": sleep}}));
        let refused = host.clusters().patch("a", &PatchParams::default(), &patch).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(part), "{sleep}: {error}");
    }
}
