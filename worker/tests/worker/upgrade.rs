//! A worker's kubelet follows the version that its Node requests, and is replaced by the previous
//! one if it does not work.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bundle::{add_kubelet, relabel_kubelet};
use crate::cluster::create;
use crate::machine::{Worker, until};
use crate::node::{NAME, Story};

const ASKED: &str = "yoke.drzzl.io/kubelet-version";
const DRAIN: &str = "yoke.drzzl.io/drain-timeout";
const SAID: &str = "yoke.drzzl.io/kubelet-upgrade";
/// Version of the programs in `YOKE_BIN`.
const OWN: &str = "v1.35.4";
/// Timeout for a step: a program is copied, a kubelet stops, and another one makes the Node Ready.
const LIMIT: Duration = Duration::from_secs(240);

impl Story {
    fn bundle(&self) -> PathBuf {
        self.machine.root().parent().unwrap().join("bundle")
    }

    /// Requests a version like the operator does.
    async fn ask(&self, version: Option<&str>, drain: &str) {
        let notes = json!({ASKED: version, DRAIN: drain});
        self.change(&json!({"metadata": {"annotations": notes}})).await;
    }

    async fn change(&self, patch: &Value) {
        let params = PatchParams::default();
        self.nodes.patch(NAME, &params, &Patch::Merge(patch)).await.unwrap();
    }

    async fn seen(&self) -> Node {
        self.nodes.get(NAME).await.unwrap()
    }

    /// Returns the upgrade status, the kubelet's version, and whether the Node is cordoned.
    async fn state(&self) -> (String, String, bool) {
        let node = self.seen().await;
        let output = node.annotations().get(SAID).cloned().unwrap_or_default();
        let version = node
            .status
            .and_then(|status| status.node_info)
            .map(|info| info.kubelet_version);
        let cordoned = node.spec.and_then(|spec| spec.unschedulable).unwrap_or_default();
        (output, version.unwrap_or_default(), cordoned)
    }

    async fn until_said(&self, worker: &Worker, output: &str) {
        let what = format!("the report {output:?}");
        until(worker, &what, LIMIT, async || self.state().await.0.starts_with(output)).await;
    }

    fn stage(&self) -> Option<String> {
        let record = self.machine.read("upgrade.json")?;
        record["stage"].as_str().map(str::to_owned)
    }

    /// Kills the worker at this stage, and starts it again.
    async fn kill_at(&self, mut worker: Worker, stage: &str, name: &str) -> Worker {
        let what = format!("the stage {stage:?}");
        until(&worker, &what, LIMIT, async || self.stage().as_deref() == Some(stage)).await;
        worker.signal(Signal::KILL);
        assert_eq!(worker.ended().await, None);
        self.machine.start(name, &["run"])
    }

    async fn assert_settled(&self, output: &str, version: &str, cordoned: bool, worker: &Worker) {
        self.until_said(worker, output).await;
        let (output, found, is_cordoned) = self.state().await;
        assert_eq!(
            (found.as_str(), is_cordoned),
            (version, cordoned),
            "{output}: {}",
            worker.output()
        );
        assert!(self.machine.is_ready(&self.nodes).await, "{}", worker.last_output());
    }

    /// Waits until temporary files are removed, at the end of an upgrade.
    async fn assert_tidy(&self, worker: &Worker) {
        let bin = self.machine.root().join("bin");
        until(worker, "the end of the upgrade", LIMIT, async || {
            let left = ["kubelet.next", "kubelet.previous"];
            self.stage().is_none() && !left.iter().any(|name| bin.join(name).exists())
        })
        .await;
    }
}

/// Creates a PodDisruptionBudget that permits no eviction.
async fn keep_pods(story: &Story) {
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "echo"}}}});
    create(
        &story.client,
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        &budget,
    )
    .await;
}

