//! A routing table's target → Envoy's Cluster and ClusterLoadAssignment, as bytes with a content hash. Pure; called by
//! [`crate::routing`]. The only module beside [`crate::server`] that knows Envoy's types.
//!
//! Everything here is inside what Envoy's own validation accepts, whatever the target is: one field out of its range makes
//! Envoy drop the response. The messages have no map, so that equal targets are equal bytes.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, UpstreamConnectionOptions};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, SocketAddress, TcpKeepalive,
};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use envoy_types::pb::google::protobuf::{Duration, UInt32Value};
use prost::Message;
use sha2::{Digest as _, Sha256};

use crate::model::Target;
use crate::snapshot::{Entry, Resource, resource_name};

const CONNECT_TIMEOUT_SECONDS: i64 = 5;
/// A dead peer is noticed after 60 + 3 · 10 s.
const KEEPALIVE: (u32, u32, u32) = (60, 10, 3);
const BUFFER_BYTES: u32 = 32 * 1024;
/// Length of a version: 64 bits of the hash. Two contents of one name that share them are not met by chance.
const VERSION_BYTES: usize = 8;

/// Limits that hold for each tenant cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that one Envoy keeps open to one cluster under one name.
    pub connections: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 4096 }
    }
}

/// What is served for an SNI name that leads to `target`.
pub fn translate_target(sni: &str, target: &Target, limits: Limits) -> Entry {
    let name = resource_name(sni);
    let cluster = translate_cluster(name.clone(), limits).encode_to_vec();
    let endpoints = translate_endpoints(name, target).encode_to_vec();
    Entry {
        route: Arc::clone(&target.route),
        reachable: !target.addresses.is_empty(),
        // Endpoints are owed again when the Cluster changes, so its content is in their version: see `ads`.
        endpoints: Resource {
            version: to_version(&[&cluster, &endpoints]),
            body: endpoints.into(),
        },
        cluster: Resource {
            version: to_version(&[&cluster]),
            body: cluster.into(),
        },
    }
}

fn translate_cluster(name: String, limits: Limits) -> Cluster {
    let (time, interval, probes) = KEEPALIVE;
    let connections = Some(UInt32Value {
        value: limits.connections,
    });
    Cluster {
        name,
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        // Without a service name the endpoints have the cluster's.
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ConfigSource {
                resource_api_version: ApiVersion::V3.into(),
                config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
                ..Default::default()
            }),
            ..Default::default()
        }),
        connect_timeout: Some(Duration {
            seconds: CONNECT_TIMEOUT_SECONDS,
            nanos: 0,
        }),
        per_connection_buffer_limit_bytes: Some(UInt32Value { value: BUFFER_BYTES }),
        upstream_connection_options: Some(UpstreamConnectionOptions {
            tcp_keepalive: Some(TcpKeepalive {
                keepalive_probes: Some(UInt32Value { value: probes }),
                keepalive_time: Some(UInt32Value { value: time }),
                keepalive_interval: Some(UInt32Value { value: interval }),
            }),
            ..Default::default()
        }),
        circuit_breakers: Some(CircuitBreakers {
            thresholds: vec![Thresholds {
                max_connections: connections,
                max_pending_requests: connections,
                ..Default::default()
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn translate_endpoints(name: String, target: &Target) -> ClusterLoadAssignment {
    let address = |address: &std::net::IpAddr| Address {
        address: Some(AddressKind::SocketAddress(SocketAddress {
            address: address.to_string(),
            port_specifier: Some(PortSpecifier::PortValue(target.port.into())),
            ..Default::default()
        })),
    };
    let endpoint = |ip| LbEndpoint {
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint {
            address: Some(address(ip)),
            ..Default::default()
        })),
        ..Default::default()
    };
    let lb_endpoints: Vec<_> = target.addresses.iter().map(endpoint).collect();
    let locality = LocalityLbEndpoints {
        lb_endpoints,
        ..Default::default()
    };
    ClusterLoadAssignment {
        cluster_name: name,
        // A locality without an address would still be a locality; none means "no control plane".
        endpoints: Some(locality)
            .filter(|locality| !locality.lb_endpoints.is_empty())
            .into_iter()
            .collect(),
        ..Default::default()
    }
}

fn to_version(contents: &[&[u8]]) -> Arc<str> {
    let mut hash = Sha256::new();
    contents.iter().for_each(|content| hash.update(content));
    HEXLOWER.encode(&hash.finalize()[..VERSION_BYTES]).into()
}

#[cfg(test)]
mod tests;
