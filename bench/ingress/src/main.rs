//! `make bench-ingress`: the process `yoke-ingress-xds` and a real Envoy with thousands of clusters.
//!
//! ```text
//! fleet ─▶ host: kube-apiserver ─watch▶ server: yoke-ingress-xds ─xDS, mTLS▶ Envoy ◀── door: clients, pods ◀── phases, noise
//!   └────▶ tenants: their API servers ◀──────────────────────────────────────┘                                     └──▶ table
//! ```
//!
//! Everything runs in a network namespace of its own (`yoke_bench_harness::sandbox`), where each control plane has an address.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]

mod door;
mod fleet;
mod host;
mod noise;
mod phases;
mod run;
mod server;
mod support;
mod tenants;
mod watches;

use clap::Parser as _;
use yoke_bench_harness::sandbox;

/// Measures the ingress with thousands of clusters. Needs yoke-ingress-xds, envoy, kube-apiserver,
/// etcd, ip, unshare and nice in PATH.
#[derive(Debug, clap::Parser)]
#[command(max_term_width = 110, args_conflicts_with_subcommands = true)]
struct Command {
    #[command(flatten)]
    run: run::Args,
    #[command(subcommand)]
    role: Option<Role>,
}

/// Roles of the child processes that the benchmark starts.
#[derive(Debug, clap::Subcommand)]
enum Role {
    #[command(hide = true)]
    Noise(noise::Args),
}

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    sandbox::run(async || match command.role {
        None => run::run(&command.run).await,
        Some(Role::Noise(args)) => noise::make(args).await,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn without_arguments_it_is_ten_thousand_clusters() {
        Command::command().debug_assert();
        let command = Command::try_parse_from(["x"]).unwrap();
        assert_eq!(command.run.clusters, 10_000);
        assert!(Command::try_parse_from(["x", "--clusters=60000"]).is_err());
    }
}
