//! `make bench-idle`: the cost of an idle control plane, and the saving of each of the operator's
//! settings. All control planes run side by side and are measured over the same interval, so that
//! other load on the machine affects all of them equally.
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

/// Measures idle control planes. Needs etcd, kine, kine-nats, nats-server, kube-apiserver,
/// kube-controller-manager, kube-scheduler, setpriv and taskset in PATH. Each control plane takes
/// 200 MiB of memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Variants to measure. The default is all variants.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    variants: Vec<Variant>,
    /// Seconds between the last start and the measurement.
    #[arg(long, value_name = "N", default_value_t = 240)]
    settle: u64,
    /// Duration of the measurement in seconds.
    #[arg(long, value_name = "N", default_value_t = 240, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Requests per second in the second measurement. Only some variants have that measurement, and
    /// it takes a quarter of the time.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rate: u64,
}

/// Measures the variants, and prints the tables.
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
    // Leaves out the one-time cost of connections and caches.
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

/// Measures the resource usage of all control planes over the same interval.
async fn measure(planes: &mut [Plane], time: Duration) -> Result<Report> {
    let before = planes.iter().map(Plane::used).collect::<Result<Vec<_>>>()?;
    tokio::time::sleep(time).await;
    let mut report = Report::default();
    for (plane, before) in planes.iter_mut().zip(before) {
        let after = plane.used()?;
        // The usage of an exited process would be too low.
        plane.check()?;
        report.add(plane.variant.label(), &before, &after, time);
    }
    Ok(report)
}
