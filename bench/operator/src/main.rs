//! `make bench-operator`: the process `yoke-operator` with thousands of Clusters.
//!
//! ```text
//! fleet ─▶ objects ─▶ store: etcd ◀─ host: kube-apiserver ◀─ operator: yoke-operator ─▶ tenants: their API servers
//!   └──── authority: certificates        └─▶ audit           └─▶ usage ─▶ table       └─▶ nats: nats-server
//! ```
//!
//! Real parts are kube-apiserver with Yoke's CRDs, etcd, nats-server with an account and streams
//! for each Cluster, and the operator as a process. The operator's own code builds the objects of a
//! settled Cluster. The benchmark writes them into etcd as kube-apiserver would have stored them,
//! because a machine cannot create ten thousand Clusters in minutes.
//!
//! Simulated parts are:
//!
//! - the work of the operator before the Clusters were settled
//! - cert-manager: one process issues the certificates with a pool of keys
//! - the controllers of Kubernetes and the kubelets: the statuses of StatefulSets and Pods contain
//!   what they would write
//! - the APIs of the awake Clusters: one server that stores the objects which it receives
//!
//! No store runs, so the operator does not watch nodes for loss. Everything runs in its own network
//! namespace (`yoke_bench_harness::sandbox`).
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the table is the result")]

mod authority;
mod fleet;
mod host;
mod objects;
mod operator;
mod run;
mod store;
mod stored;
mod table;
mod tenants;

use clap::Parser as _;
use yoke_bench_harness::sandbox;

fn main() -> anyhow::Result<()> {
    let args = run::Args::parse();
    sandbox::run(|| run::run(&args))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn without_arguments_it_is_ten_thousand_clusters() {
        run::Args::command().debug_assert();
        let args = run::Args::try_parse_from(["x"]).unwrap();
        assert_eq!((args.clusters, args.awake), (10_000, 100));
        assert!(run::Args::try_parse_from(["x", "--clusters=70000"]).is_err());
    }
}
