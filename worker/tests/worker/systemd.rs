//! A worker under a real systemd joins, is restarted, starts at boot, and leaves nothing behind.

use std::convert::Infallible;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use yoke_test_support::eventually;

use crate::bundle;
use crate::machine::{Init, Worker, members, until};
use crate::node::{NAME, Story};
use crate::program::{PEM, encode, path, token};

/// Timeout for the start of a unit and of a Pod.
const START_LIMIT: Duration = Duration::from_secs(120);

impl Story {
    /// Name of the worker's unit.
    fn unit(&self) -> String {
        let worker = self.machine.read("worker.json").unwrap();
        format!("yoke-worker-{}.service", worker["id"].as_str().unwrap())
    }

    fn systemctl(&self, arguments: &[&str]) -> String {
        let output = self.machine.ask("systemctl", arguments);
        output.unwrap_or_else(|error| panic!("systemctl {arguments:?}: {error}\n{}", self.machine.journal()))
    }

    fn show(&self, property: &str) -> String {
        let output = self.systemctl(&["show", "--value", "--property", property, &self.unit()]);
        output.trim().to_owned()
    }

    /// Returns the unit files of workers, and links to them.
    fn unit_files(&self) -> Vec<PathBuf> {
        let mut find = Command::new("find");
        find.arg(self.machine.units()).args(["-name", "yoke-worker-*.service"]);
        let found = String::from_utf8(find.output().unwrap().stdout).unwrap();
        found.lines().map(PathBuf::from).collect()
    }

    fn read_token(&self) -> String {
        fs::read_to_string(self.machine.token()).unwrap()
    }

    /// Returns the worker's programs and images with their digests.
    fn sum_programs(&self) -> Vec<String> {
        let script = r#"cd "$0" && sha256sum bin/* images/* && ls -A bin images"#;
        let sums = self.machine.ask("sh", &["-c", script, path(&self.machine.root())]);
        sums.unwrap().lines().map(str::to_owned).collect()
    }

    /// Returns the processes of Pods.
    fn pods(&self) -> Vec<i32> {
        let groups = self.machine.groups("/pods");
        let pids = groups.iter().flat_map(|group| members(group));
        let mut pids: Vec<_> = pids.map(|pid| pid.as_raw_nonzero().get()).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Waits until the unit has another main process and is active.
    async fn until_restarted(&self, main: &str) {
        let state = async || Ok::<_, Infallible>((self.show("ActiveState"), self.show("MainPID")));
        let restarted = eventually("another main process", START_LIMIT, state, |(state, process)| {
            state == "active" && process != main
        });
        if let Err(error) = restarted.await {
            panic!("{error}: {}", self.machine.journal());
        }
    }

    /// Waits until a command succeeds.
    async fn assert_ends_well(&self, command: &mut Worker) {
        assert_eq!(
            command.ended().await,
            Some(0),
            "{}\n{}",
            command.output(),
            self.machine.journal()
        );
    }

    /// Waits for a response of a Pod, which needs a network and so a complete worker.
    async fn until_pod_answers(&self) {
        let answer = async || self.try_pod();
        let answered = eventually("an answer of the Pod", START_LIMIT, answer, |output| {
            output.trim() == NAME
        });
        if let Err(error) = answered.await {
            panic!("{error}: {}", self.machine.journal());
        }
    }
}

#[tokio::test]
async fn a_worker_joins_for_good() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let mut story = Story::begin_with(dir.path(), Init::Systemd).await;
    let mut join = story.machine.join_for_good();
    story.wait_joined(&join).await;
    story.assert_ends_well(&mut join).await;
    assert!(join.output().contains("and is Ready"), "{}", join.output());
    assert_eq!(story.show("Type"), "notify");
    assert_eq!(story.show("UnitFileState"), "enabled");
    assert!(story.show("StatusText").contains(NAME), "{}", story.show("StatusText"));

    let main = story.show("MainPID");
    let mut again = story.machine.join_for_good();
    assert_eq!(again.ended().await, Some(0), "{}", again.output());
    assert!(again.output().contains("nothing was changed"), "{}", again.output());
    assert_eq!(story.show("MainPID"), main);
    let other = token("other.worker.test:443", PEM, PEM, "abcdef.0123456789abcdef");
    let mut refused = story.machine.start("refused", &["join", &other]);
    assert_eq!(refused.ended().await, Some(1), "{}", refused.output());
    let taken = format!("belongs to the worker of Node {NAME}");
    assert!(refused.output().contains(&taken), "{}", refused.output());
    assert!(refused.output().contains("`yoke-worker leave`"), "{}", refused.output());

    let pods = story.pods();
    assert!(!pods.is_empty(), "control");
    story.systemctl(&["restart", &story.unit()]);
    story.until_restarted(&main).await;
    let main = story.show("MainPID");
    story.systemctl(&["kill", "--kill-who=main", "--signal=KILL", &story.unit()]);
    story.until_restarted(&main).await;
    assert_eq!(story.pods(), pods, "Pods outlive the unit's processes");
    story.until_pod_answers().await;

