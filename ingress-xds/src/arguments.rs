//! The command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use yoke_runtime::budget::Rate;

use crate::activator::wake::WakeLimits;
use crate::authz::{GateLimits, REFUSAL_DELAY};
use crate::traffic::SeriesRegistry;
use crate::translate::EnvoyLimits;
use crate::validate::Rules;

/// Serves Envoy the routes of all tenant clusters, and decides which connections and requests are allowed.
///
/// Reads the ConfigMaps and EndpointSlices of the clusters from the host API. Stores no state.
#[derive(Clone, Debug, Parser)]
#[command(name = "yoke-ingress-xds", version, args_override_self = true)]
pub struct Arguments {
    /// Address for Envoy: ADS, ext_authz and access logs over mutual TLS
    #[arg(long, default_value = "0.0.0.0:18000", value_name = "ADDRESS")]
    pub listen_xds: SocketAddr,
    /// Directory with this process's tls.crt and tls.key; reloaded when they change
    #[arg(long, value_name = "DIRECTORY")]
    pub tls_dir: PathBuf,
    /// CA certificates (PEM) that verify clients; reloaded when they change
    #[arg(long, value_name = "FILE")]
    pub client_ca: PathBuf,
    /// DNS name in the certificate of a client; may be repeated, and one match is enough
    #[arg(long, default_value = "envoy.yoke-system.svc", value_name = "NAME")]
    pub client_name: Vec<String>,
    /// Base domain; the public name of each cluster is one label below it
    #[arg(long, value_name = "DOMAIN")]
    pub base_domain: String,
    /// ConfigMap in this process's namespace with the host owner's listeners, clusters, endpoints and routes [default: none]
    #[arg(long, value_name = "NAME")]
    pub base_config_map: Option<String>,
    /// Port of Envoy's bootstrap, which the base ConfigMap may not use; may be repeated
    #[arg(long, default_values_t = [8443, 8081, 9901], value_name = "PORT")]
    pub envoy_port: Vec<u16>,
    /// Address of the HTTP endpoint with /metrics, /livez and /readyz
    #[arg(long, default_value = "0.0.0.0:9090", value_name = "ADDRESS")]
    pub metrics: SocketAddr,
    /// Kubeconfig of the host cluster [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// New connections per second from one source address
    #[arg(long, default_value_t = 200, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_rate: u32,
    /// Burst of new connections from one source address
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_burst: u32,
    /// Open connections from one source address
    #[arg(long, default_value_t = 8192, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_connections: u32,
    /// New connections per second to one name
    #[arg(long, default_value_t = 500, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub name_rate: u32,
    /// Burst of new connections to one name
    #[arg(long, default_value_t = 5000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub name_burst: u32,
    /// Open connections from one Envoy to one name
    #[arg(long, default_value_t = 4096, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub name_connections: u32,
    /// Requests of pods per second to one cluster
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cluster_request_rate: u32,
    /// Burst of requests of pods to one cluster
    #[arg(long, default_value_t = 5000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cluster_request_burst: u32,
    /// Open requests of pods from one Envoy to one cluster, watches included
    #[arg(long, default_value_t = 4096, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cluster_requests: u32,
    /// Address at which Envoy reaches this process's activator, for example the pod's own [default: no activator]
    #[arg(long, value_name = "ADDRESS")]
    pub sleeper: Option<IpAddr>,
    /// Port of the activator, on every local address
    #[arg(long, default_value_t = 18443, value_name = "PORT")]
    pub sleeper_port: u16,
    /// Service in this process's namespace whose endpoints are the replicas of this process; Envoy is sent the activators of all [default: only its own]
    #[arg(long, value_name = "NAME", requires = "sleeper")]
    pub sleeper_service: Option<String>,
    /// New connections per second from one source address to sleeping clusters
    #[arg(long, default_value_t = 50, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub sleeper_source_rate: u32,
    /// Burst of new connections from one source address to sleeping clusters
    #[arg(long, default_value_t = 500, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub sleeper_source_burst: u32,
    /// Wakes per second of the clusters of one Tenant, and by the Pods of one source address
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub wake_rate: u32,
    /// Burst of wakes of the clusters of one Tenant, and by the Pods of one source address
    #[arg(long, default_value_t = 20, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub wake_burst: u32,
    /// Clusters with traffic metrics of their own; the traffic of further clusters is counted together
    #[arg(long, default_value_t = 10_000, value_name = "NUMBER")]
    pub cluster_series: u32,
}

impl Arguments {
    /// Limits of the gate.
    pub fn gate_limits(&self) -> GateLimits {
        GateLimits {
            source: Rate {
                per_second: self.source_rate,
                burst: self.source_burst,
            },
            source_connections: self.source_connections,
            name: Rate {
                per_second: self.name_rate,
                burst: self.name_burst,
            },
            requests: Rate {
                per_second: self.cluster_request_rate,
                burst: self.cluster_request_burst,
            },
            refusal_delay: REFUSAL_DELAY,
            sleeping: Rate {
                per_second: self.sleeper_source_rate,
                burst: self.sleeper_source_burst,
            },
        }
    }

    /// Rate limits for wakes.
    pub fn wake_limits(&self) -> WakeLimits {
        let rate = Rate {
            per_second: self.wake_rate,
            burst: self.wake_burst,
        };
        WakeLimits {
            tenant: rate,
            source: rate,
        }
    }

    /// The registry of traffic series.
    pub fn series(&self) -> SeriesRegistry {
        SeriesRegistry::new(usize::try_from(self.cluster_series).unwrap_or(usize::MAX))
    }

    /// Rules that apply to the complete host.
    pub fn rules(&self) -> Rules {
        let to_socket = |address| SocketAddr::new(address, self.sleeper_port);
        Rules {
            activator: self.sleeper.map(to_socket),
            replicas: self.sleeper_service.is_some(),
            ..Rules::new(&self.base_domain)
        }
    }

    /// Limits that Envoy enforces.
    pub fn envoy_limits(&self) -> EnvoyLimits {
        EnvoyLimits {
            connections: self.name_connections,
            requests: self.cluster_requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_chart() {
        Arguments::command().debug_assert();
        let needed = ["x", "--tls-dir=/t", "--client-ca=/c", "--base-domain=yoke.test"];
        let arguments = Arguments::try_parse_from(needed).unwrap();
        assert_eq!(arguments.listen_xds.to_string(), "0.0.0.0:18000");
        assert_eq!(arguments.metrics.to_string(), "0.0.0.0:9090");
        assert_eq!(arguments.client_name, ["envoy.yoke-system.svc"]);
        assert_eq!(arguments.envoy_port, [8443, 8081, 9901]);
        assert_eq!(arguments.base_config_map, None);
        assert_eq!(arguments.cluster_series, 10_000);
        assert_eq!((arguments.sleeper, arguments.sleeper_port), (None, 18443));
        assert!(Arguments::try_parse_from(needed.into_iter().chain(["--sleeper-service=x"])).is_err());
        assert!(Arguments::try_parse_from(["x"]).is_err());
        assert!(Arguments::try_parse_from(needed.into_iter().chain(["--name-rate=0"])).is_err());
        let twice = needed.into_iter().chain(["--name-rate=1", "--name-rate=2"]);
        assert_eq!(Arguments::try_parse_from(twice).unwrap().name_rate, 2);
    }
}
