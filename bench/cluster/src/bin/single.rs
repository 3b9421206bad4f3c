//! `make bench`: measures how long a Cluster takes to answer after its creation, after its process
//! was killed and after it was woken. Also measures the cost of an idle Cluster.
//!
//! Prints the tables of `docs/benchmarks`, with the [floor](Floor) of the same rounds.
#![allow(clippy::print_stdout, reason = "the tables are the result")]

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use yoke_api::labels::{SLEEP, SLEEP_NOW};
use yoke_api::{Cluster, ClusterSpec, ConditionType, TenantSpec};
use yoke_bench_harness::targets;
use yoke_bench_harness::usage::cpu_time;
use yoke_cluster_bench::{Floor, floor, percentile};
use yoke_e2e::tenant::{hosted_namespace, is_true};
use yoke_e2e::victim::signal;
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

const CONTAINERS: [&str; 4] = [API_SERVER, "kube-controller-manager", "kube-scheduler", STORE];

const GET: [&str; 4] = ["get", "namespaces", "-o", "name"];
const KUBECTL: &str = "kubectl get namespaces";
const API_SERVER: &str = "kube-apiserver";
const STORE: &str = "kine-nats";
/// A target, and the measured value.
struct Target {
    aim: &'static str,
    measured: String,
    met: bool,
}

/// Durations by name, in the order of the table.
#[derive(Default)]
struct Times(Vec<(String, Vec<Duration>)>);

#[tokio::main]
async fn main() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create_with(&stack, "bench", TenantSpec::default()).await?;
    let last = format!("b{}", ROUNDS - 1);
    let (mut created, mut recovered, mut woken, mut joined) = <(Times, Times, Times, Times)>::default();
    for round in 0..ROUNDS {
        let name = format!("b{round}");
        create(&tenant, &name, &mut created).await?;
        recover(&tenant, &name, &mut recovered).await?;
        if name != last {
            tenant.delete_cluster(&name).await?;
        }
    }
    created.print(&format!("Creation to Ready, {ROUNDS} rounds"), "until");
    recovered.print("kill -9 of a control plane's process to the next answer", "killed");
    for _ in 0..WAKES {
        wake(&tenant, &last, &mut woken).await?;
    }
    woken.print(&format!("Asleep to the answer of a stock kubectl, {WAKES} times"), "");
    let (cpu, memory) = idle(&tenant, &last).await?;
    print_targets(&[
        created.target("apply → Ready in 8 s", &ConditionType::Ready.to_string(), 100, 8),
        recovered.target("recovery after `kill -9` of kube-apiserver in 4 s", API_SERVER, 100, 4),
        recovered.target("recovery after `kill -9` of kine-nats in 4 s", STORE, 100, 4),
        woken.target("asleep → the answer of a stock kubectl: 4 s p50", KUBECTL, 50, 4),
        woken.target("asleep → the answer of a stock kubectl: 6 s p99", KUBECTL, 99, 6),
        Target {
            aim: "idle in 12 ms/s of a core",
            measured: format!("{cpu:.1} ms/s"),
            met: cpu <= 12.0,
        },
        Target {
            aim: "idle in 190 MiB",
            measured: format!("{} MiB", memory >> 20),
            met: memory <= 190 << 20,
        },
    ]);
    for _ in 0..ROUNDS {
        joined.add("all, with the download of yoke-worker by ssh", join(&stack).await?);
    }
    let line = "The line of `ssh HOST join` on a machine without anything to its Node's Ready";
    joined.print(&format!("{line}, {ROUNDS} times"), "");
    tenant.remove().await
}

impl Times {
    fn add(&mut self, what: &str, time: Duration) {
        match self.0.iter_mut().find(|(known, _)| known == what) {
            Some((_, times)) => times.push(time),
            None => self.0.push((what.to_owned(), vec![time])),
        }
    }

    fn print(&self, title: &str, first: &str) {
        println!("\n### {title}\n\n| {first} | min | median | max |\n|---|---|---|---|");
        for (what, times) in &self.0 {
            let at = |hundredths| format!("{:.2} s", at(times, hundredths).as_secs_f64());
            println!("| {what} | {} | {} | {} |", at(0), at(50), at(100));
        }
    }

    /// Compares a percentile of the durations of `what` with a target in seconds.
    fn target(&self, aim: &'static str, what: &str, hundredths: usize, seconds: u64) -> Target {
        let times = self.0.iter().find(|(known, _)| known == what);
        let time = times.map_or(Duration::MAX, |(_, times)| at(times, hundredths));
        Target {
            aim,
            measured: format!("{:.2} s", time.as_secs_f64()),
            met: time <= Duration::from_secs(seconds),
        }
    }
}

/// A percentile of durations. Without durations, no target is met.
fn at(times: &[Duration], hundredths: usize) -> Duration {
    percentile(times, hundredths).unwrap_or(Duration::MAX)
}

fn print_targets(targets: &[Target]) {
    targets::print_head();
    for Target { aim, measured, met } in targets {
        targets::print(aim, measured, *met);
    }
}

