//! The `make` commands of the README and the book: a second `make up` beside the running stack, and `make status`.
//! Other commands have other tests: `make test` runs this one, tests of tenants run `make worker`,
//! and the slow test of a lost node runs `make host-node`. `make down` ends the test run.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::readme::{commands, page, root};
use yoke_e2e::{Output, Stack, run};

/// Runs `make TARGET` as a user would.
pub(crate) async fn make(target: &str, limit: Duration) -> Result<Output> {
    run(in_clone(target), limit).await
}

fn in_clone(target: &str) -> Command {
    let mut make = Command::new("make");
    // Removes variables of the `cargo` and the `make` that run this test.
    for variable in ["CARGO", "MAKEFLAGS", "MAKELEVEL"] {
        make.env_remove(variable);
    }
    make.arg("--no-print-directory").arg(target).current_dir(root());
    make
}

/// Final message of `make up`, as the quick start shows it: without this clone's folder and without
/// ages.
fn to_final_message(said: &str) -> String {
    let begin = said.find("1. The kubeconfig").unwrap_or_default();
    let clone = root().canonicalize().unwrap_or_default().display().to_string();
    let without_age = |line: &str| match line.split_once(" Active ") {
        Some((name, _)) => format!("{name} Active"),
        None => line.trim_end().to_owned(),
    };
    said[begin..]
        .replace(&clone, "~/yoke")
        .lines()
        .map(without_age)
        .collect::<Vec<_>>()
        .join("\n")
}

#[tokio::test]
async fn second_up_restarts_nothing_and_prints_what_the_quick_start_shows() -> Result<()> {
    let stack = Stack::connect().await?;
    let before = stack.supervised_pid("kubelet").await?;
    // States that a user who sends the cluster to sleep, and interrupted tests, leave behind.
    for left in [
        &["cordon", "yoke-host"][..],
        &["taint", "node", "yoke-host", "yoke-e2e/full=:NoSchedule"],
        &["annotate", "cluster", "demo", "-n", "demo", "yoke.drzzl.io/sleep=now"],
        &[
            "wait",
            "cluster/demo",
            "-n",
            "demo",
            "--for=condition=Asleep",
            "--timeout=60s",
        ],
    ] {
        stack.host_kubectl(left).await?.ok()?;
    }
    let started = Instant::now();
    let said = make("up", Duration::from_secs(600)).await?.ok()?;
    println!("the second `make up` took {:?}", started.elapsed());
    for expected in [
        "yoke-host was unschedulable and is schedulable again",
        "woken from sleep",
    ] {
        ensure!(said.contains(expected), "{expected:?} is missing in: {said}");
    }
    let shown = to_final_message(&page("docs/book/src/start/quick-start.md")?);
    let message = to_final_message(&said);
    ensure!(
        shown.starts_with(&message),
        "the quick start does not show the output of `make up`:\n{message}"
    );
    ensure!(
        stack.supervised_pid("kubelet").await? == before,
        "the second `make up` started the kubelet again"
    );
    Ok(())
}

#[tokio::test]
async fn status_shows_every_component() -> Result<()> {
    let status = make("status", Duration::from_secs(60)).await?.ok()?;
    for component in [
        "nats-server",
        "kine-nats",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "containerd",
        "kubelet",
        "kube-proxy",
        "kube-router",
        "cert-manager",
        "yoke-operator",
        "yoke-ingress-xds",
        "yoke-ssh-ui",
        "envoy",
    ] {
        ensure!(
            status.contains(component),
            "`make status` does not show {component}: {status}"
        );
    }
    for command in commands("console make")? {
        let target = command.strip_prefix("make ").with_context(|| command.clone())?;
        ensure!(
            ["up", "test", "worker", "host-node", "status", "down"].contains(&target),
            "no test runs {command}"
        );
    }
    Ok(())
}

/// The book's commands for images, but with the binaries of the dev profile, for speed.
#[tokio::test]
async fn images_are_written_for_a_registry() -> Result<()> {
    let commands = commands("console images")?;
    ensure!(
        commands == ["make images", "ls .dev/images"],
        "no test runs {commands:?}"
    );
    let mut images = in_clone("images");
    images.env("YOKE_PROFILE", "dev");
    run(images, Duration::from_secs(600)).await?.ok()?;
    for name in ["operator", "ingress-xds", "kine-nats", "ssh-ui", "worker"] {
        let file = root().join(format!(".dev/images/{name}.tar"));
        let mut tar = Command::new("tar");
        tar.arg("-xOf").arg(&file).arg("index.json");
        let index = run(tar, Duration::from_secs(10)).await?.ok()?;
        let index: serde_json::Value = serde_json::from_str(&index).context("index.json")?;
        let manifests = index["manifests"].as_array().context("no manifests")?;
        let named = |manifest: &serde_json::Value| {
            manifest["annotations"]["org.opencontainers.image.ref.name"] == env!("CARGO_PKG_VERSION")
        };
        ensure!(manifests.len() == 1 && manifests.iter().all(named), "{name}: {index}");
    }
    Ok(())
}

/// Runs only the first step of `up`, with the stack's own binary.
fn up_one_step(stack: &Stack) -> Command {
    let mut up = stack.program("yoke-dev");
    up.args(["up", "--until", "prerequisites"]).current_dir(root());
    up
}

#[tokio::test]
async fn failed_step_names_itself_its_cause_and_advice() -> Result<()> {
    let stack = Stack::connect().await?;
    let mut up = up_one_step(&stack);
    up.env("HOST_STORE", "etcd");
    let said = run(up, Duration::from_secs(10)).await?.refused()?;
    for expected in [
        "✗ step 1 of 1 failed after",
        "this stack uses HOST_STORE=kine-nats, not etcd",
        "\n  try: fix the problem above",
    ] {
        ensure!(said.contains(expected), "{expected:?} is missing in: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn steps_are_plain_lines_except_on_a_terminal() -> Result<()> {
    let stack = Stack::connect().await?;
    let plain = run(up_one_step(&stack), Duration::from_secs(10)).await?.ok()?;
    ensure!(
        plain.contains("[ 1/1]") && plain.contains("done in") && !plain.contains('\u{1b}'),
        "{plain:?}"
    );
    let mut terminal = Command::new("script");
    let up = format!("{} up --until prerequisites", stack.dir.join("bin/yoke-dev").display());
    terminal
        .args(["--quiet", "--return", "--command", &up, "/dev/null"])
        .current_dir(root());
    let shown = run(terminal, Duration::from_secs(10)).await?.ok()?;
    ensure!(shown.contains("✓ [ 1/1]") && shown.contains("\u{1b}["), "{shown:?}");
    Ok(())
}
