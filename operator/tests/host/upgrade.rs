//! Workers upgrade to their Cluster's version one after another, with a real API. The test acts as
//! their machines.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use yoke_api::ClusterId;
use yoke_api::workers::WorkersStatus;

use crate::harness::condition;
use crate::workers::Stage;

const REQUESTED: &str = "yoke.drzzl.io/kubelet-version";
const DRAIN: &str = "yoke.drzzl.io/drain-timeout";
const REPORTED: &str = "yoke.drzzl.io/kubelet-upgrade";
const OLD: &str = "v1.35.3";
/// Version of the Cluster's API.
const NEW: &str = "v1.35.4";
/// More checks than needed for a request.
const CHECKS: usize = 3;

struct Workers<'a> {
    stage: &'a Stage,
    id: ClusterId,
    nodes: Api<Node>,
}

impl<'a> Workers<'a> {
    async fn of(stage: &'a Stage) -> Self {
        Self {
            stage,
            id: stage.host.cluster("a").await.id().unwrap(),
            nodes: Api::all(stage.client.clone()),
        }
    }

    /// Registers a ready Node with a worker that upgrades.
    async fn register(&self, name: &str) {
        let node = json!({"metadata": {"name": name, "annotations": {REPORTED: format!("{OLD} Done")}}});
        let node = serde_json::from_value(node).unwrap();
        self.nodes.create(&PostParams::default(), &node).await.unwrap();
        self.run(name, OLD).await;
    }

    /// Reports a kubelet's version.
    async fn run(&self, name: &str, version: &str) {
        let info = json!({"kubeletVersion": version, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
            "systemUUID": ""});
        let ready = json!([{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}]);
        let patch = Patch::Merge(json!({"status": {"nodeInfo": info, "conditions": ready}}));
        self.nodes
            .patch_status(name, &PatchParams::default(), &patch)
            .await
            .unwrap();
    }

