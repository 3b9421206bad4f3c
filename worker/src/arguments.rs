//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use jiff::SignedDuration;
use yoke_api::names::is_domain;

use crate::host::gpus::Gpus;
use crate::limits::{Limits, parse_cpus, parse_memory};

/// Default of `--root`, the worker's folder.
pub(crate) const ROOT: &str = "/var/lib/yoke-worker";
/// Default of `--bundle`: the folder where a package installs the programs.
pub(crate) const BUNDLE: &str = "/usr/lib/yoke-worker";
/// Default of `--cluster-dns`, equal to the default of a Cluster.
const CLUSTER_DNS: &str = "10.96.0.10";
const CLUSTER_DOMAIN: &str = "cluster.local";
/// WireGuard's own default port, for a worker that stays.
pub(crate) const WIREGUARD_PORT: u16 = 51820;
/// First port that ephemeral workers try. It differs from `WIREGUARD_PORT`, because a permanent
/// worker may be stopped only for now.
pub(crate) const EPHEMERAL_PORT: u16 = WIREGUARD_PORT + 1;
/// Upper bound for every duration option: one year.
pub(crate) const LONGEST: Duration = Duration::from_hours(8760);

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  the command failed; standard error says why, and often how to fix it
  2  invalid command line
  3  this machine cannot be a worker; the table lists what is missing";

/// Turns a machine into a node of a Kubernetes cluster that Yoke hosts.
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
    /// Check whether this machine can be a worker, and print how to fix what is missing
    Preflight(PreflightOptions),
    /// Run a worker until Ctrl-C or SIGTERM
    ///
    /// Without --rm the machine stays a worker: run the command again without a token to continue.
    /// Pods keep running meanwhile.
    Run(RunOptions),
    /// Make this machine a permanent worker, run by systemd
    ///
    /// systemd starts the worker at boot. Running the command again, with a token of the same
    /// cluster or without one, completes what is missing. `leave` undoes it.
    Join(JoinOptions),
    /// Drain the worker, and remove it from the cluster and from this machine
    Leave(FolderOptions),
    /// Process 1 of a worker that runs with --rm
    #[command(hide = true)]
    Init(FolderOptions),
    /// The worker's main process in the sandbox
    #[command(hide = true)]
    Node(NodeOptions),
}

#[derive(Args, Debug)]
pub(crate) struct PreflightOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,
    /// Join token, or `-` for standard input; the clock is then compared with the clock of the
    /// token's API server
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
    /// Remove everything on exit: Pods, the Node and all files
    #[arg(long, requires = "join")]
    pub(crate) rm: bool,
    /// Exit after this time, such as 2h or 90m
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "rm")]
    pub(crate) ttl: Option<Duration>,
    /// GPUs of the machine that Pods may use
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
    /// Join token, or `-` for standard input; without a token, continue as the worker that this
    /// machine already is
    ///
    /// Every user of the machine can read the arguments of a running process. `-` and --token-file
    /// do not expose the token.
    pub(crate) token: Option<String>,
    /// File with the join token
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct WorkerOptions {
    #[command(flatten)]
    pub(crate) machine: MachineOptions,
    /// Name of the Node; default is the host name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Address of the Node; default is the address of the default route. With --rm: address of this
    /// machine
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) node_ip: Option<IpAddr>,
    /// Address at which other workers reach this one; default is --node-ip
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) public_address: Option<IpAddr>,
    /// Address of the cluster's DNS Service
    #[arg(long, value_name = "ADDRESS", default_value = CLUSTER_DNS)]
    pub(crate) cluster_dns: IpAddr,
    /// Domain of the cluster's Services
    #[arg(long, value_name = "NAME", default_value = CLUSTER_DOMAIN, value_parser = parse_domain)]
    pub(crate) cluster_domain: String,
    /// How long Pods may take to terminate when the worker exits
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub(crate) drain_timeout: Duration,
    /// CPUs that the worker and its Pods may use together, such as 2 or 1.5; default is all
    #[arg(long, value_name = "NUMBER", value_parser = parse_cpus)]
    pub(crate) cpus: Option<u32>,
    /// Memory that the worker and its Pods may use together, such as 4Gi; default is all
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub(crate) memory: Option<u64>,
    /// Skip the preflight checks
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
    /// Folder for all files of the worker
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    pub(crate) root: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct NodeOptions {
    #[command(flatten)]
    pub(crate) folder: FolderOptions,
    /// Drain the Node and exit as soon as the worker runs
    #[arg(long)]
    pub(crate) leave: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MachineOptions {
    /// Folder for all files of the worker
    #[arg(long, value_name = "DIR", default_value = ROOT)]
    pub(crate) root: PathBuf,
    /// Folder with the kubelet and the other programs, and their SHA256SUMS
    #[arg(long, value_name = "DIR", default_value = BUNDLE)]
    pub(crate) bundle: PathBuf,
    /// Accept cgroup v1, which Kubernetes is removing
    #[arg(long)]
    pub(crate) allow_cgroup_v1: bool,
    /// UDP port at which other workers reach this one; default is 51820, with --rm the first free
    /// port from 51821 on
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
    fn the_command_line_is_consistent() {
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
