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

/// Serves Envoy the routes of all tenant clusters, and decides which connections may pass.
///
/// Reads from the host API the ConfigMaps and EndpointSlices that the operator's clusters have; keeps no state of its own.
#[derive(Clone, Debug, Parser)]
#[command(name = "yoke-ingress-xds", version, args_override_self = true)]
pub struct Arguments {
    /// Address for Envoy: ADS and ext_authz over mutual TLS
    #[arg(long, default_value = "0.0.0.0:18000", value_name = "ADDRESS")]
    pub listen_xds: SocketAddr,
    /// Directory with this process's tls.crt and tls.key; read again when they change
    #[arg(long, value_name = "DIRECTORY")]
    pub tls_dir: PathBuf,
    /// CA certificates (PEM) by which clients are verified; read again when they change
    #[arg(long, value_name = "FILE")]
    pub client_ca: PathBuf,
    /// DNS name that a client's certificate must carry; may be repeated, one of them is enough
    #[arg(long, default_value = "envoy.yoke-system.svc", value_name = "NAME")]
    pub client_name: Vec<String>,
    /// Domain of which every cluster's public name is one label
    #[arg(long, value_name = "DOMAIN")]
    pub base_domain: String,
    /// ConfigMap in this process's namespace with listeners, clusters, endpoints and routes of the host's owner, if there is one
    #[arg(long, value_name = "NAME")]
    pub base_config_map: Option<String>,
    /// Port on which Envoy listens by its bootstrap, and so nothing of the owner's may; may be repeated
    #[arg(long, default_values_t = [8443, 8081, 9901], value_name = "PORT")]
    pub envoy_port: Vec<u16>,
    /// Address of the HTTP endpoint with /metrics, /livez and /readyz
    #[arg(long, default_value = "0.0.0.0:9090", value_name = "ADDRESS")]
    pub metrics: SocketAddr,
    /// Kubeconfig of the host cluster [default: the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// New connections a second from one source address
    #[arg(long, default_value_t = 200, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_rate: u32,
    /// New connections at once from one source address
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_burst: u32,
    /// Connections that one source address has open
    #[arg(long, default_value_t = 8192, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub source_connections: u32,
    /// New connections a second to one name
    #[arg(long, default_value_t = 500, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub name_rate: u32,
    /// New connections at once to one name
    #[arg(long, default_value_t = 5000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub name_burst: u32,
    /// Connections that one Envoy keeps open to one name
    #[arg(long, default_value_t = 4096, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub name_connections: u32,
    /// Requests of pods a second to one cluster
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cluster_request_rate: u32,
    /// Requests of pods at once to one cluster
    #[arg(long, default_value_t = 5000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cluster_request_burst: u32,
    /// Requests of pods that one Envoy has open to one cluster, watches among them
    #[arg(long, default_value_t = 4096, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub cluster_requests: u32,
    /// Address at which Envoy reaches what answers for clusters that sleep, such as the pod's own [default: nothing does]
    #[arg(long, value_name = "ADDRESS")]
    pub sleeper: Option<IpAddr>,
    /// Port of it, on every address
    #[arg(long, default_value_t = 18443, value_name = "PORT")]
    pub sleeper_port: u16,
    /// Service in this process's namespace whose endpoints are its replicas: Envoy is told the sleepers of all [default: its own alone]
    #[arg(long, value_name = "NAME", requires = "sleeper")]
    pub sleeper_service: Option<String>,
    /// New connections a second from one source address to clusters that sleep
    #[arg(long, default_value_t = 50, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub sleeper_source_rate: u32,
    /// The same at once
    #[arg(long, default_value_t = 500, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub sleeper_source_burst: u32,
    /// Clusters of one Tenant, and clusters by the Pods of one source address, that are woken a second
    #[arg(long, default_value_t = 1, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub wake_rate: u32,
    /// The same at once
    #[arg(long, default_value_t = 20, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub wake_burst: u32,
    /// Clusters whose traffic has series of its own in the metrics; that of others is counted together
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

    /// How often clusters are woken.
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

    /// What clusters are counted by.
    pub fn series(&self) -> SeriesRegistry {
        SeriesRegistry::new(usize::try_from(self.cluster_series).unwrap_or(usize::MAX))
    }

    /// What holds for the whole host.
    pub fn rules(&self) -> Rules {
        let to_socket = |address| SocketAddr::new(address, self.sleeper_port);
        Rules {
            activator: self.sleeper.map(to_socket),
            replicas: self.sleeper_service.is_some(),
            ..Rules::new(&self.base_domain)
        }
    }

    /// Limits that Envoy keeps.
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
