//! The command line of the process. Its doc comments are the help texts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use yoke_api::names::is_domain;
use yoke_runtime::budget::Rate;
use yoke_view::input::parse_duration;

use crate::limits::admission::Limits;

/// Serve the Tenants of a host over SSH: commands for their Clusters, authenticated by the SSH keys
/// in their Tenant
#[derive(Clone, Debug, Parser)]
#[command(name = "yoke-ssh-ui", version)]
pub struct Arguments {
    /// Address for SSH clients
    #[arg(long, default_value = "0.0.0.0:2222", value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Address of the HTTP endpoint with /metrics, /livez and /readyz
    #[arg(long, default_value = "0.0.0.0:9090", value_name = "ADDRESS")]
    pub metrics: SocketAddr,
    /// Kubeconfig of the host cluster [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Secret with the host key in the pod's namespace; it must exist, and the process fills it if
    /// it is empty
    #[arg(long, default_value = "yoke-ssh-host-key", value_name = "NAME")]
    pub host_key_secret: String,
    /// Contact for users whose key is unknown, such as an email address of the host's owner
    #[arg(long, value_name = "TEXT")]
    pub contact: Option<String>,
    /// Directory with the yoke-worker programs that users can download: yoke-worker-amd64,
    /// yoke-worker-arm64
    #[arg(long, value_name = "DIR")]
    pub worker_binaries: Option<PathBuf>,
    /// Maximum concurrent connections
    #[arg(long, default_value_t = 512, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Maximum concurrent connections from one source address
    #[arg(long, default_value_t = 64, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_connections: u32,
    /// Maximum concurrent connections that are not authenticated yet
    #[arg(long, default_value_t = 128, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub newcomers: u32,
    /// Maximum concurrent connections that are not authenticated yet, from one source address
    #[arg(long, default_value_t = 16, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_newcomers: u32,
    /// Maximum concurrent connections of one Tenant
    #[arg(long, default_value_t = 64, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub tenant_connections: u32,
    /// Maximum concurrent full-screen interfaces of one Tenant; each takes up to 3 MiB and two
    /// watches at the host
    #[arg(long, default_value_t = 16, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub tenant_interfaces: u32,
    /// Maximum concurrent downloads of yoke-worker by one Tenant
    #[arg(long, default_value_t = 4, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub tenant_downloads: u32,
    /// New connections per second from one source address
    #[arg(long, default_value_t = 5, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_rate: u32,
    /// Burst of new connections from one source address
    #[arg(long, default_value_t = 60, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_burst: u32,
    /// Commands per second with one key
    #[arg(long, default_value_t = 5, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub key_rate: u32,
    /// Burst of commands with one key
    #[arg(long, default_value_t = 60, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub key_burst: u32,
    /// Time after which an idle connection is closed
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = parse_duration)]
    pub idle: Duration,
    /// Options of the HTTPS API.
    #[command(flatten)]
    pub api: Option<ApiArguments>,
}

/// Options of the HTTPS API: either all of them are set, or none.
#[derive(Args, Clone, Debug)]
pub struct ApiArguments {
    /// Address for HTTPS clients, which authenticate with tokens signed by a Tenant's key
    #[arg(long = "api-listen", id = "api-listen", required = false, requires_all = ["api-host", "api-certificate", "api-key"], value_name = "ADDRESS")]
    pub listen: SocketAddr,
    /// Name of this host in tokens: ssh-keygen -Y sign -n yoke@NAME
    #[arg(long = "api-host", id = "api-host", required = false, requires = "api-listen", value_name = "NAME", value_parser = parse_host)]
    pub host: String,
    /// Certificate of the HTTPS API, PEM; it is reloaded when it changes
    #[arg(
        long = "api-certificate",
        id = "api-certificate",
        required = false,
        requires = "api-listen",
        value_name = "FILE"
    )]
    pub certificate: PathBuf,
    /// Private key of the certificate, PEM
    #[arg(
        long = "api-key",
        id = "api-key",
        required = false,
        requires = "api-listen",
        value_name = "FILE"
    )]
    pub key: PathBuf,
    /// Longest time until a token expires, from now
    #[arg(long, default_value = "720h", requires = "api-listen", value_name = "TIME", value_parser = parse_duration)]
    pub token_lifetime: Duration,
}

impl Arguments {
    /// Returns the limits of connections and rates.
    pub fn limits(&self) -> Limits {
        Limits {
            connections: self.connections,
            source_connections: self.source_connections,
            newcomers: self.newcomers,
            source_newcomers: self.source_newcomers,
            tenant_connections: self.tenant_connections,
            tenant_interfaces: self.tenant_interfaces,
            tenant_downloads: self.tenant_downloads,
            source: Rate {
                per_second: self.source_rate,
                burst: self.source_burst,
            },
            key: Rate {
                per_second: self.key_rate,
                burst: self.key_burst,
            },
        }
    }
}

fn parse_host(text: &str) -> Result<String, String> {
    match is_domain(text) {
        true => Ok(text.to_owned()),
        false => Err("expected a DNS name".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_chart() {
        Arguments::command().debug_assert();
        let arguments = Arguments::try_parse_from(["x"]).unwrap();
        assert_eq!(arguments.listen.to_string(), "0.0.0.0:2222");
        assert_eq!(arguments.metrics.to_string(), "0.0.0.0:9090");
        assert_eq!(arguments.host_key_secret, "yoke-ssh-host-key");
        assert_eq!(arguments.idle, Duration::from_secs(600));
        assert!(Arguments::try_parse_from(["x", "--key-rate=0"]).is_err());
        assert!(arguments.api.is_none());
    }

    #[test]
    fn api_options_are_all_or_none() {
        let whole = [
            "x",
            "--api-listen=[::]:8443",
            "--api-host=a.b",
            "--api-certificate=c",
            "--api-key=k",
        ];
        let api = Arguments::try_parse_from(whole).unwrap().api.unwrap();
        assert_eq!(api.token_lifetime, Duration::from_secs(30 * 86_400));
        for left_out in 1..whole.len() {
            let part = whole.iter().enumerate().filter(|(at, _)| *at != left_out);
            let read = Arguments::try_parse_from(part.map(|(_, word)| word));
            assert!(read.is_err(), "without {}", whole[left_out]);
        }
    }
}