/// Creates a Cluster. Records the time of each condition as a watch saw it, of the first answer,
/// and of its API server's start.
async fn create(tenant: &TenantFixture, name: &str, times: &mut Times) -> Result<()> {
    let floor = Floor::before(name)?;
    let ((seen, answered), floor) = tokio::try_join!(watch_creation(tenant, name), floor.measure(LIMIT))?;
    for phase in PHASES {
        let time = seen
            .iter()
            .find(|(of, _)| *of == phase)
            .context("a condition was missed")?
            .1;
        times.add(phase.as_str(), time);
    }
    times.add("first answer by kubectl", answered);
    times.add(floor::TITLE, floor);
    Ok(())
}

async fn watch_creation(tenant: &TenantFixture, name: &str) -> Result<(Vec<(ConditionType, Duration)>, Duration)> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let changes = watcher(tenant.clusters(), config).default_backoff();
    let mut changes = changes.applied_objects().boxed();
    let begin = Instant::now();
    tenant.create_cluster(name, ClusterSpec::default()).await?;
    let mut seen = Vec::<(ConditionType, Duration)>::new();
    let watch = async {
        while let Some(cluster) = changes.next().await {
            // The watch restarts after an error.
            let Ok(cluster): Result<Cluster, _> = cluster else {
                continue;
            };
            let conditions = cluster.status.map(|status| status.conditions).unwrap_or_default();
            for phase in PHASES {
                if is_true(&conditions, phase) && seen.iter().all(|(of, _)| *of != phase) {
                    seen.push((phase, begin.elapsed()));
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
    tenant.stack.kubectl(&kubeconfig, &GET).await?.ok()?;
    Ok((seen, begin.elapsed()))
}

/// Lets a Cluster sleep and wakes it. Records the time of the request that wakes it, and of its API
/// server's start.
async fn wake(tenant: &TenantFixture, name: &str, times: &mut Times) -> Result<()> {
    let kubeconfig = tenant.kubeconfig(name).await?;
    let floor = Floor::before(name)?;
    let annotation = serde_json::json!({"metadata": {"annotations": {SLEEP: SLEEP_NOW}}});
    tenant.patch_cluster(name, annotation).await?;
    tenant
        .wait_condition(name, ConditionType::Asleep, "True", LIMIT)
        .await?;
    let answered = async {
        let asked = Instant::now();
        tenant.stack.kubectl(&kubeconfig, &GET).await?.ok()?;
        Ok(asked.elapsed())
    };
    let (answered, floor) = tokio::try_join!(answered, floor.measure(LIMIT))?;
    times.add(KUBECTL, answered);
    times.add(floor::TITLE, floor);
    tenant.wait_condition(name, ConditionType::Ready, "True", LIMIT).await?;
    Ok(())
}

/// Adds a worker to the demo cluster. Returns the time until its Node is Ready.
async fn join(stack: &Stack) -> Result<Duration> {
    let typed = Instant::now();
    let worker = Worker::join(stack, &stack.dir.join("ssh/demo"), "demo").await?;
    let time = typed.elapsed();
    worker.remove().await?;
    Ok(time)
}

/// Kills kube-apiserver, then kine-nats. Records the time to the next answer after each, and of the
/// API server's start.
async fn recover(tenant: &TenantFixture, name: &str, times: &mut Times) -> Result<()> {
    let floor = Floor::before(name)?;
    let (answered, floor) = tokio::try_join!(kill(tenant, name, API_SERVER), floor.measure(LIMIT))?;
    times.add(API_SERVER, answered);
    times.add(floor::TITLE, floor);
    times.add(STORE, kill(tenant, name, STORE).await?);
    Ok(())
}

/// Kills a process of a control plane. Returns the time to the next answer.
async fn kill(tenant: &TenantFixture, name: &str, container: &str) -> Result<Duration> {
    let kubeconfig = tenant.kubeconfig(name).await?;
    let client = yoke_e2e::stack::client(&kubeconfig).await?;
    let pid = container_pid(tenant, name, container).await?;
    let killed = Instant::now();
    signal(pid, "KILL").await?;
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
    let answered = killed.elapsed();
    tenant.wait_condition(name, ConditionType::Ready, "True", LIMIT).await?;
    Ok(answered)
}

async fn container_pid(tenant: &TenantFixture, name: &str, container: &str) -> Result<u32> {
    let cluster = tenant.clusters().get(name).await?;
    let hosted = hosted_namespace(&cluster)?;
    let pod = network::pod(&tenant.stack, &hosted, &format!("yoke.drzzl.io/cluster={name}")).await?;
    network::container_pid(&tenant.stack, &pod, container).await
}

/// Prints the resource usage of each process of an idle control plane. Returns the total: CPU usage
/// in milliseconds a second, and memory in bytes.
async fn idle(tenant: &TenantFixture, name: &str) -> Result<(f64, u64)> {
    // The caches of a new API server fill for a while. This initial work is not part of the cost of
    // an idle cluster.
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
    Ok((cpu, memory))
}

/// Total CPU time of several processes.
fn used_by(family: &[u32]) -> Result<Duration> {
    family.iter().map(|pid| cpu_time(*pid)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_missed_by_what_took_longer() {
        let mut times = Times::default();
        for seconds in [2, 9, 3, 4] {
            times.add("x", Duration::from_secs(seconds));
        }
        for (hundredths, seconds, met) in [(50, 4, true), (50, 3, false), (99, 9, true), (100, 8, false)] {
            let target = times.target("", "x", hundredths, seconds);
            assert_eq!(target.met, met, "p{hundredths} in {seconds} s: {}", target.measured);
        }
        assert!(!times.target("", "y", 50, 9).met);
    }
}
