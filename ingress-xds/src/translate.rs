//! A routing table's target → Envoy's Cluster and ClusterLoadAssignment, as bytes with a content hash. Pure; called by
//! [`crate::routing`]. The only module beside [`crate::server`] that knows Envoy's types.
//!
//! A target has one pair for each of its names. Connections whose TLS ends in the control plane pass as they are. Requests
//! that were taken out of TLS here go by the public name alone, in TLS that is verified by the cluster's own CA and exact
//! name ([`transport`]); they have a priority of their own, and so limits of their own. The certificate by which they were
//! taken out of TLS is Envoy's Secret.
//!
//! Everything here is inside what Envoy's own validation accepts, whatever the target is: one field out of its range makes
//! Envoy drop the response. No map in the messages has two entries, so that equal targets are equal bytes.

mod transport;

use std::sync::Arc;

use data_encoding::HEXLOWER;
use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, UpstreamConnectionOptions};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::data_source::Specifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, DataSource, Http1ProtocolOptions, Http2ProtocolOptions,
    HttpProtocolOptions as CommonHttpProtocolOptions, RoutingPriority, SocketAddress, TcpKeepalive,
};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::secret::Type as SecretType;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{Secret, TlsCertificate};
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    UpstreamProtocolOptions, UseDownstreamHttpConfig,
};
use envoy_types::pb::google::protobuf::{Any, Duration, UInt32Value};
use prost::{Message, Name as _};
use sha2::{Digest as _, Sha256};

use crate::model::Target;
use crate::snapshot::{CERTIFICATE_NAME, Entry, Resource, resource_name};
use crate::validate::IngressCertificate;

const CONNECT_TIMEOUT_SECONDS: i64 = 5;
/// A dead peer is noticed after 60 + 3 · 10 s.
const KEEPALIVE: (u32, u32, u32) = (60, 10, 3);
const BUFFER_BYTES: u32 = 32 * 1024;
/// What one HTTP/2 stream may have on its way to us, and so have Envoy hold for a client that does not read. The least that
/// Envoy takes; a control plane is near enough for it.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Streams on one connection, as many as kube-apiserver allows. Together they never fill its window: clients that do not
/// read would hold up all others of the cluster.
const STREAMS: u32 = 100;
const CONNECTION_WINDOW_BYTES: u32 = STREAMS * STREAM_WINDOW_BYTES;
/// A connection without a request is closed before kube-apiserver closes it, after 90 s: a request that meets that end fails.
const IDLE_SECONDS: i64 = 60;
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
/// Length of a version: 64 bits of the hash. Two contents of one name that share them are not met by chance.
const VERSION_BYTES: usize = 8;

/// Limits that hold for each tenant cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that one Envoy keeps open to one cluster under one name.
    pub connections: u32,
    /// Requests to one cluster that one Envoy has open, watches and execs among them, where TLS ended there.
    pub requests: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            requests: 4096,
        }
    }
}

/// What is served for an SNI name that leads to `target`.
pub fn translate(sni: &str, target: &Target, limits: Limits) -> Entry {
    let cluster = match target.route.public_name == sni {
        true => translate_public(target, limits),
        false => translate_cluster(sni, limits.connections, 0),
    };
    let endpoints = translate_endpoints(cluster.name.clone(), target).encode_to_vec();
    let cluster = cluster.encode_to_vec();
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
        traffic: Arc::default(),
    }
}

/// What is served to show to clients whose TLS ends here.
pub fn translate_certificate(certificate: &IngressCertificate) -> Resource {
    let text = |text: &str| {
        Some(DataSource {
            specifier: Some(Specifier::InlineString(text.to_owned())),
            ..Default::default()
        })
    };
    let secret = Secret {
        name: CERTIFICATE_NAME.to_owned(),
        r#type: Some(SecretType::TlsCertificate(TlsCertificate {
            certificate_chain: text(&certificate.chain),
            private_key: text(&certificate.key),
            ..Default::default()
        })),
    };
    let body = secret.encode_to_vec();
    Resource {
        version: to_version(&[&body]),
        body: body.into(),
    }
}

/// By the public name come connections and requests.
fn translate_public(target: &Target, limits: Limits) -> Cluster {
    let options = Any {
        type_url: HttpProtocolOptions::type_url(),
        value: translate_http_options().encode_to_vec(),
    };
    let cluster = Cluster {
        typed_extension_protocol_options: [(HTTP_OPTIONS.to_owned(), options)].into(),
        ..translate_cluster(&target.route.public_name, limits.connections, limits.requests)
    };
    transport::secure(cluster, &target.route.upstream)
}

fn translate_cluster(sni: &str, connections: u32, requests: u32) -> Cluster {
    let (time, interval, probes) = KEEPALIVE;
    Cluster {
        name: resource_name(sni),
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
            thresholds: vec![limit_connections(connections), limit_requests(requests)],
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Connections have the default priority, by which no request passes.
fn limit_connections(connections: u32) -> Thresholds {
    let limit = |value| Some(UInt32Value { value });
    Thresholds {
        max_connections: limit(connections),
        max_pending_requests: limit(connections),
        max_requests: limit(0),
        ..Default::default()
    }
}

/// Requests have a high priority, by Envoy's route.
fn limit_requests(requests: u32) -> Thresholds {
    let limit = |value| Some(UInt32Value { value });
    Thresholds {
        priority: RoutingPriority::High.into(),
        max_requests: limit(requests),
        max_pending_requests: limit(requests),
        // A retry that finds no room would count as one request too many, though it is the cluster that does not answer.
        max_retries: limit(requests),
        // Without a limit of their own: a request that waits for a connection would wait for ever.
        max_connections: limit(u32::MAX),
        ..Default::default()
    }
}

/// HTTP/1.1 stays HTTP/1.1, because upgrades do not pass to HTTP/2, and HTTP/2 stays HTTP/2.
fn translate_http_options() -> HttpProtocolOptions {
    let count = |value| Some(UInt32Value { value });
    HttpProtocolOptions {
        common_http_protocol_options: Some(CommonHttpProtocolOptions {
            idle_timeout: Some(Duration {
                seconds: IDLE_SECONDS,
                nanos: 0,
            }),
            ..Default::default()
        }),
        upstream_protocol_options: Some(UpstreamProtocolOptions::UseDownstreamProtocolConfig(
            UseDownstreamHttpConfig {
                http_protocol_options: Some(Http1ProtocolOptions::default()),
                http2_protocol_options: Some(Http2ProtocolOptions {
                    max_concurrent_streams: count(STREAMS),
                    initial_stream_window_size: count(STREAM_WINDOW_BYTES),
                    initial_connection_window_size: count(CONNECTION_WINDOW_BYTES),
                    ..Default::default()
                }),
                ..Default::default()
            },
        )),
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

/// The version of what has these contents.
pub(crate) fn to_version(contents: &[&[u8]]) -> Arc<str> {
    let mut hash = Sha256::new();
    contents.iter().for_each(|content| hash.update(content));
    HEXLOWER.encode(&hash.finalize()[..VERSION_BYTES]).into()
}

#[cfg(test)]
mod tests;
