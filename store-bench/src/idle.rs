//! `make bench-idle`: what a control plane costs that nobody uses, and what each of the operator's settings gives. All of them run
//! beside each other and are measured over the same time, so that whatever else the machine does meets all of them.
//!
//! ```text
//! variants (what is different) ─► template (what the operator builds) ─► plane (processes, probes) ──► stores
//!                                                                          ▲              └──► report
//!                                                                     certificates
//! ```

mod certificates;
mod plane;
mod report;
mod template;
mod variants;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use self::plane::Plane;
use self::report::Report;
use self::variants::Variant;
use crate::process::Cores;

/// Measures control planes that nobody uses. Wants etcd, kine, kine-nats, nats-server, kube-apiserver, kube-controller-manager,
/// kube-scheduler, setpriv and taskset in PATH. Each takes 200 MiB of memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure; all if it is not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    variants: Vec<Variant>,
    /// Seconds from the last start to the measurement.
    #[arg(long, value_name = "N", default_value_t = 240)]
    settle: u64,
    /// Seconds of the measurement.
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Requests a second that are sent afterwards where a variant wants that, for a quarter of the time.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
}

/// Measures, and prints the tables.
pub(crate) async fn run(args: &Args) -> Result<()> {
    let chosen = if args.variants.is_empty() {
        Variant::all().collect()
    } else {
        args.variants.clone()
    };
    let cores = Cores::available()?;
    let mut planes = Vec::new();
    for variant in chosen {
        let plane = Plane::start(variant, &cores).await;
        planes.push(plane.with_context(|| format!("starting {}", variant.name()))?);
        eprintln!("{} is ready", variant.name());
    }
    tokio::time::sleep(Duration::from_secs(args.settle)).await;
    println!("\n{}", measure(&mut planes, Duration::from_secs(args.seconds)).await?);
    planes.retain(|plane| plane.variant.is_used_too());
    if planes.is_empty() {
        return Ok(());
    }
    let loads = planes.iter().map(|plane| plane.load(args.rate));
    let load = loads.collect::<Result<Vec<_>>>()?;
    // What connections and caches cost once.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before: Vec<_> = load.iter().map(plane::Load::answered).collect();
    let time = Duration::from_secs((args.seconds / 4).max(1));
    let report = measure(&mut planes, time).await?;
    for (load, before) in load.iter().zip(before) {
        let answered = (load.answered() - before) as f64 / time.as_secs_f64();
        ensure!(
            answered > 0.95 * args.rate as f64,
            "{answered:.0} requests a second were answered of {}",
            args.rate
        );
    }
    println!("The same with {} requests a second:\n\n{report}", args.rate);
    Ok(())
}

/// What all of them use over the same time.
async fn measure(planes: &mut [Plane], time: Duration) -> Result<Report> {
    let before = planes.iter().map(Plane::used).collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(time).await;
    let mut report = Report::default();
    for (plane, before) in planes.iter_mut().zip(before) {
        let after = plane.used()?;
        // What has ended used nothing.
        plane.check()?;
        report.add(plane.variant.label(), &before, &after, time);
    }
    Ok(report)
}
