//! The order of the phases in a run.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use yoke_bench_harness::{Table, tenants};

use crate::door::{Door, INSIDE};
use crate::fleet::{Fleet, MOST};
use crate::host::Host;
use crate::phases::{self, Stage};
use crate::server::Server;
use crate::support::fixtures::certificate_secret;
use crate::support::pki::trust;
use crate::tenants::Tenants;
use crate::watches::Watches;

/// Maximum number of open watches, and the divisor of the cluster count: one in so many clusters
/// has a watch.
const WATCHES: (usize, usize) = (200, 4);
/// Kinds of changes that are measured.
const KINDS: usize = 3;

/// Arguments of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of clusters.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number(8))]
    pub(crate) clusters: u64,
    /// Number of measured endpoint changes. As many clusters are created and removed.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = number(1))]
    changes: u64,
    /// Total number of changes while watches are open. Changes beyond the measured ones are not
    /// timed.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    all_changes: usize,
    /// Number of rounds in which a tenant is measured beside a noisy one.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Duration of each of these rounds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    seconds: f64,
}

fn number(least: u64) -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(least..=MOST as u64 / 2)
}

pub(crate) async fn run(args: &Args) -> Result<()> {
    let [count, changes] = [args.clusters, args.changes].map(usize::try_from);
    let (count, changes) = (count?, changes?);
    let dir = tempfile::Builder::new().prefix("ingress-bench-").tempdir()?;
    let fleet = Arc::new(Fleet::new(count + changes));
    tenants::serve(Tenants::new(Arc::clone(&fleet))).await?;
    let root = dir.path().join("root.pem");
    std::fs::write(&root, &fleet.root.pem)?;

    let host = Host::start(dir.path()).await;
    let kubeconfig = host.write_kubeconfig(dir.path())?;
    let own = fleet
        .root
        .under("public")
        .leaf("ingress", &[INSIDE, "kubernetes.default.svc"]);
    host.show(&certificate_secret(&own.certificate, &own.key)).await?;
    let server = Server::start(dir.path(), &kubeconfig).await?;
    let mut envoy = phases::start_envoy(&server).await;
    envoy.wait_ready_within(crate::support::PATIENCE).await;
    let door = Door::new(envoy.ingress, trust(&fleet.root.pem));
    let mut stage = Stage {
        fleet,
        count,
        host,
        server,
        envoy,
        door,
    };

    let mut table = Table::default();
    phases::feed(&stage, &mut table).await?;
    let (most, share) = WATCHES;
    let watches = Watches::open(&stage.door, &stage.fleet, most.min(count / share)).await?;
    phases::change(&stage, &watches, changes, &mut table).await?;
    let rest = args.all_changes.saturating_sub(KINDS * changes);
    phases::churn(&stage, &watches, changes..changes + rest).await?;
    let what = format!(
        "of {} open watches cut over {} changes",
        watches.count(),
        KINDS * changes + rest
    );
    table.number(&what, watches.cut().await as f64, "", Some(0.0));
    phases::restart_server(&mut stage, &watches, &mut table).await?;
    drop(watches);
    phases::compare(&stage, &mut table).await?;
    let length = Duration::from_secs_f64(args.seconds);
    phases::disturb(&stage, &root, (args.rounds, length), &mut table).await?;
    phases::restart_envoy(&mut stage, &root, &mut table).await?;
    println!("\n{table}");
    Ok(())
}
