//! Runs every command of the README in order, as a newcomer would.
//!
//! This file runs blocks marked `console` in one shell. `install.rs` runs the blocks about Helm,
//! `workers.rs` those about workers, and the tests in `machine` those marked `console make`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::logs::Journal;
use yoke_e2e::readme::{commands, inline, kinds, root, type_in};
use yoke_e2e::{Stack, run};

const KINDS: [&str; 9] = [
    "text",
    "console",
    "console make",
    "console worker",
    "console root",
    "console images",
    "console install",
    "console uninstall",
    "console forget",
];

/// Removes objects of the README's commands, which an interrupted run or a user may have left.
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
    let commands = commands("console")?;
    ensure!(commands.len() > 10, "only {} commands found", commands.len());
    clean(&stack).await?;
    let journal = Journal::start(&stack);
    type_in(&root(), &[], &commands).await?;
    clean(&stack).await?;
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
    for kind in kinds()? {
        ensure!(
            KINDS.contains(&kind.as_str()),
            "no test knows the README's blocks of {kind:?}"
        );
    }
    let pictures = commands("text");
    ensure!(pictures.is_err(), "a block of text has commands: {pictures:?}");
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
