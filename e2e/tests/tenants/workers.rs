//! Workers of a tenant's cluster: they join by a line from the SSH server, and run what the tenant runs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;
use yoke_e2e::readme::{commands, root, type_in};
use yoke_e2e::workload::POD_LIMIT;
use yoke_e2e::{Stack, Worker, Workload, run, wait_for};

/// A worker's programs are packed, it joins, and it is Ready.
const MAKE_LIMIT: Duration = Duration::from_secs(300);
/// Where every Pod has its API.
const API: &str = "https://10.96.0.1/api/v1/namespaces";

/// `make worker`, as a person runs it.
async fn make_worker(stack: &Stack) -> Result<Worker> {
    let mut make = Command::new("make");
    for variable in ["CARGO", "MAKEFLAGS", "MAKELEVEL"] {
        make.env_remove(variable);
    }
    make.args(["--no-print-directory", "worker"]).current_dir(root());
    Worker::find(stack, &run(make, MAKE_LIMIT).await?.ok()?)
}

#[tokio::test]
async fn a_worker_serves_the_demo_cluster() -> Result<()> {
    let stack = Stack::connect().await?;
    let kubeconfig = stack.dir.join("demo.kubeconfig");
    let inside = Workload {
        stack: &stack,
        kubeconfig: &kubeconfig,
    };
    let worker = make_worker(&stack).await?;
    type_in(&root(), &[], &commands("console worker")?)
        .await
        .with_context(|| worker.last_words())?;
    inside.run_pod("asks", &[], None).await?;
    inside.wait_phase("asks", "Running").await?;
    let heard = exec_on_terminal(inside, "asks").await?;
    ensure!(heard.trim() == "asks", "exec -it: {heard}");
    read_own_namespace(inside).await?;
    inside.kubectl(&["delete", "pod/asks", "rolebinding/sees"]).await?;

    let name = worker.name.clone();
    worker.remove().await?;
    let left = inside.kubectl(&["get", "nodes", "-o", "name"]).await?;
    ensure!(!left.contains(&name), "{left}");
    Ok(())
}

/// `kubectl exec -it`: a terminal is what is there, and what it shows comes back.
async fn exec_on_terminal(inside: Workload<'_>, pod: &str) -> Result<String> {
    let program = inside.stack.dir.join("bin/kubectl");
    let (program, kubeconfig) = (program.display(), inside.kubeconfig.display());
    let line = format!("{program} --kubeconfig {kubeconfig} exec -it {pod} -- echo get http://127.0.0.1:8080/");
    let mut terminal = Command::new("script");
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    run(terminal, POD_LIMIT).await?.ok()
}

/// A Pod's default service account sees what its roles say, at the address that every Pod has for its API.
async fn read_own_namespace(inside: Workload<'_>) -> Result<()> {
    let view = [
        "create",
        "rolebinding",
        "sees",
        "--clusterrole=view",
        "--serviceaccount=default:default",
    ];
    inside.kubectl(&view).await?;
    let own = format!("{API}/default/pods/asks");
    let seen = wait_for("a Pod to read its namespace", POD_LIMIT, async || {
        inside.ask_from("asks", &own).await?.ok().map(Some)
    })
    .await?;
    let seen: Value = serde_json::from_str(&seen).context(seen)?;
    ensure!(seen["metadata"]["name"] == "asks", "{seen}");
    let refusal = inside
        .ask_from("asks", &format!("{API}/kube-system/pods"))
        .await?
        .refused()?;
    ensure!(refusal.contains("403 Forbidden"), "{refusal}");
    Ok(())
}
