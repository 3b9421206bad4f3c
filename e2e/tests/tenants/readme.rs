//! Every command of the README and the book is run, in its order, as a newcomer would.
//!
//! Blocks marked `console` are run here, in one shell for each page, those about Helm by `install.rs`, those about workers by
//! `workers.rs`, those of `console make` by the tests of the machine. Blocks marked `sh` have placeholders: they are parsed only.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::logs::Journal;
use yoke_e2e::readme::{blocks, commands, inline, kinds, root, scripts, type_in};
use yoke_e2e::{Stack, run};

/// Kinds of blocks that a test runs, and those without commands to run.
const KINDS: [&str; 12] = [
    "text",
    "yaml",
    "json",
    "sh",
    "console",
    "console make",
    "console worker",
    "console root",
    "console images",
    "console install",
    "console uninstall",
    "console forget",
];

/// Removes objects of the book's commands, which an interrupted run or a user may have left.
async fn clean(stack: &Stack) -> Result<()> {
    let host = ["delete", "clusters", "-n", "first", "--all", "--timeout=60s"];
    stack.host_kubectl(&host).await?.ok()?;
    let host = ["delete", "tenant", "first", "--ignore-not-found", "--timeout=60s"];
    stack.host_kubectl(&host).await?.ok()?;
    let demo = ["delete", "configmap", "hello", "--ignore-not-found"];
    stack.kubectl(&stack.dir.join("demo.kubeconfig"), &demo).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn every_command_works() -> Result<()> {
    let stack = Stack::connect().await?;
    let scripts = scripts("console")?;
    let count: usize = scripts.iter().map(|(_, commands)| commands.len()).sum();
    ensure!(count > 10, "only {count} commands found");
    clean(&stack).await?;
    let journal = Journal::start(&stack);
    for (page, commands) in &scripts {
        type_in(&root(), &[], commands).await.with_context(|| page.clone())?;
        clean(&stack).await?;
    }
    let unlisted = journal.unlisted_in_system(&stack, &[]).await?;
    ensure!(
        unlisted.is_empty(),
        "Yoke logged unexpected lines:\n{}",
        unlisted.join("\n")
    );
    Ok(())
}

/// Commands in the running text, with the demo cluster in place of the names that a reader fills
/// in.
#[tokio::test]
async fn every_command_in_the_text_works() -> Result<()> {
    let mut commands = vec![
        "source .dev/env".to_owned(),
        "export KUBECONFIG=.dev/host.kubeconfig".to_owned(),
    ];
    for command in inline("kubectl")?
        .into_iter()
        .filter(|command| command != "kubectl yoke")
    {
        commands.push(command.replace("NAME", "demo").replace("TENANT", "demo"));
    }
    for command in inline("make")? {
        commands.push(command.replace("make", "make --dry-run"));
    }
    type_in(&root(), &[], &commands).await.map(drop)
}

/// A block of an unknown kind would not be run by any test.
#[test]
fn every_block_has_a_test() -> Result<()> {
    for (page, kind) in kinds()? {
        ensure!(
            KINDS.contains(&kind.as_str()),
            "{page}: no test knows blocks of {kind:?}"
        );
    }
    for kind in ["text", "sh"] {
        let unrun = commands(kind);
        ensure!(
            unrun.is_err(),
            "blocks of {kind:?} have commands that no test runs: {unrun:?}"
        );
    }
    Ok(())
}

/// Blocks of `sh` have names that a reader fills in, so bash parses them and runs nothing.
#[tokio::test]
async fn examples_are_valid_shell() -> Result<()> {
    let blocks = blocks("sh")?;
    ensure!(!blocks.is_empty(), "no page has a block of \"sh\"");
    for (page, block) in blocks {
        let mut parser = Command::new("bash");
        parser.args(["-n", "-c", &block]);
        let parsed = run(parser, Duration::from_secs(10)).await?.ok();
        parsed.with_context(|| format!("{page}:\n{block}"))?;
    }
    Ok(())
}

/// Without this the README would grow back into a manual.
#[test]
fn readme_is_short() -> Result<()> {
    let lines = std::fs::read_to_string(root().join("README.md"))?.lines().count();
    ensure!(lines <= 200, "README.md has {lines} lines; move text into the book");
    Ok(())
}

/// The packages are installed already, or the stack would not run. A simulation shows that they can
/// be installed.
#[tokio::test]
async fn packages_are_known_to_the_distribution() -> Result<()> {
    for command in commands("console root")? {
        let mut simulation = Command::new("apt-get");
        match command.strip_prefix("apt-get install ") {
            Some(packages) => simulation.args(["install", "--simulate"]).args(packages.split(' ')),
            None => {
                ensure!(command == "apt-get update", "no test runs {command}");
                simulation.args(["update", "--print-uris"])
            }
        };
        run(simulation, Duration::from_secs(60)).await?.ok().context(command)?;
    }
    Ok(())
}