#[tokio::test]
async fn a_kubelet_is_replaced() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let other = "v1.35.3";
    add_kubelet(&story.bundle(), other, &relabel_kubelet(OWN, other));
    let worker = story.machine.run(&[]);
    story.wait_joined(&worker).await;
    story.assert_settled("v1.35.4 Done", OWN, false, &worker).await;

    keep_pods(&story).await;
    story.ask(Some(other), "30s").await;
    story.until_said(&worker, "v1.35.3 Draining").await;
    until(&worker, "the Node to be cordoned", LIMIT, async || {
        story.state().await.2
    })
    .await;
    story.assert_settled("v1.35.3 Done", other, false, &worker).await;
    assert!(!story.has_pod().await, "{}", worker.output());
    let output = worker.output();
    let (kept, deleted) = ("cannot evict Pod", "deleting the remaining Pods");
    assert!(output.contains(kept) && output.contains(deleted), "{output}");
    assert!(!story.seen().await.annotations().contains_key(ASKED));
    story.assert_tidy(&worker).await;

    // The worker is killed while a PodDisruptionBudget protects its Pod, and again after the next
    // kubelet is installed.
    story.machine.run_pod(&worker, &story.client).await;
    story.ask(Some(OWN), "1h").await;
    let worker = story.kill_at(worker, "Draining", "second").await;
    until(&worker, "another drain", LIMIT, async || {
        worker.output().contains("cannot evict Pod")
    })
    .await;
    assert_eq!(story.state().await.1, other);
    let url = "/apis/policy/v1/namespaces/default/poddisruptionbudgets/keep";
    let request = http::Request::delete(url).body(Vec::new()).unwrap();
    story.client.request_text(request).await.unwrap();
    let worker = story.kill_at(worker, "Replacing", "third").await;
    story.assert_settled("v1.35.4 Done", OWN, false, &worker).await;
    story.assert_tidy(&worker).await;
}

#[tokio::test]
async fn a_kubelet_that_does_not_work_is_reverted() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let bad = "#!/bin/sh\n[ \"$1\" = --version ] && exec echo Kubernetes v1.35.2\necho no luck today\nexit 1\n";
    add_kubelet(&story.bundle(), "v1.35.2", bad.as_bytes());
    let worker = story.machine.run(&[]);
    story.wait_joined(&worker).await;

    // The owner has cordoned the Node for another reason.
    story.change(&json!({"spec": {"unschedulable": true}})).await;
    story.ask(Some("v1.35.2"), "60s").await;
    let worker = story.kill_at(worker, "Replacing", "second").await;
    let worker = story.kill_at(worker, "Reverting", "third").await;
    story
        .assert_settled(
            "v1.35.2 Failed: the kubelet exited 5 times: no luck today",
            OWN,
            true,
            &worker,
        )
        .await;
    assert_eq!(story.stage().as_deref(), Some("Failed"));
    assert_eq!(story.seen().await.annotations()[ASKED], "v1.35.2", "the request stays");
    story.change(&json!({"spec": {"unschedulable": false}})).await;

    // Nothing changes for a version that is impossible.
    for (version, why) in [
        ("v1.35.1", "v1.35.1 Failed: the bundle "),
        (
            "v1.36.0",
            "v1.36.0 Failed: kubelet v1.36.0 does not support API server v1.35.4: the kubelet must not be newer",
        ),
        (
            "v1.31.0",
            "v1.31.0 Failed: kubelet v1.31.0 does not support API server v1.35.4",
        ),
    ] {
        story.ask(Some(version), "60s").await;
        story.assert_settled(why, OWN, false, &worker).await;
    }
    story.ask(None, "60s").await;
    story.assert_settled("v1.35.4 Done", OWN, false, &worker).await;
    story.assert_tidy(&worker).await;
}

/// Upgrades to a second release and back, with an evictable Pod. Needs `kubelet-1.35.5` beside the
/// other programs.
#[cfg(feature = "slow")]
#[tokio::test]
async fn a_kubelet_of_a_second_release_replaces_it() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin(dir.path()).await;
    let other = "v1.35.5";
    let program = std::fs::read(crate::bundle::bin().join("kubelet-1.35.5")).unwrap();
    add_kubelet(&story.bundle(), other, &program);
    let worker = story.machine.run(&[]);
    story.wait_joined(&worker).await;
    for version in [other, OWN] {
        story.ask(Some(version), "60s").await;
        story
            .assert_settled(&format!("{version} Done"), version, false, &worker)
            .await;
        story.assert_tidy(&worker).await;
        assert!(!story.has_pod().await, "{}", worker.output());
        story.machine.run_pod(&worker, &story.client).await;
    }
}
