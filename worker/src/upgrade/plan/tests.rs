use serde_json::{Value, json};

use super::*;

const OLD: &str = "v1.35.4";
const NEW: &str = "v1.35.5";

fn node(kubelet: &str, requested: &str, status: &str) -> Value {
    let mut annotations = serde_json::Map::new();
    for (key, text) in [(labels::KUBELET_VERSION, requested), (labels::KUBELET_UPGRADE, status)] {
        if !text.is_empty() {
            annotations.insert(key.into(), text.into());
        }
    }
    json!({
        "metadata": {"name": "a", "annotations": annotations},
        "status": {
            "nodeInfo": {
                "kubeletVersion": kubelet, "architecture": "", "bootID": "", "containerRuntimeVersion": "",
                "kernelVersion": "", "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                "systemUUID": "",
            },
            "conditions": [
                {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-11-23T07:00:10Z", "message": "well"},
            ],
        },
    })
}

fn see(node: Value) -> UpgradeNode {
    UpgradeNode::from_node(&serde_json::from_value(node).unwrap())
}

fn version(text: &str) -> KubernetesVersion {
    text.parse().unwrap()
}

fn record(stage: Stage) -> Record {
    Record {
        from: version(OLD),
        to: version(NEW),
        cordoned: false,
        stage,
        why: Some("no room".into()),
    }
}

fn status(text: &str) -> Step {
    Step::WriteStatus(text.parse().unwrap())
}

#[test]
fn each_step_follows_from_the_record_and_the_node() {
    for (rule, node, stage, expected) in [
        ("a new worker", node(OLD, "", ""), None, status("v1.35.4 Done")),
        (
            "nothing is requested",
            node(OLD, "", "v1.35.4 Done"),
            None,
            Step::Nothing,
        ),
        (
            "another status on the Node",
            node(OLD, "", "hm"),
            None,
            status("v1.35.4 Done"),
        ),
        ("no kubelet has registered", node("", NEW, ""), None, Step::Nothing),
        (
            "the installed version is requested",
            node(NEW, NEW, "v1.35.5 Done"),
            None,
            Step::ClearRequest("v1.35.5 Done".parse().unwrap()),
        ),
        (
            "an invalid version is requested",
            node(OLD, "$(reboot)", "v1.35.4 Done"),
            None,
            Step::Nothing,
        ),
        (
            "another version is requested",
            node(OLD, NEW, "v1.35.4 Done"),
            None,
            Step::Prepare(version(NEW)),
        ),
        (
            "it is to drain",
            node(OLD, NEW, "v1.35.4 Done"),
            Some(Stage::Draining),
            Step::Drain(record(Stage::Draining)),
        ),
        (
            "the request is withdrawn",
            node(OLD, "", "v1.35.5 Draining"),
            Some(Stage::Draining),
            Step::Cancel(record(Stage::Draining)),
        ),
        (
            "another version is requested meanwhile",
            node(OLD, "v1.35.6", "v1.35.5 Draining"),
            Some(Stage::Draining),
            Step::Cancel(record(Stage::Draining)),
        ),
        (
            "it is replaced, with or without a request",
            node(OLD, "", "v1.35.5 Replacing"),
            Some(Stage::Replacing),
            Step::Verify(record(Stage::Replacing)),
        ),
        (
            "it goes back",
            node(NEW, NEW, "v1.35.5 Replacing"),
            Some(Stage::Reverting),
            Step::VerifyPrevious(record(Stage::Reverting)),
        ),
        (
            "it has failed, without a status on the Node",
            node(OLD, NEW, "v1.35.4 Done"),
            Some(Stage::Failed),
            status("v1.35.5 Failed: no room"),
        ),
        (
            "it has failed",
            node(OLD, NEW, "v1.35.5 Failed: no room"),
            Some(Stage::Failed),
            Step::Nothing,
        ),
        (
            "it has failed, and may try again",
            node(OLD, "", "v1.35.5 Failed: no room"),
            Some(Stage::Failed),
            Step::RemoveRecord,
        ),
        (
            "it has failed, and another version is requested",
            node(OLD, "v1.35.6", "v1.35.5 Failed: no room"),
            Some(Stage::Failed),
            Step::RemoveRecord,
        ),
    ] {
        let record = stage.map(record);
        assert_eq!(plan(&see(node), record.as_ref()), expected, "{rule}");
    }
}

#[test]
fn a_node_is_ready_when_the_new_kubelet_says_so() {
    let at = |second: &str| format!("2026-11-23T07:00:{second}Z").parse::<Timestamp>().unwrap();
    let with = |ready: Value| {
        let mut node = node(NEW, NEW, "");
        node["status"]["conditions"][0] = ready;
        see(node)
    };
    let unready = with(json!({"type": "Ready", "status": "False", "lastHeartbeatTime": "2026-11-23T07:00:10Z"}));
    for (rule, seen, wanted, since, ready) in [
        ("it is", see(node(NEW, NEW, "")), NEW, at("09"), true),
        ("within the same second", see(node(NEW, NEW, "")), NEW, at("10.9"), true),
        (
            "reported by the previous kubelet",
            see(node(NEW, NEW, "")),
            NEW,
            at("11"),
            false,
        ),
        ("another version", see(node(OLD, NEW, "")), NEW, at("09"), false),
        ("not ready", unready, NEW, at("09"), false),
        (
            "without a heartbeat time",
            with(json!({"type": "Ready", "status": "True"})),
            NEW,
            at("09"),
            false,
        ),
        (
            "without a Ready condition",
            with(json!({"type": "Other", "status": "True"})),
            NEW,
            at("09"),
            false,
        ),
    ] {
        assert_eq!(seen.is_ready(version(wanted), since), ready, "{rule}");
    }
}

#[test]
fn the_wait_for_a_kubelet_is_bounded() {
    let seen = see(node(OLD, NEW, ""));
    let mut progress = KubeletWait::default();
    for answer in 1..RESPONSES_MAX {
        assert_eq!(progress.count_response(&seen, EXITS_MAX - 1), None, "{answer}");
    }
    let why = progress.count_response(&seen, 0).unwrap();
    assert!(why.contains("does not update"), "{why}");
    assert_eq!(
        KubeletWait::default().count_response(&seen, EXITS_MAX).as_deref(),
        Some("the kubelet exited 5 times")
    );
    let mut node = node(NEW, NEW, "");
    node["status"]["conditions"][0]["status"] = "False".into();
    node["status"]["conditions"][0]["message"] = format!("\u{1b}{}", "a".repeat(10_000)).into();
    progress.responses = RESPONSES_MAX;
    let why = progress.count_response(&see(node), 0).unwrap();
    assert!(
        why.starts_with("the Node is not Ready (aaa") && why.len() < 300,
        "{why}"
    );
}

#[test]
fn the_node_sets_the_drain_timeout() {
    for (text, seconds) in [("90s", 90), ("", 300), ("for ever", 300), ("9999h", 300)] {
        let mut node = node(OLD, NEW, "");
        node["metadata"]["annotations"][labels::DRAIN_TIMEOUT] = text.into();
        assert_eq!(see(node).drain.as_secs(), seconds, "{text}");
    }
}
