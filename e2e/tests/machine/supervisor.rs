//! The development stack's supervisor: it is killed, restarts a process, and reports a process that
//! does not answer.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::{Stack, run, wait_for, wait_until};

use crate::make::make;

const LIMIT: Duration = Duration::from_secs(30);

/// Pids of the first node's supervisor, found by command line: the guard and its daemon.
fn supervisor_pids(stack: &Stack) -> Result<Vec<u32>> {
    let program = stack.dir.join("bin/yoke-dev");
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").context("reading the processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let is_program = words.first().is_some_and(|word| Path::new(&**word) == program);
        // Each added node has a supervisor too.
        let is_of_first = words.windows(2).any(|pair| pair == ["--node", "1"]);
        if is_program && words.get(1).is_some_and(|word| word == "supervise") && is_of_first {
            pids.push(pid);
        }
    }
    Ok(pids)
}

async fn signal(signal: &str, pids: &[u32]) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.arg(signal).args(pids.iter().map(u32::to_string));
    run(kill, Duration::from_secs(5)).await?.ok().map(drop)
}

#[tokio::test]
async fn killed_supervisor_leaves_its_processes_alone() -> Result<()> {
    let stack = Stack::connect().await?;
    let kubelet = stack.supervised_pid("kubelet").await?;
    let old = supervisor_pids(&stack)?;
    ensure!(old.len() == 2, "a guard and a daemon should run, not {old:?}");
    let daemon = *old.iter().max().context("no daemon")?;

    signal("-9", &[daemon]).await?;
    let after = wait_for("another daemon to answer", LIMIT, || async {
        Ok(Some(stack.supervised_pid("kubelet").await?))
    })
    .await?;
    ensure!(
        after == kubelet,
        "the kubelet was started again: {kubelet}, then {after}"
    );

    // Kill the guard too. Then nothing restarts the supervisor except a user.
    signal("-9", &supervisor_pids(&stack)?).await?;
    wait_until("the supervisor to be gone", LIMIT, || async {
        Ok(supervisor_pids(&stack)?.is_empty())
    })
    .await?;
    make("up", Duration::from_secs(300)).await?.ok()?;
    let after = stack.supervised_pid("kubelet").await?;
    ensure!(
        after == kubelet,
        "`make up` started the kubelet again: {kubelet}, then {after}"
    );
    Ok(())
}

#[tokio::test]
async fn process_that_does_not_answer_is_down_until_it_is_restarted() -> Result<()> {
    const NAME: &str = "kube-scheduler";
    let stack = Stack::connect().await?;
    let stopped = stack.supervised_pid(NAME).await?;
    signal("-STOP", &[stopped]).await?;
    let status = make("status", LIMIT).await?.refused()?;
    let line = status
        .lines()
        .find(|line| line.contains(NAME))
        .context("no such line")?;
    ensure!(line.starts_with("DOWN") && line.contains(".log"), "{line}");

    let mut restart = stack.program("yoke-dev");
    restart.args(["restart", NAME]);
    run(restart, LIMIT).await?.ok()?;
    ensure!(stack.supervised_pid(NAME).await? != stopped, "{NAME} was not restarted");
    wait_until("every component to be well", LIMIT, || async {
        make("status", LIMIT).await?.ok().map(|_| true)
    })
    .await
}
