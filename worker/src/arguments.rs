//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use jiff::SignedDuration;
use yoke_api::names::is_domain;

use crate::gpus::Gpus;
use crate::limits::{Limits, parse_cpus, parse_memory};

/// The worker's folder, unless another one is named.
pub(crate) const ROOT: &str = "/var/lib/yoke-worker";
/// Where a package puts the programs.
pub(crate) const BUNDLE: &str = "/usr/lib/yoke-worker";
/// What a Cluster has unless its spec says otherwise.
const CLUSTER_DNS: &str = "10.96.0.10";
const CLUSTER_DOMAIN: &str = "cluster.local";
/// WireGuard's own, of a worker that stays.
pub(crate) const WIREGUARD_PORT: u16 = 51820;
/// The first one of workers that do not: one that stays may be stopped right now.
pub(crate) const EPHEMERAL_PORT: u16 = WIREGUARD_PORT + 1;
/// Nobody counts in more than a year.
pub(crate) const LONGEST: Duration = Duration::from_hours(8760);

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  refused or failed; standard error says why, and what may help
  2  the command line is wrong
  3  this machine cannot be a worker; the table says what is missing";

/// Makes a machine a worker of a Kubernetes cluster that Yoke hosts.
#[derive(Parser, Debug)]
#[command(name = "yoke-worker", version, after_help = EXIT_CODES)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Say what is missing on this machine for a worker, and what to do about it
    Preflight(PreflightOptions),
    /// Run a worker until Ctrl-C or SIGTERM
    ///
    /// Without --rm it stays a worker: call it again without a token, and it goes on. Its Pods run meanwhile.
    Run(RunOptions),
    /// Make a machine that systemd runs a worker for good
    ///
    /// systemd starts the worker with the machine. Call it again, with a token of the same cluster or none, and it does what is
    /// missing. `leave` undoes it.
    Join(JoinOptions),
    /// Drain the worker, and remove it from the cluster and from this machine
    Leave(FolderOptions),
    /// Process 1 of a worker that is run with --rm
    #[command(hide = true)]
    Init(FolderOptions),
    /// A worker's life
    #[command(hide = true)]
    Node(NodeOptions),
}

#[derive(Args, Debug)]
pub(crate) struct PreflightOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,
    /// Join token, or `-` for standard input: the clock is compared with that of its API
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// File with the join token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) join: TokenOptions,
    #[command(flatten)]
    pub(crate) worker: WorkerOptions,
    /// Leave nothing behind when it ends: Pods, the Node and all files go
    #[arg(long, requires = "join")]
    pub(crate) rm: bool,
    /// End it after this time, such as 2h or 90m
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "rm")]
    pub(crate) ttl: Option<Duration>,
    /// GPUs of the machine that Pods may have
    #[arg(long, value_enum, default_value_t, requires = "rm")]
    pub(crate) gpus: Gpus,
}

#[derive(Args, Debug)]
pub(crate) struct JoinOptions {
    #[command(flatten)]
    pub(crate) join: TokenOptions,
    #[command(flatten)]
    pub(crate) worker: WorkerOptions,
}

#[derive(Args, Debug)]
#[group(id = "join", multiple = false)]
pub(crate) struct TokenOptions {
    /// Join token, or `-` for standard input; nothing to go on as the worker that this machine is
    ///
    /// Everybody on the machine sees the arguments of a process as long as it runs: `-` and --token-file do not show it.
    pub(crate) token: Option<String>,
    /// File with the join token
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,
    /// Name of the Node, if it is not the machine's
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Address of the Node, if it is not that of the default route; with --rm, of this machine
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Address where other workers reach this one, if it is not that of --node-ip
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) public_address: Option<IpAddr>,
    /// Address of the cluster's DNS Service
    #[arg(long, value_name = "ADDRESS", default_value = CLUSTER_DNS)]
    pub(crate) cluster_dns: IpAddr,
    /// Domain of the cluster's Services
    #[arg(long, value_name = "NAME", default_value = CLUSTER_DOMAIN, value_parser = parse_domain)]
    pub(crate) cluster_domain: String,
    /// How long Pods may take to go when it ends
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) drain_timeout: Duration,
    /// Processors that the worker and its Pods may take together, such as 2 or 1.5; all of them if not given
    #[arg(long, value_name = "NUMBER", value_parser = parse_cpus)]
    pub(crate) cpus: Option<u32>,
    /// Memory that the worker and its Pods may take together, such as 4Gi; all of it if not given
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) memory: Option<u64>,
    /// Do not look first at what the machine lacks
    #[arg(long)]
    pub(crate) no_preflight: bool,
}

impl WorkerOptions {
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            cpus: self.cpus,
            memory: self.memory,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct FolderOptions {
    /// Folder of all that belongs to the worker
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    pub(crate) root: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct NodeOptions {
    #[command(flatten)]
    pub(crate) folder: FolderOptions,
    /// Drain and end as soon as it runs
    #[arg(long)]
    pub(crate) leave: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MachineOptions {
    /// Folder of all that belongs to the worker
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    pub(crate) root: PathBuf,
    /// Folder with the kubelet and the other programs, and a SHA256SUMS of them
    #[arg(long, value_name = "DIR", default_value = BUNDLE)]
    pub(crate) bundle: PathBuf,
    /// Accept control groups of version 1, which Kubernetes gives up
    #[arg(long)]
    pub(crate) allow_cgroup_v1: bool,
    /// Port of UDP at which other workers reach this one: 51820 if not given, or with --rm the first one from 51821 on that
    /// is free
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) wireguard_port: Option<u16>,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed = text
        .parse::<SignedDuration>()
        .ok()
        .and_then(|time| Duration::try_from(time).ok());
    parsed
        .filter(|time| *time <= LONGEST)
        .ok_or_else(|| "expected a time such as 90s, 30m or 2h, at most 8760h".to_owned())
}

fn parse_domain(text: &str) -> Result<String, String> {
    if is_domain(text) {
        Ok(text.to_owned())
    } else {
        Err("expected a domain such as cluster.local".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn times_are_bounded() {
        for (text, seconds) in [("90s", Some(90)), ("2h", Some(7200)), ("1h30m", Some(5400))] {
            assert_eq!(parse_duration(text).ok().map(|time| time.as_secs()), seconds, "{text}");
        }
        for text in ["", "1", "-5m", "9000h", "soon"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
