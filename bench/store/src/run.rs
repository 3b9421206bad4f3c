//! The order of a run. Every round measures all stores, so that other load on the machine affects
//! all of them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use yoke_bench_harness::Peak;

use crate::etcd_benchmark;
use crate::phases::{self, IN_NAMESPACE, Keys};
use crate::process::Cores;
use crate::starts;
use crate::stores::{Kind, Running, Store};
use crate::table::{Cell, Table};
use crate::takeovers;

/// Measures kine-nats beside etcd and Go kine. Needs etcd, kine, kine-nats, nats-server, etcd's
/// benchmark, setpriv and taskset in PATH.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Cores of the load.
    #[arg(long, value_name = "LIST", default_value = "1")]
    pub(crate) load_cores: Cores,
    /// Cores of all servers together.
    #[arg(long, value_name = "LIST", default_value = "0")]
    server_cores: Cores,
    /// Stores to measure: etcd, etcd-replicated, go-kine, kine-nats or kine-nats-replicated.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "etcd,go-kine,kine-nats,etcd-replicated,kine-nats-replicated",
        value_delimiter = ','
    )]
    stores: Vec<Kind>,
    /// Loads of every round: the requests of Kubernetes, or the phases of etcd's own program.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "kubernetes,etcd-benchmark",
        value_delimiter = ','
    )]
    loads: Vec<Load>,
    /// Measure only stores that write to disk before they acknowledge.
    #[arg(long)]
    durable: bool,
    /// Number of rounds for every store.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Duration of each phase without a fixed number of requests.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// Number of namespaces, with 5,000 keys each, that each round creates.
    #[arg(long, value_name = "N", default_value_t = 2)]
    namespaces: u64,
    /// Numbers of keys for the restarts of the durable stores. 1000000 takes half an hour.
    #[arg(long, value_name = "LIST", default_value = "10000,100000", value_delimiter = ',', num_args = 0..)]
    starts: Vec<u64>,
    /// Number of kills of the writer of kine-nats with a follower, and of the leader of a
    /// three-member etcd.
    #[arg(long, value_name = "N", default_value_t = 5)]
    takeovers: usize,
}

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Load {
    /// The requests that kube-apiserver sends.
    Kubernetes,
    /// etcd's program `benchmark`.
    EtcdBenchmark,
}

impl Args {
    fn stores(&self) -> impl Iterator<Item = Store> {
        let wanted = |store: &Store| self.stores.contains(&store.kind) && (store.durable || !self.durable);
        Store::ALL.into_iter().filter(wanted)
    }
}

/// Measures everything, and prints a table for each class of durability.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let mut table = Table::default();
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        for store in args.stores() {
            for load in &args.loads {
                match load {
                    Load::Kubernetes => through_phases(args, store, &mut table).await,
                    Load::EtcdBenchmark => through_benchmark(args, store, &mut table).await,
                }
                .with_context(|| format!("measuring {}", store.name()))?;
            }
        }
    }
    // A start only reads data. Whether the earlier writes were synced makes no difference.
    for store in args.stores().filter(|store| store.durable) {
        for count in &args.starts {
            let mut running = Running::start(store, &args.server_cores, &[]).await?;
            starts::run(&mut running, *count, &mut |row, cell| table.add(store, row, cell))
                .await
                .with_context(|| format!("starting {} with {count} keys", store.name()))?;
        }
        if matches!(store.kind, Kind::KineNats(_) | Kind::Etcd(2..)) && args.takeovers > 0 {
            takeovers::run(store, args.takeovers, &args.server_cores, &mut |row, cell| {
                table.add(store, row, cell)
            })
            .await
            .with_context(|| format!("killing writers of {}", store.name()))?;
        }
    }
    for (durable, heading) in [
        (true, "What is acknowledged is on the disk"),
        (false, "What is acknowledged is in memory"),
    ] {
        let text = table.print(durable);
        if !text.is_empty() {
            println!("\n#### {heading}\n\n{text}");
        }
    }
    Ok(())
}

async fn through_phases(args: &Args, store: Store, table: &mut Table) -> Result<()> {
    let mut running = Running::start(store, &args.server_cores, &[]).await?;
    let keys = Keys::new(&running, args.namespaces * IN_NAMESPACE)?;
    let (peak, front) = (running.peak(), Peak::of(vec![running.front.id()]));
    let mut rows = |row: &str, cell: Cell| table.add(store, row, cell);
    let length = Duration::from_secs_f64(args.seconds);
    phases::run(&mut running, &keys, length, &mut rows).await?;
    rows("most memory in the round, MiB", Cell::number(peak.most(), 0));
    rows("of the process that clients speak to", Cell::number(front.most(), 0));
    Ok(())
}

async fn through_benchmark(args: &Args, store: Store, table: &mut Table) -> Result<()> {
    let mut running = Running::start(store, &args.server_cores, &[]).await?;
    let mut rows = |row: &str, cell| table.add_or_refuse(store, row, cell);
    etcd_benchmark::run(&mut running, Duration::from_secs_f64(args.seconds), &mut rows).await
}
