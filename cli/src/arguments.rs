//! The command line, with kubectl's names for options. Its doc comments are the help texts.

mod connection;

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use yoke_api::KubernetesVersion;
use yoke_api::join_token::Taint;
use yoke_api::join_token::node::parse_label;
use yoke_view::input::{parse_duration, parse_quantity, parse_ttl};

use crate::ssh_key::{KeyFile, parse_key_file};

pub(crate) use crate::arguments::connection::HostOptions;

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  refused or failed; standard error says why, and what may help
  2  the command line is wrong
  3  the wait timed out; the host continues (run and join exit with 1, and delete what they created)
  126, 127  run: the command cannot be executed, or was not found
  129, 130, 131, 143  join or run was ended by SIGHUP, Ctrl-C, SIGQUIT or SIGTERM; its JoinToken or Cluster is deleted,
       unless --keep-on-failure keeps the Cluster of a command that has started";

const COMPLETION: &str =
    "kubectl completes `kubectl yoke <TAB>` with a program named kubectl_complete-yoke. Put it where \
kubectl-yoke is, or anywhere else on PATH:
  kubectl yoke completion kubectl > /usr/local/bin/kubectl_complete-yoke
  chmod +x /usr/local/bin/kubectl_complete-yoke
kubectl's own completion must be on: see `kubectl completion --help`.

To complete `kubectl-yoke` itself, in bash:
  source <(kubectl yoke completion bash)";

const RUN: &str = "The command gets the path of the Cluster's kubeconfig in KUBECONFIG, and its name in YOKE_CLUSTER. The exit code is the command's own: \
127 if the command was not found, 128 plus the signal's number if a signal ended it. Signals are forwarded to the command, and the \
Cluster is deleted after it. If this program is killed, the host deletes the Cluster when its --ttl has passed.

  kubectl yoke run -- kubectl get namespaces
  kubectl yoke run --version v1.35.4 -- make integration-test";

/// Create and use Kubernetes clusters on a host that runs Yoke
#[derive(Parser, Debug)]
#[command(name = "kubectl-yoke", bin_name = "kubectl yoke", version, after_help = EXIT_CODES)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Arguments {
    #[command(flatten)]
    pub(crate) host: HostOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a Cluster or a Tenant
    #[command(subcommand)]
    Create(CreateCommand),
    /// Show Clusters or Tenants
    Get(GetOptions),
    /// Print a Cluster's kubeconfig, or merge it into your own
    Kubeconfig(KubeconfigOptions),
    /// Print the command that joins a worker to a Cluster
    Join(JoinOptions),
    /// Run a command with a temporary Cluster, and delete the Cluster when the command exits
    #[command(after_help = RUN)]
    Run(RunOptions),
    /// Delete a Cluster or a Tenant
    #[command(subcommand)]
    Delete(DeleteCommand),
    /// Show the state of Clusters, the reason, and what to do next
    Status(StatusOptions),
    /// Show the versions of this plugin and of the host
    Version(VersionOptions),
    /// Print the script that completes this plugin's commands
    #[command(after_help = COMPLETION)]
    Completion {
        /// Shell for `kubectl-yoke`, or kubectl for `kubectl yoke`
        completer: Completer,
    },
    /// Print the candidates that kubectl's completion requests
    #[command(name = "__complete", hide = true)]
    Complete {
        /// Words of the command line; the last one is to be completed
        #[arg(last = true)]
        words: Vec<OsString>,
    },
}

/// Program that completes a command line: a shell by itself, or kubectl in any shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completer {
    Shell(Shell),
    Kubectl,
}

impl ValueEnum for Completer {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::Kubectl,
            Self::Shell(Shell::Bash),
            Self::Shell(Shell::Elvish),
            Self::Shell(Shell::Fish),
            Self::Shell(Shell::PowerShell),
            Self::Shell(Shell::Zsh),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Kubectl => Some(PossibleValue::new("kubectl")),
            Self::Shell(shell) => shell.to_possible_value(),
        }
    }
}

