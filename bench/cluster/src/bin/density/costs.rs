//! Measures the resource usage of the host's processes at rest.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use yoke_bench_harness::disk;
use yoke_bench_harness::usage::cpu_time;
use yoke_cluster_bench::machine::{machine_time, taken_memory};
use yoke_e2e::{Stack, Victim, process};

/// The measured processes: a name for the table, and where each runs.
fn processes() -> [(&'static str, Victim); 9] {
    let system = |selector, container| Victim::Container("yoke-system".to_owned(), selector, container);
    [
        ("host kube-apiserver", Victim::Supervised("kube-apiserver")),
        ("host kine-nats", Victim::Supervised("kine-nats")),
        (
            "host kube-controller-manager",
            Victim::Supervised("kube-controller-manager"),
        ),
        ("nats-server", Victim::Supervised("nats-server")),
        (
            "cert-manager",
            Victim::Container(
                "cert-manager".to_owned(),
                "app.kubernetes.io/name=cert-manager",
                "cert-manager",
            ),
        ),
        ("yoke-operator", operator()),
        (
            "yoke-ingress-xds",
            system("app.kubernetes.io/name=yoke-ingress-xds", "ingress-xds"),
        ),
        ("yoke-ssh-ui", system("app.kubernetes.io/name=yoke-ssh-ui", "ssh-ui")),
        ("Envoy", system("app.kubernetes.io/name=envoy", "envoy")),
    ]
}

pub(crate) fn operator() -> Victim {
    Victim::Container(
        "yoke-system".to_owned(),
        "app.kubernetes.io/name=yoke-operator",
        "operator",
    )
}

/// Interval between two checks whether the processes are at rest, and the maximum number of checks.
const LOOK: Duration = Duration::from_secs(10);
const LOOKS: u32 = 120;
/// Maximum CPU usage of the host's processes at rest, in cores. Above it, a process is working off
/// a backlog even if its usage is steady.
const BUSY: f64 = 0.5;

/// Resource usage of one process so far.
#[derive(Clone, Debug)]
struct Used {
    name: &'static str,
    time: Duration,
    memory: u64,
}

/// Resource usage of all processes and of the machine so far.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    at: Instant,
    all: Vec<Used>,
    /// CPU time of everything that runs on the machine.
    machine: Duration,
    /// Used memory of the machine, in bytes.
    taken: u64,
    /// Disk space of NATS, in bytes.
    disk: u64,
}

/// The resource usage between two moments.
pub(crate) struct Span(Costs, Costs);

impl Costs {
    /// Reads the resource usage so far.
    pub(crate) async fn read(stack: &Stack) -> Result<Self> {
        let mut all = Vec::new();
        for (name, victim) in processes() {
            let pid = victim.pid(stack).await.with_context(|| format!("looking for {name}"))?;
            all.push(Used {
                name,
                time: cpu_time(pid)?,
                memory: process::anonymous_memory(pid)?,
            });
        }
        Ok(Self {
            at: Instant::now(),
            all,
            machine: machine_time()?,
            taken: taken_memory()?,
            disk: disk::used_by(&stack.dir.join("nats/data")).context("looking at the disk of NATS")?,
        })
    }

    fn sum(&self) -> Duration {
        self.all.iter().map(|used| used.time).sum()
    }
}

impl Span {
    /// Measures for `length` from now on.
    pub(crate) async fn measure(stack: &Stack, length: Duration) -> Result<Self> {
        let before = Costs::read(stack).await?;
        tokio::time::sleep(length).await;
        Ok(Self(before, Costs::read(stack).await?))
    }

    /// Waits until the processes have finished their work: their CPU usage is low and no longer
    /// falls.
    pub(crate) async fn wait_for_rest(stack: &Stack) -> Result<()> {
        let mut before = Costs::read(stack).await?;
        let mut last = f64::INFINITY;
        for _ in 0..LOOKS {
            tokio::time::sleep(LOOK).await;
            let now = Costs::read(stack).await?;
            let used = now.sum().saturating_sub(before.sum()).as_secs_f64() / (now.at - before.at).as_secs_f64();
            if used < BUSY && used > last * 0.9 {
                return Ok(());
            }
            (before, last) = (now, used);
        }
        bail!("the machine has not come to rest")
    }

    /// CPU time of each process, in the order of [`processes`], and then of the whole machine.
    fn used(&self) -> Vec<Duration> {
        let each = self.0.all.iter().zip(&self.1.all);
        let each = each.map(|(before, after)| after.time.saturating_sub(before.time));
        each.chain([self.1.machine.saturating_sub(self.0.machine)]).collect()
    }

    /// CPU usage in the same order, in milliseconds a second.
    fn rates(&self) -> Vec<f64> {
        let seconds = (self.1.at - self.0.at).as_secs_f64();
        self.used()
            .iter()
            .map(|used| used.as_secs_f64() * 1000.0 / seconds)
            .collect()
    }

    /// Memory at the end, in the same order.
    fn memory(&self) -> Vec<u64> {
        self.1
            .all
            .iter()
            .map(|used| used.memory)
            .chain([self.1.taken])
            .collect()
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0
            .all
            .iter()
            .map(|used| used.name)
            .chain(["the machine, with all that runs"])
    }
}

/// Prints the resource usage at rest with Clusters.
pub(crate) fn print_with(with: &Span, clusters: usize) {
    println!("\n### What {clusters} Clusters cost at rest\n\n| process | CPU | memory |\n|---|---|---|");
    for ((name, rate), memory) in with.names().zip(with.rates()).zip(with.memory()) {
        println!("| {name} | {rate:.1} ms/s | {} MiB |", memory >> 20);
    }
}

/// Prints the resource usage at rest without Clusters and with them, and while they were created.
pub(crate) fn print(without: &Span, with: &Span, clusters: usize) {
    let making = Span(without.1.clone(), with.0.clone());
    let each = clusters.max(1) as u64;
    println!(
        "\n### What {clusters} Clusters cost\n\n| process | CPU at rest without them | with them | CPU to make each | memory without them | with them | each adds |\n|---|---|---|---|---|---|---|"
    );
    let rates = without.rates().into_iter().zip(with.rates());
    let memory = without.memory().into_iter().zip(with.memory());
    for (((name, rates), made), memory) in without.names().zip(rates).zip(making.used()).zip(memory) {
        println!(
            "| {name} | {:.1} ms/s | {:.1} ms/s | {:.0} ms | {} MiB | {} MiB | {} KiB |",
            rates.0,
            rates.1,
            made.as_secs_f64() * 1000.0 / each as f64,
            memory.0 >> 20,
            memory.1 >> 20,
            (memory.1.saturating_sub(memory.0) / each) >> 10
        );
    }
    let (before, after) = (without.1.disk, with.1.disk);
    println!(
        "\nNATS has {} MiB on the disk, and had {}: {} KiB for each Cluster.",
        after >> 20,
        before >> 20,
        (after.saturating_sub(before) / each) >> 10
    );
}
