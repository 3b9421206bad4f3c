//! `make bench`: how long it takes until a Cluster answers, how long after its process was killed and after it was woken, and
//! what it costs idle.
//!
//! Prints the tables of `docs/benchmarks.md`. The floor beside them is the same API server's own start, taken from its
//! container's start to the first answer, in the same run.
#![allow(clippy::print_stdout, reason = "the tables are the result")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use yoke_api::labels::{SLEEP, SLEEP_NOW};
use yoke_api::{Cluster, ClusterSpec, ConditionType, TenantSpec};
use yoke_e2e::tenant::hosted_namespace;
use yoke_e2e::tenant::is_true;
use yoke_e2e::{Stack, TenantFixture, Worker, network, process, wait_for};

const ROUNDS: usize = 5;
const WAKES: usize = 10;
const IDLE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(120);
const PHASES: [ConditionType; 6] = [
    ConditionType::Accepted,
    ConditionType::StoreReady,
    ConditionType::CertificatesReady,
    ConditionType::APIServerAvailable,
    ConditionType::EndpointPublished,
    ConditionType::Ready,
];

const CONTAINERS: [&str; 4] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kine-nats",
];

#[tokio::main]
async fn main() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create_with(&stack, "bench", TenantSpec::default()).await?;
    let mut created = BTreeMap::<String, Vec<Duration>>::new();
    let mut recovered = Vec::new();
    for round in 0..ROUNDS {
        let name = format!("b{round}");
        for (phase, time) in create(&tenant, &name).await? {
            created.entry(phase).or_default().push(time);
        }
        recovered.push(recover(&tenant, &name).await?);
        if round + 1 < ROUNDS {
            tenant.delete_cluster(&name).await?;
        }
    }
    println!("\n### Creation to Ready, {ROUNDS} rounds\n\n| until | min | median | max |\n|---|---|---|---|");
    for phase in PHASES
        .iter()
        .map(ToString::to_string)
        .chain(["first answer by kubectl".to_owned()])
    {
        print_row(&phase, created.remove(&phase).unwrap_or_default());
    }
    println!(
        "\n### kill -9 of a control plane's process to the next answer\n\n| killed | min | median | max |\n|---|---|---|---|"
    );
    for (index, container) in ["kube-apiserver", "kine-nats"].into_iter().enumerate() {
        print_row(
            container,
            recovered.iter().filter_map(|times| times.get(index).copied()).collect(),
        );
    }
    let last = format!("b{}", ROUNDS - 1);
    let mut woken = Vec::new();
    for _ in 0..WAKES {
        woken.push(wake(&tenant, &last).await?);
    }
    println!(
        "\n### Asleep to the answer of a stock kubectl, {WAKES} times\n\n| | min | median | max |\n|---|---|---|---|"
    );
    print_row("kubectl get namespaces", woken);
    idle(&tenant, &last).await?;
    let mut joined = Vec::new();
    for _ in 0..ROUNDS {
        joined.push(join(&stack).await?);
    }
    println!(
        "\n### The line of `ssh HOST join` on a machine without anything to its Node's Ready, {ROUNDS} times\n\n| | min | median | max |\n|---|---|---|---|"
    );
    print_row("all, with the download of yoke-worker by ssh", joined);
    tenant.remove().await
}

fn print_row(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let seconds = |time: Option<&Duration>| time.map_or("-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
    println!(
        "| {what} | {} | {} | {} |",
        seconds(times.first()),
        seconds(times.get(times.len() / 2)),
        seconds(times.last())
    );
}

/// Creates a Cluster and gives the time of each condition as a watch saw it, and of the first answer.
async fn create(tenant: &TenantFixture, name: &str) -> Result<Vec<(String, Duration)>> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = watcher(tenant.clusters(), config).applied_objects().boxed();
    let begin = Instant::now();
    tenant.create_cluster(name, ClusterSpec::default()).await?;
    let mut seen = Vec::<(String, Duration)>::new();
    let watch = async {
        while let Some(cluster) = changes.next().await {
            let cluster: Cluster = cluster.context("watching the Cluster")?;
            let conditions = cluster.status.map(|status| status.conditions).unwrap_or_default();
            for phase in PHASES {
                if is_true(&conditions, phase) && seen.iter().all(|(name, _)| *name != phase.to_string()) {
                    seen.push((phase.to_string(), begin.elapsed()));
                }
            }
            if is_true(&conditions, ConditionType::Ready) {
                return Ok::<(), anyhow::Error>(());
            }
        }
        anyhow::bail!("the watch ended")
    };
    tokio::time::timeout(LIMIT, watch)
        .await
        .with_context(|| format!("{name} was not Ready after {LIMIT:?}"))??;
    let kubeconfig = tenant.kubeconfig(name).await?;
    tenant
        .stack
        .kubectl(&kubeconfig, &["get", "namespaces", "-o", "name"])
        .await?
        .ok()?;
    seen.push(("first answer by kubectl".to_owned(), begin.elapsed()));
    Ok(seen)
}