/// Whether and how long to wait. Each command sets its own default with `mut_arg`.
#[derive(Args, Debug)]
pub(crate) struct WaitOptions {
    /// Wait until the command has taken effect
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set,
    )]
    pub(crate) wait: bool,
    /// How long to wait; 0 means no limit
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Subcommand, Debug)]
pub(crate) enum CreateCommand {
    /// Create a Cluster in a Tenant's namespace
    Cluster(CreateClusterOptions),
    /// Create a Tenant: a namespace of the same name, whose users may create Clusters
    Tenant(CreateTenantOptions),
}

/// Options of the Cluster's spec that `create cluster` and `run` share.
#[derive(Args, Debug)]
pub(crate) struct ClusterOptions {
    /// Kubernetes version, such as v1.35.4; the default is the host's
    #[arg(long = "version", value_name = "VERSION")]
    pub(crate) kubernetes_version: Option<KubernetesVersion>,
    /// Class of the control plane; the default is the host's
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// Storage quota for the Cluster's objects and their history
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi", value_parser = parse_quantity)]
    pub(crate) storage: Quantity,
}

#[derive(Args, Debug)]
#[command(mut_arg("wait", |wait| wait.help("Wait until its API answers")))]
#[command(mut_arg("timeout", |timeout| timeout.requires("wait")))]
pub(crate) struct CreateClusterOptions {
    /// Name of the Cluster
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) what: ClusterOptions,
    /// Time until the host deletes the Cluster, such as 90m or 8h; no limit if omitted
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    pub(crate) ttl: Option<String>,
    #[command(flatten)]
    pub(crate) waiting: WaitOptions,
    #[command(flatten)]
    pub(crate) write: WriteOptions,
}

#[derive(Args, Debug)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) what: ClusterOptions,
    /// Time until the host deletes the Cluster, such as 90m or 8h, even if the command still runs
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_ttl)]
    pub(crate) ttl: String,
    /// How long to wait for the Cluster's API; 0 means no limit
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// If the command fails, keep the Cluster until its --ttl ends, so that you can inspect it
    #[arg(long)]
    pub(crate) keep_on_failure: bool,
    /// Command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

// The id `user` replaces kubectl's global `--user`, as in `kubectl create rolebinding`; with two
// ids clap would set both.
#[derive(Args, Debug)]
#[command(mut_arg("wait", |wait| wait.default_value("true").help("Wait until Clusters can be made in it")))]
pub(crate) struct CreateTenantOptions {
    /// Name of the Tenant and of its namespace
    pub(crate) name: String,
    /// User of the host who may act for the Tenant; may be repeated
    #[arg(id = "user", long = "user", value_name = "NAME")]
    pub(crate) users: Vec<String>,
    /// Group of the host whose members may act for the Tenant; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    pub(crate) groups: Vec<String>,
    /// File with the public key (.pub) of a user who may act for the Tenant over SSH; may be
    /// repeated
    #[arg(long = "ssh-key", value_name = "[NAME=]FILE", value_parser = parse_key_file)]
    pub(crate) ssh_keys: Vec<KeyFile>,
    #[command(flatten)]
    pub(crate) waiting: WaitOptions,
    #[command(flatten)]
    pub(crate) write: WriteOptions,
}

