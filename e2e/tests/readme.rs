//! Every command of the README is run, in its order, as a newcomer would.
//!
//! Blocks marked `console` are run here in one shell. Blocks marked `console make` are what brings this test about
//! (`make up`, `make test`) or ends it (`make down`): their targets must exist.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::{Stack, run};

fn commands(readme: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}");
    let mut within = false;
    let mut found = Vec::new();
    for line in readme.lines() {
        if line == fence {
            within = true;
        } else if line.starts_with("```") {
            within = false;
        } else if within && let Some(command) = line.strip_prefix("$ ") {
            found.push(command.to_owned());
        }
    }
    found
}

#[tokio::test]
async fn every_command_works() -> Result<()> {
    let stack = Stack::connect().await?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = std::fs::read_to_string(root.join("README.md"))?;
    let commands = commands(&readme, "console");
    ensure!(
        commands.len() > 10,
        "only {} commands found: the README's form has changed",
        commands.len()
    );

    // A run that was broken off may have left the README's tenant.
    stack
        .host_kubectl(&["delete", "clusters", "-n", "first", "--all", "--timeout=60s"])
        .await?;
    stack
        .host_kubectl(&["delete", "tenant", "first", "--ignore-not-found", "--timeout=60s"])
        .await?
        .ok()?;

    let script = commands.join("\n");
    let mut shell = Command::new("bash");
    shell
        .args(["-e", "-x", "-o", "pipefail", "-c", &script])
        .current_dir(&root)
        .env_remove("KUBECONFIG");
    run(shell, Duration::from_secs(600))
        .await?
        .ok()
        .context("the last command shown failed")?;
    Ok(())
}

#[test]
fn make_targets_exist() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let readme = std::fs::read_to_string(root.join("README.md"))?;
    let makefile = std::fs::read_to_string(root.join("Makefile"))?;
    let commands = commands(&readme, "console make");
    ensure!(
        !commands.is_empty(),
        "no make command found: the README's form has changed"
    );
    for command in commands {
        let target = command
            .strip_prefix("make ")
            .with_context(|| format!("{command} is not a make command"))?;
        ensure!(
            makefile.lines().any(|line| line.starts_with(&format!("{target}:"))),
            "the Makefile has no target {target}"
        );
    }
    Ok(())
}