    /// Writes a worker's report, as its own user.
    async fn report(&self, name: &str, annotations: Value) {
        let nodes = Api::<Node>::all(self.stage.node(name));
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn finish(&self, name: &str) {
        self.run(name, NEW).await;
        self.report(
            name,
            json!({REPORTED: format!("{NEW} Done"), REQUESTED: null, DRAIN: null}),
        )
        .await;
    }

    /// Returns the version and the drain timeout that a Node's annotations request.
    async fn requested(&self, name: &str) -> Option<(String, String)> {
        let mut annotations = self
            .nodes
            .get(name)
            .await
            .unwrap()
            .metadata
            .annotations
            .unwrap_or_default();
        Some((annotations.remove(REQUESTED)?, annotations.remove(DRAIN)?))
    }

    /// Returns the names of Nodes with a request.
    async fn all_requested(&self) -> Vec<String> {
        let nodes = self.nodes.list(&Default::default()).await.unwrap();
        let requested = nodes.items.into_iter().filter(|node| {
            let annotations = node.metadata.annotations.as_ref();
            annotations.is_some_and(|annotations| annotations.contains_key(REQUESTED))
        });
        requested.filter_map(|node| node.metadata.name).collect()
    }

    /// Checks the cluster now, without the usual interval.
    async fn check(&self) {
        self.stage.host.context.memory.update_running(&self.id, |awake| {
            awake.nodes = None;
            awake.workers = Default::default();
        });
        let _ = self.stage.host.reconcile("a").await;
    }

    /// Checks the cluster until the observed value is the expected one.
    async fn until_equal<T: Debug + PartialEq>(&self, what: &str, observe: impl AsyncFn() -> T, expected: T) {
        let observe = async || {
            self.check().await;
            observe().await
        };
        self.stage.host.until_equal(what, observe, expected).await;
    }

    /// Like [`Self::until_equal`], for a request to this Node.
    async fn until_requested(&self, name: &str) {
        let is_requested = async || self.requested(name).await.is_some();
        let what = format!("the request to Node {name}");
        self.until_equal(&what, is_requested, true).await;
    }

    /// Like [`Self::until_equal`], for the condition of the workers.
    async fn until_state(&self, expected: &str) {
        let state = async || self.state().await;
        self.until_equal("the condition WorkersUpdated", state, expected.to_owned())
            .await;
    }

    async fn state(&self) -> String {
        condition(&self.stage.host.cluster("a").await, "WorkersUpdated")
    }

    async fn message(&self) -> String {
        let status = self.stage.host.cluster("a").await.status.unwrap();
        let mut conditions = status.conditions.into_iter();
        conditions
            .find(|condition| condition.type_ == "WorkersUpdated")
            .unwrap()
            .message
    }

    async fn status(&self) -> WorkersStatus {
        self.stage.host.cluster("a").await.status.unwrap().workers.unwrap()
    }

    async fn set(&self, upgrade: Value) {
        let patch = json!({"spec": {"workers": {"upgrade": upgrade}}});
        self.stage.host.patch_cluster("a", patch).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_are_upgraded_one_after_another() {
    let stage = Stage::start().await;
    let workers = Workers::of(&stage).await;
    assert_eq!(workers.state().await, "", "a condition without workers");
    workers.set(json!({"drainTimeout": "90s", "paused": true})).await;
    for name in ["c", "b", "a"] {
        workers.register(name).await;
    }
    workers.until_state("False/Paused").await;
    assert_eq!(workers.all_requested().await, [""; 0]);

    workers.set(json!({"paused": false})).await;
    workers.until_requested("a").await;
    assert_eq!(workers.requested("a").await, Some((NEW.into(), "90s".into())));
    workers.until_state("False/Updating").await;
    for _ in 0..CHECKS {
        workers.check().await;
    }
    assert_eq!(workers.all_requested().await, ["a"], "one at a time");
    let expected = WorkersStatus {
        total: 3,
        updated: 0,
        unavailable: 1,
        oldest_version: Some(OLD.into()),
        upgrading: vec!["a".into()],
    };
    assert_eq!(workers.status().await, expected);

    workers.finish("a").await;
    workers.until_requested("b").await;
    assert_eq!(workers.all_requested().await, ["b"]);
    workers
        .report("b", json!({REPORTED: format!("{NEW} Failed: no room")}))
        .await;
    workers.until_state("False/WorkerUpgradeFailed").await;
    let message = workers.message().await;
    assert!(
        message.contains("1 of 3 Nodes") && message.contains("The upgrade of Node b failed: no room"),
        "{message}"
    );
    assert!(stage.host.events().await.contains(&"WorkerUpgradeFailed".to_owned()));
    for _ in 0..CHECKS {
        workers.check().await;
    }
    assert_eq!(workers.all_requested().await, ["b"], "another upgrade was started");

    // An administrator has freed space, and removes the annotation.
    let again = Patch::Merge(json!({"metadata": {"annotations": {REQUESTED: null}}}));
    workers.nodes.patch("b", &PatchParams::default(), &again).await.unwrap();
    workers.until_state("False/WorkersPending").await;
    for _ in 0..CHECKS {
        workers.check().await;
    }
    assert_eq!(
        workers.all_requested().await,
        [""; 0],
        "requested before the worker reported its version"
    );
    workers.report("b", json!({REPORTED: format!("{OLD} Done")})).await;
    workers.until_requested("b").await;
    workers.finish("b").await;
    workers.until_requested("c").await;
    workers.finish("c").await;
    workers.until_state("True/AsExpected").await;
    assert_eq!(
        (workers.status().await.updated, workers.all_requested().await.len()),
        (3, 0)
    );

    // A worker that joins with an older kubelet follows.
    workers.register("d").await;
    workers.until_requested("d").await;
    assert_eq!(workers.all_requested().await, ["d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_refused_while_a_node_is_too_old() {
    let stage = Stage::start().await;
    let workers = Workers::of(&stage).await;
    let old = "v1.31.9";
    workers.register("a").await;
    workers.run("a", old).await;
    let oldest_version = async || {
        let status = stage.host.cluster("a").await.status.unwrap().workers;
        status.and_then(|workers| workers.oldest_version)
    };
    workers
        .until_equal("the oldest version", oldest_version, Some(old.to_owned()))
        .await;
    let accepted = async || condition(&stage.host.cluster("a").await, "Accepted");
    let patch = json!({"spec": {"version": "v1.36.0"}});
    stage.host.patch_cluster("a", patch).await;
    let expected = "False/VersionChangeRefused".to_owned();
    workers.until_equal("the condition Accepted", accepted, expected).await;
    for _ in 0..CHECKS {
        workers.check().await;
    }
    assert_eq!(accepted().await, "False/VersionChangeRefused");

    // The administrator follows the message, and a restarted operator finds no Node.
    workers.nodes.delete("a", &Default::default()).await.unwrap();
    // The version is not offered either.
    let expected = "False/UnknownVersion".to_owned();
    workers.until_equal("the condition Accepted", accepted, expected).await;
    assert_eq!(workers.status().await, WorkersStatus::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_upgrade_settings_are_refused() {
    let stage = Stage::start().await;
    let clusters = stage.host.clusters();
    for (rule, upgrade) in [
        ("no node at a time", json!({"maxUnavailable": 0})),
        ("too many nodes at a time", json!({"maxUnavailable": 101})),
        ("an invalid timeout", json!({"drainTimeout": "soon"})),
        ("a timeout that is too long", json!({"drainTimeout": "25h"})),
        ("a negative timeout", json!({"drainTimeout": "-5m"})),
    ] {
        let patch = Patch::Merge(json!({"spec": {"workers": {"upgrade": upgrade}}}));
        let refused = clusters.patch("a", &PatchParams::default(), &patch).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422),
            "{rule}: {refused:?}"
        );
    }
}