#[derive(Args, Debug)]
pub(crate) struct WriteOptions {
    /// client: only print the object that would be sent. server: let the host validate it without
    /// storing it
    #[arg(long, value_name = "MODE", value_enum, default_value_t, default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub(crate) dry_run: DryRun,
    /// Print the object in this format
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<ObjectFormat>,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DryRun {
    #[default]
    None,
    Client,
    Server,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectFormat {
    Name,
    Json,
    Yaml,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListFormat {
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatusFormat {
    Wide,
    Json,
    Yaml,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataFormat {
    Json,
    Yaml,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameFormat {
    Name,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    #[value(alias = "cluster", alias = "ykc")]
    Clusters,
    #[value(alias = "tenant", alias = "ykt")]
    Tenants,
}

#[derive(Args, Debug)]
pub(crate) struct GetOptions {
    /// Kind of objects to show
    #[arg(value_enum, default_value = "clusters")]
    pub(crate) kind: Kind,
    /// Show only the object of this name
    pub(crate) name: Option<String>,
    /// Show objects of all namespaces
    #[arg(long, short = 'A', conflicts_with = "name")]
    pub(crate) all_namespaces: bool,
    /// Output format; a table if omitted
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<ListFormat>,
    /// Show only objects whose labels match, such as team=a,stage!=test
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "name")]
    pub(crate) selector: Option<String>,
    /// Omit the header of the table
    #[arg(long)]
    pub(crate) no_headers: bool,
    /// Watch and show every change
    #[arg(long, short)]
    pub(crate) watch: bool,
}

#[derive(Args, Debug)]
#[command(mut_arg("wait", |wait| wait.help("Wait until the Cluster's API answers")))]
#[command(mut_arg("timeout", |timeout| timeout.requires("wait")))]
pub(crate) struct KubeconfigOptions {
    /// Name of the Cluster
    pub(crate) name: String,
    /// Merge it into your kubeconfig ($KUBECONFIG, else ~/.kube/config) and make it the current
    /// context
    #[arg(long)]
    pub(crate) merge: bool,
    /// Name of the context; the default is <namespace>/<name>
    #[arg(long, value_name = "NAME", requires = "merge")]
    pub(crate) context_name: Option<String>,
    #[command(flatten)]
    pub(crate) waiting: WaitOptions,
}

#[derive(Args, Debug)]
pub(crate) struct JoinOptions {
    /// Name of the Cluster
    pub(crate) name: String,
    /// Number of workers that may join with the command
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = clap::value_parser!(i32).range(1..=100))]
    pub(crate) uses: i32,
    /// How long the command is valid, in minutes or hours, from 1m to 24h
    #[arg(long, value_name = "TIME", default_value = "15m")]
    pub(crate) ttl: String,
    /// Delete a worker's Node after it has been silent for this time, from 1m to 24h; never if
    /// omitted
    #[arg(long, value_name = "TIME")]
    pub(crate) reap_after: Option<String>,
    /// Label with which a worker registers its Node; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    pub(crate) labels: Vec<(String, String)>,
    /// Taint with which a worker registers its Node, such as gpu=a100:NoSchedule; may be repeated
    #[arg(long = "taint", value_name = "KEY[=VALUE]:EFFECT")]
    pub(crate) taints: Vec<Taint>,
    /// How long to wait for the host; 0 means no limit
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeleteCommand {
    /// Delete a Cluster and, according to its deletionPolicy, its stored state
    Cluster(DeleteOptions),
    /// Delete a Tenant; the host deletes its namespace after its last Cluster
    Tenant(DeleteOptions),
}

#[derive(Args, Debug)]
#[command(mut_arg("wait", |wait| wait.default_value("true").help("Wait until it is gone")))]
pub(crate) struct DeleteOptions {
    /// Name of the object
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) waiting: WaitOptions,
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Print only the name of the object
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<NameFormat>,
}

#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    /// Name of the Cluster; a summary of all Clusters in the namespace if omitted
    pub(crate) name: Option<String>,
    /// Show Clusters of all namespaces
    #[arg(long, short = 'A', conflicts_with = "name")]
    pub(crate) all_namespaces: bool,
    /// Show only Clusters whose labels match, such as team=a,stage!=test
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "name")]
    pub(crate) selector: Option<String>,
    /// Output format; text if omitted
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<StatusFormat>,
}

#[derive(Args, Debug)]
pub(crate) struct VersionOptions {
    /// Show only the plugin's version, without a request to the host
    #[arg(long)]
    pub(crate) client: bool,
    /// Output format; text if omitted
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<DataFormat>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
