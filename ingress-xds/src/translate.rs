//! Translates a target of the routing table to Envoy's Cluster and ClusterLoadAssignment, as bytes
//! with a content hash. Pure; called by [`crate::routing`]. Only this module and [`crate::server`]
//! use Envoy's types.
//!
//! A target has one Cluster and one ClusterLoadAssignment for each of its names.
//! - Connections whose TLS ends in the control plane are passed through.
//! - Requests whose TLS ended at Envoy use the public name alone. Envoy opens TLS to the control
//!   plane, verified by the cluster's own CA and exact name ([`transport`]). They have their own
//!   priority, and so their own limits.
//! - The certificate that Envoy presents to the clients of these requests is an Envoy Secret.
//!
//! Every message passes Envoy's own validation, whatever the target is: one field out of its range
//! makes Envoy drop the response. No map in the messages has two entries, so that equal targets
//! give equal bytes.

mod transport;

use std::sync::Arc;

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

use crate::model::Target;
use crate::snapshot::Entry;
use crate::snapshot::resource::{CERTIFICATE_NAME, Resource, resource_name, to_version};
use crate::validate::IngressCertificate;

const CONNECT_TIMEOUT_SECONDS: i64 = 5;
/// TCP keepalive (time, interval, probes): a dead peer is detected after 60 + 3 · 10 s.
const KEEPALIVE: (u32, u32, u32) = (60, 10, 3);
const BUFFER_BYTES: u32 = 32 * 1024;
/// Flow control window of one HTTP/2 stream in bytes, and so what Envoy buffers for a client that
/// does not read. This is Envoy's minimum; control planes are near enough for it.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Concurrent streams of one connection: as many as kube-apiserver allows. Together they never fill
/// the connection's window: clients that do not read would otherwise block all others of the
/// cluster.
const STREAMS: u32 = 100;
const CONNECTION_WINDOW_BYTES: u32 = STREAMS * STREAM_WINDOW_BYTES;
/// Idle timeout of a connection, below the 90 s after which kube-apiserver closes it: a request
/// that meets that close fails.
const IDLE_SECONDS: i64 = 60;
const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// Limits of each tenant cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvoyLimits {
    /// Connections that one Envoy may have open to one cluster by one name.
    pub connections: u32,
    /// Requests that one Envoy may have open to one cluster, watches and execs included, if their
    /// TLS ends at Envoy.
    pub requests: u32,
}

impl Default for EnvoyLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            requests: 4096,
        }
    }
}

/// The snapshot entry of an SNI name that leads to `target`.
pub fn translate(sni: &str, target: &Target, limits: EnvoyLimits) -> Entry {
    let cluster = match target.route.public_name == sni {
        true => translate_public(target, limits),
        false => translate_cluster(sni, limits.connections, 0),
    };
    let endpoints = translate_endpoints(cluster.name.clone(), target).encode_to_vec();
    let cluster = cluster.encode_to_vec();
    Entry {
        route: Arc::clone(&target.route),
        reachable: !target.addresses.is_empty(),
        // Envoy needs the endpoints again when the Cluster changes, so their version includes the
        // Cluster's content: see `ads`.
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

/// The Envoy Secret with the certificate for clients whose TLS ends at Envoy.
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

/// The Cluster of a public name, which carries both connections and requests.
fn translate_public(target: &Target, limits: EnvoyLimits) -> Cluster {
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
        // Without a service name the endpoints have the name of the Cluster.
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

/// Connections use the default priority, which no request uses.
fn limit_connections(connections: u32) -> Thresholds {
    let limit = |value| Some(UInt32Value { value });
    Thresholds {
        max_connections: limit(connections),
        max_pending_requests: limit(connections),
        max_requests: limit(0),
        ..Default::default()
    }
}

/// Requests use the high priority, which Envoy's route sets.
fn limit_requests(requests: u32) -> Thresholds {
    let limit = |value| Some(UInt32Value { value });
    Thresholds {
        priority: RoutingPriority::High.into(),
        max_requests: limit(requests),
        max_pending_requests: limit(requests),
        // A retry over the limit would be reported as one request too many, although the cause is a
        // cluster that does not answer.
        max_retries: limit(requests),
        // Connections have no limit of their own: a request that waits for a connection would wait
        // forever.
        max_connections: limit(u32::MAX),
        ..Default::default()
    }
}

/// HTTP/1.1 stays HTTP/1.1, because upgrades do not work over HTTP/2; HTTP/2 stays HTTP/2.
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
        // A locality without addresses would still count as a locality. An empty list means "no
        // control plane".
        endpoints: Some(locality)
            .filter(|locality| !locality.lb_endpoints.is_empty())
            .into_iter()
            .collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