/// Sends a Cluster to sleep, and gives the time that a request takes by which it wakes.
async fn wake(tenant: &TenantFixture, name: &str) -> Result<Duration> {
    let kubeconfig = tenant.kubeconfig(name).await?;
    let annotation = serde_json::json!({"metadata": {"annotations": {SLEEP: SLEEP_NOW}}});
    tenant.patch_cluster(name, annotation).await?;
    tenant
        .wait_condition(name, ConditionType::Asleep, "True", LIMIT)
        .await?;
    let asked = Instant::now();
    let get = ["get", "namespaces", "-o", "name"];
    tenant.stack.kubectl(&kubeconfig, &get).await?.ok()?;
    let time = asked.elapsed();
    tenant.wait_condition(name, ConditionType::Ready, "True", LIMIT).await?;
    Ok(time)
}

/// Adds a worker to the demo cluster, and gives the time until its Node is Ready.
async fn join(stack: &Stack) -> Result<Duration> {
    let typed = Instant::now();
    let worker = Worker::join(stack, &stack.dir.join("ssh/demo"), "demo").await?;
    let time = typed.elapsed();
    worker.remove().await?;
    Ok(time)
}

/// Kills kube-apiserver, then kine-nats, and gives the time to the next answer of each.
async fn recover(tenant: &TenantFixture, name: &str) -> Result<Vec<Duration>> {
    let kubeconfig = tenant.kubeconfig(name).await?;
    let client = yoke_e2e::stack::client(&kubeconfig).await?;
    let mut times = Vec::new();
    for container in ["kube-apiserver", "kine-nats"] {
        let pid = container_pid(tenant, name, container).await?;
        let killed = Instant::now();
        let mut kill = tokio::process::Command::new("kill");
        kill.args(["-9", &pid.to_string()]);
        yoke_e2e::run(kill, Duration::from_secs(5)).await?.ok()?;
        wait_for(&format!("{container} to run again"), LIMIT, || async {
            Ok((container_pid(tenant, name, container).await? != pid).then_some(()))
        })
        .await?;
        wait_for("an answer", LIMIT, || async {
            let answer = tokio::time::timeout(Duration::from_secs(1), client.apiserver_version()).await;
            let namespaces: kube::Api<k8s_openapi::api::core::v1::Namespace> = kube::Api::all(client.clone());
            let list = tokio::time::timeout(Duration::from_secs(1), namespaces.get("default")).await;
            Ok((matches!(answer, Ok(Ok(_))) && matches!(list, Ok(Ok(_)))).then_some(()))
        })
        .await?;
        times.push(killed.elapsed());
        tenant.wait_condition(name, ConditionType::Ready, "True", LIMIT).await?;
    }
    Ok(times)
}

async fn container_pid(tenant: &TenantFixture, name: &str, container: &str) -> Result<u32> {
    let cluster = tenant.clusters().get(name).await?;
    let hosted = hosted_namespace(&cluster)?;
    let pod = network::pod(&tenant.stack, &hosted, &format!("yoke.drzzl.io/cluster={name}")).await?;
    network::container_pid(&tenant.stack, &pod, container).await
}

/// Prints what each process of an idle control plane uses.
async fn idle(tenant: &TenantFixture, name: &str) -> Result<()> {
    // The caches of a new API server fill for a while; its own bookkeeping is not what an idle cluster costs.
    tokio::time::sleep(IDLE).await;
    let mut pids = Vec::new();
    for container in CONTAINERS {
        let family = process::family(container_pid(tenant, name, container).await?)?;
        let before = used_by(&family)?;
        pids.push((container, family, before));
    }
    let begin = Instant::now();
    tokio::time::sleep(IDLE).await;
    println!(
        "\n### One idle control plane, no nodes, over {IDLE:?}\n\n| process | CPU | anonymous memory |\n|---|---|---|"
    );
    let (mut cpu, mut memory) = (0.0, 0);
    for (container, family, before) in pids {
        let used = (used_by(&family)? - before).as_secs_f64() * 1000.0 / begin.elapsed().as_secs_f64();
        let bytes: u64 = family
            .iter()
            .map(|pid| process::anonymous_memory(*pid))
            .sum::<Result<_>>()?;
        println!("| {container} | {used:.1} ms/s | {} MiB |", bytes >> 20);
        cpu += used;
        memory += bytes;
    }
    println!("| all | {cpu:.1} ms/s | {} MiB |", memory >> 20);
    Ok(())
}

/// Processor time that some processes have used together.
fn used_by(family: &[u32]) -> Result<Duration> {
    family.iter().map(|pid| process::cpu_time(*pid)).sum()
}
