//! Nodes of silent workers are deleted from a real API, with Kubernetes' own controllers for their
//! Pods.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use yoke_api::ClusterId;
use yoke_test_support::kubernetes::connect;

use crate::harness::{Host, TENANT};
use crate::readiness::ready;
use crate::workers::{Answer, CLIENT, Stage};

const REAP_AFTER: &str = "yoke.drzzl.io/reap-after";
const REAPING: &str = "yoke.drzzl.io/reaping";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// More checks than needed to detect that a Lease is not renewed.
const CHECKS: usize = 6;

/// Nodes and their Leases, as kubelets create them.
struct Workers<'a> {
    host: &'a Host,
    id: ClusterId,
    nodes: Api<Node>,
    leases: Api<Lease>,
}

impl<'a> Workers<'a> {
    async fn of(stage: &'a Stage) -> Self {
        Self {
            host: &stage.host,
            id: stage.host.cluster("a").await.id().unwrap(),
            nodes: Api::all(stage.client.clone()),
            leases: Api::namespaced(stage.client.clone(), "kube-node-lease"),
        }
    }

    /// Registers a Node as its kubelet does. Its Lease was renewed this many minutes ago.
    async fn register(&self, name: &str, minutes: i64) {
        let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let node = self.nodes.create(&PostParams::default(), &node).await.unwrap();
        if self.lease(name).await.is_none() {
            let lease = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
            self.leases.create(&PostParams::default(), &lease).await.unwrap();
        }
        let owner = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.metadata.uid});
        self.patch_lease(name, json!({"metadata": {"ownerReferences": [owner]}}))
            .await;
        self.renew(name, minutes).await;
        self.host
            .context
            .memory
            .update_running(&self.id, |running| running.nodes = None);
    }

    async fn renew(&self, name: &str, minutes: i64) {
        let time = Timestamp::now() - SignedDuration::from_mins(minutes);
        let time = time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
        self.patch_lease(name, json!({"spec": {"renewTime": time}})).await;
    }

    async fn patch_lease(&self, name: &str, patch: Value) {
        let params = PatchParams::default();
        self.leases.patch(name, &params, &Patch::Merge(patch)).await.unwrap();
    }

    async fn lease(&self, name: &str) -> Option<Lease> {
        self.leases.get_opt(name).await.unwrap()
    }

    /// Returns the `reapAfter` label of a Node's Lease.
    async fn promise(&self, name: &str) -> Option<String> {
        let labels = self.lease(name).await?.metadata.labels;
        labels.and_then(|mut labels| labels.remove(REAP_AFTER))
    }

    async fn has(&self, name: &str) -> bool {
        self.nodes.get_opt(name).await.unwrap().is_some()
    }

    /// Returns whether a Node is marked, and whether it is tainted as out of service.
    async fn state(&self, name: &str) -> (bool, bool) {
        let node = self.nodes.get(name).await.unwrap();
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let is_marked = node.metadata.labels.is_some_and(|labels| labels.contains_key(REAPING));
        (is_marked, taints.iter().any(|taint| taint.key == OUT_OF_SERVICE))
    }

    /// Checks the cluster until the observed value is the expected one, while the Nodes in `alive`
    /// renew their Leases.
    async fn until_equal<T>(&self, what: &str, alive: &[&str], observe: impl AsyncFn() -> T, expected: T)
    where
        T: std::fmt::Debug + PartialEq,
    {
        let observe = async || {
            for name in alive {
                self.renew(name, 0).await;
            }
            let _ = self.host.reconcile("a").await;
            observe().await
        };
        self.host.until_equal(what, observe, expected).await;
    }

    /// Returns the states of these Nodes.
    async fn states(&self, names: &[&str]) -> Vec<(bool, bool)> {
        let mut states = Vec::new();
        for name in names {
            states.push(self.state(name).await);
        }
        states
    }

    /// Waits for some checks: each removes the mark of a Node that renews.
    async fn check(&self, alive: &str) {
        for _ in 0..CHECKS {
            let mark = Patch::Merge(json!({"metadata": {"labels": {REAPING: "1000"}}}));
            self.nodes.patch(alive, &PatchParams::default(), &mark).await.unwrap();
            let state = async || self.state(alive).await;
            self.until_equal("the state of the alive Node", &[alive], state, (false, false))
                .await;
        }
    }

    /// Sets the cluster's Ready condition and how long ago it changed.
    async fn set_ready(&self, status: &str, minutes: i64) {
        let mut conditions = self.host.cluster("a").await.status.unwrap().conditions;
        let ready = conditions
            .iter_mut()
            .find(|condition| condition.type_ == "Ready")
            .unwrap();
        ready.status = status.into();
        ready.last_transition_time.0 = Timestamp::now() - SignedDuration::from_mins(minutes);
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        let clusters = self.host.api::<yoke_api::Cluster>(TENANT);
        let params = PatchParams::default();
        clusters.patch_status("a", &params, &patch).await.unwrap();
    }
}

async fn join(stage: &Stage, token: &str, names: &[&str]) {
    let bootstrap = connect(&stage.url, &stage.join_line(token).await.token);
    for name in names {
        let answer = stage.request_and_wait(&bootstrap, name, CLIENT, name, &[]).await;
        assert!(matches!(answer, Answer::Signed(_)), "{name}: {answer:?}");
    }
}

