//! Tests of GPUs: a device that a CDI specification declares as a GPU, and a device plugin that
//! offers it like a vendor's. A worker cannot tell it from a real one.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::bundle::{self, ECHO};
use crate::cluster::create;
use crate::machine::{Init, POD_LIMIT, Worker, members, until};
use crate::node::{NAME, Story};
use crate::program::path;

/// Device number of `/dev/fuse`, which any process may open. A container may open it only if the
/// device is assigned to it.
const NUMBER: (u32, u32) = (10, 229);
/// Path of the device in a Pod.
const DEVICE: &str = "/dev/gpu0";
const RESOURCE: &str = "yoke.test/gpu";
/// Resource of a plugin that does not check whether its device exists.
const BLIND: &str = "yoke.test/blind";
const PLUGIN: &str = "docker.io/yoke/device-plugin:dev";

/// Creates a device on the machine, with a CDI specification of it.
fn add_gpu(story: &Story) -> PathBuf {
    let device = story.machine.folder("devices").join("gpu0");
    let (mode, number) = (Mode::from_raw_mode(0o600), makedev(NUMBER.0, NUMBER.1));
    mknodat(CWD, &device, FileType::CharacterDevice, mode, number).unwrap();
    let specification = format!(
        r#"{{"cdiVersion": "0.5.0", "kind": "{RESOURCE}", "devices": [{{"name": "0", "containerEdits":
            {{"deviceNodes": [{{"path": "{DEVICE}", "hostPath": "{}"}}]}}}}]}}"#,
        path(&device)
    );
    let script = r#"mkdir -p /etc/cdi && printf %s "$0" > /etc/cdi/test.json"#;
    story.machine.ask("sh", &["-c", script, &specification]).unwrap();
    bundle::add_image(&story.machine.folder("bundle"), PLUGIN, "device-plugin");
    device
}

/// Runs the device plugin like a vendor's DaemonSet.
async fn run_plugin(story: &Story, device: &Path) {
    let container = |name: &str, arguments: &[&str]| {
        json!({
            "name": name, "image": PLUGIN, "imagePullPolicy": "IfNotPresent", "args": arguments,
            "volumeMounts": [
                {"name": "kubelet", "mountPath": "/var/lib/kubelet/device-plugins"},
                {"name": "devices", "mountPath": device.parent(), "readOnly": true},
            ],
        })
    };
    let (file, folder) = (path(device), path(device.parent().unwrap()));
    let spec = json!({
        "containers": [
            container("gpu", &[RESOURCE, file]),
            container("blind", &[BLIND, file, "blind"]),
        ],
        "volumes": [
            {"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}},
            {"name": "devices", "hostPath": {"path": folder}},
        ],
    });
    run_pod(story, "plugin", spec).await;
}

/// Runs a Pod that requests one device.
async fn run_asking(story: &Story, name: &str, resource: &str) {
    let container = json!({
        "name": "echo", "image": ECHO, "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": {resource: "1"}},
    });
    run_pod(story, name, json!({"containers": [container]})).await;
}

async fn run_pod(story: &Story, name: &str, mut spec: Value) {
    spec["nodeName"] = NAME.into();
    spec["terminationGracePeriodSeconds"] = 1.into();
    spec["automountServiceAccountToken"] = false.into();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    create(&story.client, "/api/v1/namespaces/default/pods", &pod).await;
}

/// Waits until the Node offers this count of a resource.
async fn until_offered(story: &Story, worker: &Worker, resource: &str, count: &str) {
    until(
        worker,
        &format!("{count} of {resource} in the Node"),
        POD_LIMIT,
        async || {
            let node = story.nodes.get(NAME).await.unwrap();
            let offered = node.status.and_then(|status| status.allocatable).unwrap_or_default();
            offered.get(resource).is_some_and(|found| found.0 == count)
        },
    )
    .await;
}

/// Waits until a Pod meets a condition.
async fn until_pod(story: &Story, worker: &Worker, name: &str, is_so: impl Fn(&Pod) -> bool) -> Pod {
    let pods = Api::<Pod>::default_namespaced(story.client.clone());
    let get = async || pods.get(name).await.unwrap();
    until(
        worker,
        &format!("Pod {name} to meet the condition"),
        POD_LIMIT,
        async || is_so(&get().await),
    )
    .await;
    get().await
}

/// Reports whether a process sees the device at a path.
fn has_device(process: Pid, device: &Path) -> bool {
    let root = format!("/proc/{}/root", process.as_raw_nonzero());
    let seen = fs::metadata(root + path(device));
    seen.is_ok_and(|seen| seen.file_type().is_char_device() && seen.rdev() == makedev(NUMBER.0, NUMBER.1))
}

