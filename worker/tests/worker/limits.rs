//! A worker with limits for CPU and memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine::Init;
use crate::node::{NAME, Story};
use crate::program::path;

/// Bytes that a Pod tries to allocate: more than its limit.
const MUCH: usize = 900 << 20;

#[tokio::test]
async fn a_worker_takes_no_more_than_it_may() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin_with(dir.path(), Init::None).await;
    let mut greedy = story.machine.run(&["--rm", "--memory", "1000Ti"]);
    assert_eq!(greedy.ended().await, Some(1), "{}", greedy.output());
    assert!(greedy.output().contains("MiB exceeds the"), "{}", greedy.output());
    assert!(!story.machine.root().exists());

    let mut worker = story.machine.run(&["--rm", "--cpus", "0.5", "--memory", "1Gi"]);
    story.wait_joined(&worker).await;
    let status = story.nodes.get(NAME).await.unwrap().status.unwrap();
    let (has, gives) = (status.capacity.unwrap(), status.allocatable.unwrap());
    assert_eq!(gives["cpu"].0, "500m", "{has:?}");
    // Without the memory of the worker's own programs, and what the kubelet leaves free.
    assert_eq!(gives["memory"].0, format!("{}Mi", 1024 - 256 - 100), "{has:?}");
    assert_ne!(has["memory"].0, gives["memory"].0);

    let of_cpus = find_file(&story, "", &["cpu.max", "cpu.cfs_quota_us"]);
    let stat = std::fs::read_to_string(of_cpus.with_file_name("cpu.stat")).unwrap();
    let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
    assert!(
        throttled.is_some_and(|times| times != "0"),
        "to start it takes more for a moment: {stat}"
    );
    let of_pods = find_file(&story, "/pods", &["memory.max", "memory.limit_in_bytes"]);
    let group = of_pods.with_file_name("hog");
    std::fs::create_dir(&group).unwrap();
    assert_eq!(take_memory(Path::new("/dev/null")), MUCH.to_string(), "control");
    assert_ne!(take_memory(&group.join("cgroup.procs")), MUCH.to_string());
    std::fs::remove_dir(&group).unwrap();
    assert_eq!(worker.end().await, Some(0), "{}", worker.output());
    story.assert_gone(&worker.output()).await;
}

/// Allocates much memory in a control group. Returns how much of it was possible.
fn take_memory(group: &Path) -> String {
    let script = r#"echo $$ > "$0" && head -c "$1" /dev/zero | tail -n 1 | wc -c"#;
    let output = Command::new("sh")
        .args(["-c", script, path(group), &MUCH.to_string()])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Returns the first of these files that a control group of the worker has.
fn find_file(story: &Story, part: &str, names: &[&str]) -> PathBuf {
    let end = story.machine.cgroup().unwrap() + part;
    let groups = story
        .machine
        .groups("")
        .into_iter()
        .filter(|group| path(group).ends_with(&end));
    let mut files = groups.flat_map(|group| names.iter().map(move |name| group.join(name)));
    files.find(|file| file.exists()).unwrap()
}