async fn run_pod(stage: &Stage, node: &str) -> Api<Pod> {
    let pods = Api::<Pod>::default_namespaced(stage.client.clone());
    let pod = json!({"metadata": {"name": node}, "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": false, "containers": [{"name": "a", "image": "a"}]}});
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_silent_node_is_deleted_with_its_pods() {
    let stage = Stage::start().await;
    let host = &stage.host;
    let workers = Workers::of(&stage).await;
    // The eviction controller depends on the one that sets the conditions of Nodes.
    let names = "pod-garbage-collector-controller,taint-eviction-controller,node-lifecycle-controller";
    let _controllers = host.start_controllers(&stage.url, names);
    let spec = json!({"clusterName": "a", "maxUses": 4, "reapAfter": "1m"});
    stage.create_token("j", spec).await;
    stage.create_token("k", json!({"clusterName": "a", "maxUses": 2})).await;
    stage.reconcile_token_until("j", "True/AsExpected").await;
    stage.reconcile_token_until("k", "True/AsExpected").await;
    join(&stage, "j", &["dead", "back", "spared", "alive"]).await;
    join(&stage, "k", &["other"]).await;
    assert_eq!(workers.promise("dead").await.as_deref(), Some("1m"));
    assert_eq!(workers.promise("other").await, None);
    for name in ["dead", "back", "spared", "other"] {
        workers.register(name, 10).await;
    }
    workers.register("alive", 0).await;
    let dead_pods = run_pod(&stage, "dead").await;
    let other_pods = run_pod(&stage, "other").await;

    // The JoinToken is no longer needed.
    stage.tokens().delete("j", &Default::default()).await.unwrap();

    // While the cluster was not Ready, Nodes could not renew their Leases. The time starts again
    // when it is Ready.
    workers.set_ready("False", 60).await;
    let is_ready = async || ready(host).await;
    let expected = "True/AsExpected".to_owned();
    workers
        .until_equal("the condition Ready", &["alive"], is_ready, expected)
        .await;
    workers.check("alive").await;
    for name in ["dead", "back", "spared", "other"] {
        assert_eq!(workers.state(name).await, (false, false), "{name}");
    }

    workers.set_ready("True", 60).await;
    let states = async || workers.states(&["dead", "back", "spared"]).await;
    let expected = vec![(true, true); 3];
    workers
        .until_equal("the states of dead, back, and spared", &["alive"], states, expected)
        .await;
    workers
        .patch_lease("spared", json!({"metadata": {"labels": {REAP_AFTER: null}}}))
        .await;
    let states = async || workers.states(&["back", "spared"]).await;
    let (alive, expected) = (["alive", "back"], vec![(false, false); 2]);
    workers
        .until_equal("the states of back and spared", &alive, states, expected)
        .await;
    let has_pod = async || dead_pods.get_opt("dead").await.unwrap().is_some();
    workers
        .until_equal("the existence of the dead Node's Pod", &alive, has_pod, false)
        .await;
    let has_node = async || workers.has("dead").await;
    workers
        .until_equal("the existence of the dead Node", &alive, has_node, false)
        .await;
    workers.check("alive").await;
    for name in ["back", "spared", "alive", "other"] {
        assert_eq!(workers.state(name).await, (false, false), "{name}");
    }
    assert!(other_pods.get_opt("other").await.unwrap().is_some());
    let events = Api::<Event>::namespaced(stage.client.clone(), "default");
    let events = events.list(&Default::default()).await.unwrap();
    let event_reasons = |name: &str| -> Vec<_> {
        let mut reasons: Vec<_> = events
            .iter()
            .filter(|event| event.involved_object.name.as_deref() == Some(name))
            .filter_map(|event| event.reason.clone())
            .filter(|reason| reason.starts_with("Node"))
            .collect();
        reasons.sort_unstable();
        reasons
    };
    assert_eq!(event_reasons("dead"), ["NodeSilent"]);
    assert_eq!(event_reasons("back"), ["NodeReturned", "NodeSilent"]);
    assert_eq!(event_reasons("other"), [""; 0]);

    // The name can be used again, with a new `reapAfter`.
    assert_eq!(workers.promise("dead").await.as_deref(), Some("1m"));
    let bootstrap = connect(&stage.url, &stage.join_line("k").await.token);
    let answer = stage.request_and_wait(&bootstrap, "again", CLIENT, "dead", &[]).await;
    assert!(matches!(answer, Answer::Signed(_)), "{answer:?}");
    assert_eq!(workers.promise("dead").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remaining_lease_is_replaced_when_its_node_name_is_reused() {
    let stage = Stage::start().await;
    let workers = Workers::of(&stage).await;
    stage
        .create_token("j", json!({"clusterName": "a", "maxUses": 2, "reapAfter": "1h"}))
        .await;
    stage.reconcile_token_until("j", "True/AsExpected").await;
    join(&stage, "j", &["n"]).await;
    workers.register("n", 0).await;
    let first = workers.lease("n").await.unwrap();
    // The garbage collector is late.
    workers.nodes.delete("n", &Default::default()).await.unwrap();
    let bootstrap = connect(&stage.url, &stage.join_line("j").await.token);
    let answer = stage.request_and_wait(&bootstrap, "again", CLIENT, "n", &[]).await;
    assert!(matches!(answer, Answer::Signed(_)), "{answer:?}");
    let second = workers.lease("n").await.unwrap();
    assert_ne!(second.metadata.uid, first.metadata.uid);
    assert_eq!(second.metadata.owner_references, None);
    assert_eq!(workers.promise("n").await.as_deref(), Some("1h"));
    for (rule, time) in [
        ("below the minimum", "59s"),
        ("above the maximum", "25h"),
        ("empty", ""),
    ] {
        let spec = json!({"clusterName": "a", "reapAfter": time});
        let token = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken", "metadata": {"name": "k"}, "spec": spec});
        let token = serde_json::from_value(token).unwrap();
        assert!(
            stage.tokens().create(&PostParams::default(), &token).await.is_err(),
            "{rule}"
        );
    }
}
