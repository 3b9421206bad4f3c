//! The README's `make` commands: a second `make up` beside the running stack, and `make status`. `make test` is what runs
//! this, and `make down` ends it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use yoke_e2e::readme::{commands, root};
use yoke_e2e::{Stack, run};

async fn make(target: &str, limit: Duration) -> Result<String> {
    let mut make = Command::new("make");
    // As from a shell, not as from the `cargo` and the `make` that run this test.
    for variable in ["CARGO", "MAKEFLAGS", "MAKELEVEL"] {
        make.env_remove(variable);
    }
    make.arg("--no-print-directory").arg(target).current_dir(root());
    run(make, limit).await?.ok()
}

#[tokio::test]
async fn up_again_changes_nothing_and_says_the_same() -> Result<()> {
    let stack = Stack::connect().await?;
    let before = stack.supervised_pid("kubelet").await?;
    let begun = Instant::now();
    let said = make("up", Duration::from_secs(600)).await?;
    println!("the second `make up` took {:?}", begun.elapsed());
    let kubeconfig = stack.dir.join("demo.kubeconfig");
    for expected in [
        &*kubeconfig.to_string_lossy(),
        "get namespaces",
        "kube-system       Active",
        "kubectl yoke create tenant",
    ] {
        ensure!(said.contains(expected), "`make up` does not say {expected:?}: {said}");
    }
    ensure!(
        stack.supervised_pid("kubelet").await? == before,
        "the second `make up` started the kubelet again"
    );
    Ok(())
}

#[tokio::test]
async fn status_shows_every_component() -> Result<()> {
    let status = make("status", Duration::from_secs(60)).await?;
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
            ["up", "test", "status", "down"].contains(&target),
            "nobody runs {command}"
        );
    }
    Ok(())
}
