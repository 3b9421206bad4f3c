//! Options for the connection to the host: those that kubectl accepts for every command.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use yoke_view::input::parse_duration;

/// kubectl's own options, with the same names and the same meaning.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Options of kubectl")]
pub(crate) struct HostOptions {
    /// Kubeconfig file of the host
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context in the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Cluster in the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User in the kubeconfig, instead of the context's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Namespace, which is the Tenant's name; the default is the context's
    #[arg(long, short, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Address of the host's API, instead of the cluster's
    #[arg(long, short, global = true, value_name = "URL")]
    pub(crate) server: Option<String>,
    /// Name that the host's certificate must have, instead of the address's
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// File with the CA certificates for the host, instead of the cluster's
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) certificate_authority: Option<PathBuf>,
    /// Do not verify the host's certificate
    #[arg(
        long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", action = clap::ArgAction::Set,
    )]
    pub(crate) insecure_skip_tls_verify: bool,
    /// File with the client certificate for the host
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) client_certificate: Option<PathBuf>,
    /// File with the key of the client certificate
    #[arg(long, global = true, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) client_key: Option<PathBuf>,
    /// Bearer token for the host
    #[arg(long, global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub(crate) act_as: Option<String>,
    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP", requires = "act_as")]
    pub(crate) act_as_groups: Vec<String>,
    /// UID to impersonate
    #[arg(long = "as-uid", global = true, value_name = "UID", requires = "act_as")]
    pub(crate) act_as_uid: Option<String>,
    /// Timeout of one request, such as 30s; 0 means no limit
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub(crate) request_timeout: Duration,
    /// Verbosity of standard error; 6 shows every request
    #[arg(long = "v", short = 'v', global = true, value_name = "LEVEL", default_value_t = 0)]
    pub(crate) verbosity: u8,
}
