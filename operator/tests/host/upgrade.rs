//! Workers upgrade to their Cluster's version one after another, with a real API. The test acts as
//! their machines.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use yoke_api::ClusterId;
use yoke_api::workers::WorkersStatus;

use crate::harness::condition;
use crate::workers::Stage;

const ASKED: &str = "yoke.drzzl.io/kubelet-version";
const DRAIN: &str = "yoke.drzzl.io/drain-timeout";
const SAID: &str = "yoke.drzzl.io/kubelet-upgrade";
const OLD: &str = "v1.35.3";
/// Version of the Cluster's API.
const NEW: &str = "v1.35.4";
/// More checks than needed for a request.
const LOOKS: usize = 3;

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
        let node = json!({"metadata": {"name": name, "annotations": {SAID: format!("{OLD} Done")}}});
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
    async fn say(&self, name: &str, annotations: Value) {
        let nodes = Api::<Node>::all(self.stage.node(name));
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn finish(&self, name: &str) {
        self.run(name, NEW).await;
        self.say(name, json!({SAID: format!("{NEW} Done"), ASKED: null, DRAIN: null}))
            .await;
    }

    /// Returns the version and the drain timeout that a Node's annotations request.
    async fn asked(&self, name: &str) -> Option<(String, String)> {
        let mut notes = self
            .nodes
            .get(name)
            .await
            .unwrap()
            .metadata
            .annotations
            .unwrap_or_default();
        Some((notes.remove(ASKED)?, notes.remove(DRAIN)?))
    }

    /// Returns the names of Nodes with a request.
    async fn all_asked(&self) -> Vec<String> {
        let nodes = self.nodes.list(&Default::default()).await.unwrap();
        let asked = nodes.items.into_iter().filter(|node| {
            let notes = node.metadata.annotations.as_ref();
            notes.is_some_and(|notes| notes.contains_key(ASKED))
        });
        asked.filter_map(|node| node.metadata.name).collect()
    }

    /// Checks the cluster now, without the usual interval.
    async fn look(&self) {
        self.stage.host.context.memory.update_running(&self.id, |running| {
            running.nodes = None;
            running.workers = Default::default();
        });
        let _ = self.stage.host.reconcile("a").await;
    }

    async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        self.stage
            .host
            .until(what, async || {
                self.look().await;
                so().await
            })
            .await;
    }

    async fn until_asked(&self, name: &str) {
        self.until(&format!("{name} is asked"), async || self.asked(name).await.is_some())
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
async fn workers_come_to_the_version_one_after_another() {
    let stage = Stage::start().await;
    let workers = Workers::of(&stage).await;
    assert_eq!(workers.state().await, "", "there are none");
    workers.set(json!({"drainTimeout": "90s", "paused": true})).await;
    for name in ["c", "b", "a"] {
        workers.register(name).await;
    }
    workers
        .until("it is paused", async || workers.state().await == "False/Paused")
        .await;
    assert_eq!(workers.all_asked().await, [""; 0]);

    workers.set(json!({"paused": false})).await;
    workers.until_asked("a").await;
    assert_eq!(workers.asked("a").await, Some((NEW.into(), "90s".into())));
    workers
        .until("it is told", async || workers.state().await == "False/Updating")
        .await;
    for _ in 0..LOOKS {
        workers.look().await;
    }
    assert_eq!(workers.all_asked().await, ["a"], "one at a time");
    let expected = WorkersStatus {
        total: 3,
        updated: 0,
        unavailable: 1,
        oldest_version: Some(OLD.into()),
        upgrading: vec!["a".into()],
    };
    assert_eq!(workers.status().await, expected);

    workers.finish("a").await;
    workers.until_asked("b").await;
    assert_eq!(workers.all_asked().await, ["b"]);
    workers.say("b", json!({SAID: format!("{NEW} Failed: no room")})).await;
    workers
        .until("it failed", async || {
            workers.state().await == "False/WorkerUpgradeFailed"
        })
        .await;
    let message = workers.message().await;
    assert!(
        message.contains("1 of 3 Nodes") && message.contains("The upgrade of Node b failed: no room"),
        "{message}"
    );
    assert!(stage.host.events().await.contains(&"WorkerUpgradeFailed".to_owned()));
    for _ in 0..LOOKS {
        workers.look().await;
    }
    assert_eq!(workers.all_asked().await, ["b"], "no other is begun with");

    // An administrator has freed space, and removes the annotation.
    let again = Patch::Merge(json!({"metadata": {"annotations": {ASKED: null}}}));
    workers.nodes.patch("b", &PatchParams::default(), &again).await.unwrap();
    workers
        .until("its worker is waited for", async || {
            workers.state().await == "False/WorkersPending"
        })
        .await;
    for _ in 0..LOOKS {
        workers.look().await;
    }
    assert_eq!(workers.all_asked().await, [""; 0], "it would not see that");
    workers.say("b", json!({SAID: format!("{OLD} Done")})).await;
    workers.until_asked("b").await;
    workers.finish("b").await;
    workers.until_asked("c").await;
    workers.finish("c").await;
    workers
        .until("all have it", async || workers.state().await == "True/AsExpected")
        .await;
    assert_eq!(
        (workers.status().await.updated, workers.all_asked().await.len()),
        (3, 0)
    );

    // A worker that joins with an older kubelet follows.
    workers.register("d").await;
    workers.until_asked("d").await;
    assert_eq!(workers.all_asked().await, ["d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_refused_only_as_long_as_a_node_is_too_old() {
    let stage = Stage::start().await;
    let workers = Workers::of(&stage).await;
    let old = "v1.31.9";
    workers.register("a").await;
    workers.run("a", old).await;
    workers
        .until("it is seen", async || {
            let status = stage.host.cluster("a").await.status.unwrap().workers;
            status.is_some_and(|workers| workers.oldest_version.as_deref() == Some(old))
        })
        .await;
    let accepted = async || condition(&stage.host.cluster("a").await, "Accepted");
    let patch = json!({"spec": {"version": "v1.36.0"}});
    stage.host.patch_cluster("a", patch).await;
    workers
        .until("it is refused", async || {
            accepted().await == "False/VersionChangeRefused"
        })
        .await;
    for _ in 0..LOOKS {
        workers.look().await;
    }
    assert_eq!(accepted().await, "False/VersionChangeRefused");

    // The administrator follows the message, and a restarted operator finds no Node.
    workers.nodes.delete("a", &Default::default()).await.unwrap();
    workers
        .until("nothing but the offer is in the way", async || {
            accepted().await == "False/UnknownVersion"
        })
        .await;
    assert_eq!(workers.status().await, WorkersStatus::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_version_is_followed_by_is_checked() {
    let stage = Stage::start().await;
    let clusters = stage.host.clusters();
    for (rule, upgrade) in [
        ("none at a time", json!({"maxUnavailable": 0})),
        ("too many", json!({"maxUnavailable": 101})),
        ("no time", json!({"drainTimeout": "soon"})),
        ("too long", json!({"drainTimeout": "25h"})),
        ("negative", json!({"drainTimeout": "-5m"})),
    ] {
        let patch = Patch::Merge(json!({"spec": {"workers": {"upgrade": upgrade}}}));
        let refused = clusters.patch("a", &PatchParams::default(), &patch).await;
        assert!(
            matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422),
            "{rule}: {refused:?}"
        );
    }
}