/// Returns the processes in the worker's control groups.
fn processes(story: &Story, part: &str) -> Vec<Pid> {
    let groups = story.machine.groups("");
    let found = groups.iter().filter(|group| path(group).contains(part));
    let mut found: Vec<_> = found.flat_map(|group| members(group)).collect();
    found.sort_by_key(|process| process.as_raw_nonzero());
    found.dedup();
    found
}

/// Opens a file in a new process of the control groups of another process.
fn open_beside(story: &Story, process: Pid, file: &str) -> Result<(), String> {
    let groups = story.machine.groups("").into_iter();
    let groups = groups.filter(|group| members(group).any(|member| member == process));
    let lists: Vec<_> = groups.map(|group| group.join("cgroup.procs")).collect();
    let script = r#"file="$0"; for list in "$@"; do echo $$ > "$list"; done; exec 3<> "$file""#;
    let output = Command::new("sh")
        .args(["-ec", script, file])
        .args(&lists)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

#[tokio::test]
async fn pods_have_the_gpus_that_a_worker_is_given() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin_with(dir.path(), Init::None).await;
    let device = add_gpu(&story);
    let mut worker = story.machine.run(&["--rm", "--gpus", "all"]);
    story.wait_joined(&worker).await;
    run_plugin(&story, &device).await;
    until_offered(&story, &worker, RESOURCE, "1").await;
    run_asking(&story, "asks", RESOURCE).await;
    let asks = until_pod(&story, &worker, "asks", |pod| phase(pod) == Some("Running")).await;

    let uid = asks.metadata.uid.unwrap();
    let of_pods = processes(&story, "/pods");
    let having: Vec<_> = of_pods
        .iter()
        .copied()
        .filter(|process| has_device(*process, Path::new(DEVICE)))
        .collect();
    let [process] = having[..] else {
        panic!("one of {of_pods:?} has it: {having:?}")
    };
    assert!(processes(&story, &uid).contains(&process));
    let file = format!("/proc/{}/root{DEVICE}", process.as_raw_nonzero());
    assert_eq!(open_beside(&story, process, &file), Ok(()));
    let pods = Api::<Pod>::default_namespaced(story.client.clone());
    let other = pods.get(NAME).await.unwrap().metadata.uid.unwrap();
    for other in processes(&story, &other) {
        let refused = open_beside(&story, other, &file).unwrap_err();
        assert!(refused.contains("Operation not permitted"), "{refused}");
    }
    assert_eq!(worker.end().await, Some(0), "{}", worker.output());
    story.assert_gone(&worker.output()).await;
}

#[tokio::test]
async fn a_worker_has_no_gpu_unless_it_is_asked_for() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin_with(dir.path(), Init::None).await;
    let real = ["/dev/nvidia0", "/dev/dri/renderD128", "/dev/kfd", "/dev/dxg"];
    if !real.iter().any(|device| Path::new(device).exists()) {
        let mut none = story.machine.run(&["--rm", "--gpus", "all"]);
        assert_eq!(none.ended().await, Some(1), "{}", none.output());
        assert!(none.output().contains("this machine has no GPU"), "{}", none.output());
        assert!(!story.machine.root().exists());
    }
    let device = add_gpu(&story);
    let mut worker = story.machine.run(&["--rm"]);
    story.wait_joined(&worker).await;
    let own = processes(&story, "/node");
    // The first process is not in the sandbox.
    let inside: Vec<_> = own.iter().filter(|process| !has_device(**process, &device)).collect();
    assert!(inside.len() > 1, "{inside:?} of {own:?}");

    run_plugin(&story, &device).await;
    until_offered(&story, &worker, RESOURCE, "0").await;
    until_offered(&story, &worker, BLIND, "1").await;
    run_asking(&story, "asks", RESOURCE).await;
    let asks = until_pod(&story, &worker, "asks", |pod| phase(pod) == Some("Failed")).await;
    let why = asks.status.unwrap().message.unwrap_or_default();
    assert!(why.contains(RESOURCE) && why.contains("no healthy devices"), "{why}");
    run_asking(&story, "gets", BLIND).await;
    let gets = until_pod(&story, &worker, "gets", |pod| why_waiting(pod).is_some()).await;
    let why = why_waiting(&gets).unwrap_or_default();
    assert!(why.contains("not a device node"), "{why}");
    assert_eq!(worker.end().await, Some(0), "{}", worker.output());
    story.assert_gone(&worker.output()).await;
    assert!(fs::metadata(&device).unwrap().file_type().is_char_device());
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Returns the reason why a Pod's container is not created.
fn why_waiting(pod: &Pod) -> Option<String> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let waiting = containers.first()?.state.as_ref()?.waiting.as_ref()?;
    (waiting.reason.as_deref() == Some("CreateContainerError")).then(|| waiting.message.clone().unwrap_or_default())
}