    story.machine.boot_again();
    story.until_restarted("0").await;
    story.until_pod_answers().await;

    let mut leave = story.machine.start("leave", &["leave"]);
    story.assert_ends_well(&mut leave).await;
    story.assert_gone(&leave.output()).await;
    assert_eq!(story.unit_files(), Vec::<PathBuf>::new());
    let known = story.systemctl(&["list-units", "--all", "--plain", "--no-legend", "yoke-worker-*"]);
    assert_eq!(known.trim(), "");
}

#[tokio::test]
async fn a_worker_is_admitted_after_a_reboot() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let mut story = Story::begin_with(dir.path(), Init::Systemd).await;
    // No certificate is signed yet.
    let join = story.machine.join_for_good();
    until(&join, "the worker to wait", START_LIMIT, async || {
        join.output().contains("waiting: ")
    })
    .await;
    story.machine.boot_again();
    let mut again = story.machine.start("again", &["join"]);
    story.wait_joined(&again).await;
    story.assert_ends_well(&mut again).await;
    assert!(again.output().contains("nothing was changed"), "{}", again.output());
    story.until_pod_answers().await;
}

#[tokio::test]
async fn a_worker_with_an_expired_certificate_joins_with_another_token() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let mut story = Story::begin_with(dir.path(), Init::Systemd).await;
    let mut join = story.machine.join_for_good();
    story.wait_joined(&join).await;
    assert_eq!(join.ended().await, Some(0), "{}", join.output());
    story.end_certificate();
    let (own, before) = (story.read_token(), story.machine.read("worker.json"));
    let programs = story.sum_programs();
    fs::write(story.machine.token(), with_unknown_secret(&own)).unwrap();
    let bundle = dir.path().join("bundle");
    let was = fs::read(bundle.join("portmap")).unwrap();
    fs::remove_file(bundle.join("portmap")).unwrap();
    fs::write(bundle.join("portmap"), [&was[..], b"of another release"].concat()).unwrap();
    fs::copy(bundle.join("images/echo.tar"), bundle.join("images/other.tar")).unwrap();
    bundle::seal(&bundle);
    let mut refused = story.machine.join_for_good();
    assert_eq!(refused.ended().await, Some(1), "{}", refused.output());
    assert!(
        refused.output().contains("token is unknown or has expired")
            && refused.output().contains("restored the previous worker"),
        "{}",
        refused.output()
    );
    assert_eq!(story.machine.read("worker.json"), before);
    assert_eq!(story.sum_programs(), programs);
    assert!(!story.machine.root().join("former").exists());
    assert!(!story.machine.root().join("config/bootstrap.kubeconfig").exists());
    assert_eq!(story.show("ActiveState"), "active");
    fs::write(story.machine.token(), own).unwrap();

    story.systemctl(&["stop", &story.unit()]);
    story.remove_node().await;
    story.machine.pods = "10.232.8.0/24";
    let mut again = story.machine.join_for_good();
    story.wait_joined(&again).await;
    story.assert_ends_well(&mut again).await;
    story.until_pod_answers().await;
}

/// Returns a token of the same cluster with a secret that does not exist.
fn with_unknown_secret(token: &str) -> String {
    let fields = token.trim().strip_prefix("yoke1.").unwrap();
    let fields = data_encoding::BASE64URL_NOPAD.decode(fields.as_bytes()).unwrap();
    let mut fields: serde_json::Value = serde_json::from_slice(&fields).unwrap();
    fields["token"] = "fedcba.fedcba9876543210".into();
    encode(&fields)
}

#[tokio::test]
async fn a_worker_that_cannot_start_leaves_nothing() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let story = Story::begin_with(dir.path(), Init::Systemd).await;
    let bundle = dir.path().join("bundle");
    fs::remove_file(bundle.join("ctr")).unwrap();
    std::os::unix::fs::symlink("/bin/false", bundle.join("ctr")).unwrap();
    bundle::seal(&bundle);
    let mut join = story.machine.join_for_good();
    assert_eq!(join.ended().await, Some(1), "{}", join.output());
    assert!(
        join.output().contains("the worker was removed from this machine"),
        "{}",
        join.output()
    );
    assert!(
        join.output().contains("`systemctl enable --now yoke-worker-"),
        "{}",
        join.output()
    );
    assert!(
        story.machine.journal().contains("cannot import the image"),
        "{}",
        story.machine.journal()
    );
    assert!(!story.machine.root().exists());
    assert_eq!(story.unit_files(), Vec::<PathBuf>::new());
    for (kind, found) in story.machine.left_over() {
        assert_eq!(found, [""; 0], "{kind}");
    }
}
