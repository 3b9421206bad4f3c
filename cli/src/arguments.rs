//! The command line, in kubectl's words.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use yoke_api::KubernetesVersion;

use crate::duration::parse_duration;

const EXIT_CODES: &str = "Exit codes:
  0  done
  1  refused or failed; standard error says why, and what may help
  2  the command line is wrong
  3  the wait ran out; what was asked for goes on";

/// Kubernetes clusters of your own, on a host that runs Yoke.
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

/// How to reach the host: kubectl's own options.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Options of kubectl")]
pub(crate) struct HostOptions {
    /// Kubeconfig file of the host
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Cluster in the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// Namespace, which is the Tenant's name; the context's if not given
    #[arg(long, short, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// User to act as
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) act_as: Option<String>,
    /// Group to act as; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "act_as")]
    pub(crate) act_as_groups: Vec<String>,
    /// How long one request may take, such as 30s; 0 is without limit
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) request_timeout: Duration,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Make a Cluster or a Tenant
    #[command(subcommand)]
    Create(CreateCommand),
    /// Show Clusters or Tenants
    Get(GetOptions),
    /// Print a Cluster's kubeconfig, or add it to your own
    Kubeconfig(KubeconfigOptions),
    /// Delete a Cluster or a Tenant
    #[command(subcommand)]
    Delete(DeleteCommand),
    /// Say how Clusters are, why, and what to do next
    Status(StatusOptions),
    /// Show the versions of this plugin and of the host
    Version(VersionOptions),
    /// Print a completion script
    ///
    /// For bash: source <(kubectl yoke completion bash). It completes `kubectl-yoke`.
    Completion {
        /// Shell to complete in
        shell: Shell,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum CreateCommand {
    /// Make a Cluster in a Tenant's namespace
    Cluster(CreateClusterOptions),
    /// Make a Tenant: a namespace of its name, whose users may make Clusters
    Tenant(CreateTenantOptions),
}

#[derive(Args, Debug)]
pub(crate) struct CreateClusterOptions {
    /// Name of the Cluster
    pub(crate) name: String,
    /// Version of Kubernetes, such as v1.35.4; the host's default if not given
    #[arg(long = "version", value_name = "VERSION")]
    pub(crate) kubernetes_version: Option<KubernetesVersion>,
    /// Class of control plane; the host's default if not given
    #[arg(long, value_name = "NAME")]
    pub(crate) class: Option<String>,
    /// What the Cluster's objects and their history may take
    #[arg(long, value_name = "QUANTITY", default_value = "256Mi", value_parser = parse_quantity)]
    pub(crate) storage: Quantity,
    /// Wait until its API answers
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait; 0 is without limit
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, requires = "wait")]
    pub(crate) timeout: Duration,
    #[command(flatten)]
    pub(crate) write: WriteOptions,
}

#[derive(Args, Debug)]
pub(crate) struct CreateTenantOptions {
    /// Name of the Tenant and of its namespace
    pub(crate) name: String,
    /// User of the host who acts for the Tenant; may be repeated
    #[arg(long = "user", value_name = "NAME")]
    pub(crate) users: Vec<String>,
    /// Group of the host whose members act for the Tenant; may be repeated
    #[arg(long = "group", value_name = "NAME")]
    pub(crate) groups: Vec<String>,
    #[command(flatten)]
    pub(crate) write: WriteOptions,
}

#[derive(Args, Debug)]
pub(crate) struct WriteOptions {
    /// client: only show what would be sent. server: have the host check it, without keeping it
    #[arg(long, value_name = "MODE", value_enum, default_value_t, default_missing_value = "client", num_args = 0..=1, require_equals = true)]
    pub(crate) dry_run: DryRun,
    /// Show the object
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
pub(crate) enum Kind {
    #[value(alias = "cluster", alias = "ykc")]
    Clusters,
    #[value(alias = "tenant", alias = "ykt")]
    Tenants,
}

#[derive(Args, Debug)]
pub(crate) struct GetOptions {
    /// What to show
    #[arg(value_enum, default_value = "clusters")]
    pub(crate) kind: Kind,
    /// Only the one of this name
    pub(crate) name: Option<String>,
    /// In every namespace
    #[arg(long, short = 'A', conflicts_with = "name")]
    pub(crate) all_namespaces: bool,
    /// How to show them; a table if not given
    #[arg(long, short, value_name = "FORMAT", value_enum)]
    pub(crate) output: Option<ListFormat>,
    /// Go on and show every change
    #[arg(long, short)]
    pub(crate) watch: bool,
}

#[derive(Args, Debug)]
pub(crate) struct KubeconfigOptions {
    /// Name of the Cluster
    pub(crate) name: String,
    /// Add it to your kubeconfig ($KUBECONFIG, else ~/.kube/config) and make it the current context
    #[arg(long)]
    pub(crate) merge: bool,
    /// Name of the context; <namespace>/<name> if not given
    #[arg(long, value_name = "NAME", requires = "merge")]
    pub(crate) context_name: Option<String>,
    /// Wait for a Cluster whose kubeconfig is not there yet, at most this long
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    pub(crate) wait: Duration,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DeleteCommand {
    /// Delete a Cluster and, by its deletionPolicy, its state
    Cluster(DeleteOptions),
    /// Delete a Tenant; it goes when its Clusters have gone
    Tenant(DeleteOptions),
}

#[derive(Args, Debug)]
pub(crate) struct DeleteOptions {
    /// Its name
    pub(crate) name: String,
    /// Wait until it is gone
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait; 0 is without limit
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, requires = "wait")]
    pub(crate) timeout: Duration,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatusOptions {
    /// Name of the Cluster; all of the namespace, in short, if not given
    pub(crate) name: Option<String>,
    /// In every namespace
    #[arg(long, short = 'A', conflicts_with = "name")]
    pub(crate) all_namespaces: bool,
}

#[derive(Args, Debug)]
pub(crate) struct VersionOptions {
    /// Only the plugin's, without asking the host
    #[arg(long)]
    pub(crate) client: bool,
}

/// A quantity as Kubernetes writes them: digits and a suffix. The host checks the rest.
fn parse_quantity(text: &str) -> Result<Quantity, String> {
    let digits = text
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
        .count();
    let suffix = &text[digits..];
    let known = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    if digits > 0 && known.contains(&suffix) {
        Ok(Quantity(text.to_owned()))
    } else {
        Err("expected a number with an optional suffix, such as 256Mi or 1Gi".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn quantities_are_checked() {
        for (text, good) in [
            ("256Mi", true),
            ("1.5Gi", true),
            ("1000", true),
            ("", false),
            ("Mi", false),
            ("1MB", false),
            ("-1Mi", false),
        ] {
            assert_eq!(parse_quantity(text).is_ok(), good, "{text:?}");
        }
    }
}
