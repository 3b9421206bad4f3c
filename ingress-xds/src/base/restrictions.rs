//! Restrictions of the base configuration: reserved names and ports, routes to the tenants' control
//! planes that bypass the gate, and settings that delay the start of an Envoy. Pure.
//!
//! This protects from accidents only. A user who may write the ConfigMap owns the host, and could
//! route requests anywhere by other means.

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{Address, SocketAddress};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::clusters::dns::v3::DnsCluster;
use prost::{Message as _, Name as _};
use serde_json::Value;
use yoke_api::ClusterId;
use yoke_api::names::HOSTED_NAMESPACE_PREFIX;

use crate::snapshot::resource::{ResourceKind, is_tenant_cluster};

/// Names in Envoy's bootstrap.
const CLUSTERS: [&str; 5] = ["admin", "gate", "logs", "none", "xds"];
const LISTENERS: [&str; 2] = ["health", "ingress"];
const ROUTES: [&str; 2] = ["health", "terminated"];
/// Settings that let a request select its cluster in Envoy's TCP proxy. The first is a key that a
/// filter can set; on the ingress's own listener it comes from the SNI name that the gate has
/// allowed. The second is a filter that accepts any SNI name.
const CLUSTER_SELECTORS: [&str; 2] = [
    "envoy.tcp_proxy.cluster",
    "envoy.extensions.filters.network.sni_cluster.v3.SniCluster",
];

/// Why a resource is not allowed.
#[derive(Debug, thiserror::Error)]
pub enum RestrictionError {
    /// The name is reserved.
    #[error("has a name that is reserved for the ingress")]
    OwnName,
    /// The resource uses a cluster of the ingress.
    #[error("leads to {0}, a cluster that is reserved for the ingress")]
    OwnCluster(String),
    /// A client could select any cluster by its request.
    #[error("lets a client choose the cluster by {0}")]
    ClientSelected(String),
    /// The cluster has no fixed addresses, or a type with unknown behavior. A client could select
    /// any address.
    #[error("has an unsupported type; allowed are STATIC, STRICT_DNS, LOGICAL_DNS, EDS and DnsCluster")]
    Type,
    /// The endpoints of the cluster have another name. Endpoints are sent by the name of their
    /// cluster.
    #[error("has endpoints of another name, {0}; remove service_name")]
    ServiceName(String),
    /// A new Envoy would wait for this resource without a limit before it accepts connections.
    #[error("sets initial_fetch_timeout, which can block the start of a new Envoy")]
    FetchTimeout,
    /// The message is nested too deep.
    #[error("decoding the message")]
    Decode(#[from] prost::DecodeError),
    /// The resource names a control plane.
    #[error("names {0}, in the namespace of a tenant's control plane")]
    ControlPlane(String),
    /// The resource listens on an address that cannot be compared with the ingress's own.
    #[error("listens on something other than an IP address with a port number")]
    Address,
    /// The resource listens on a port of the ingress.
    #[error("listens on port {0}, which is reserved for the ingress")]
    Port(u32),
    /// The resource leads to a listener of this Envoy, for example the admin interface.
    #[error("leads to port {0} of this Envoy, which is reserved for the ingress")]
    OwnPort(u64),
}

/// Checks one resource, as JSON and as protobuf, against the restrictions.
pub(super) fn check_restrictions(
    kind: ResourceKind,
    name: &str,
    json: &Value,
    body: &[u8],
    ports: &[u16],
) -> Result<(), RestrictionError> {
    let own: &[&str] = match kind {
        ResourceKind::Cluster | ResourceKind::Endpoints => &CLUSTERS,
        ResourceKind::Listener => &LISTENERS,
        ResourceKind::Routes => &ROUTES,
        ResourceKind::Secret => &[],
    };
    if own.contains(&name) || !kind.may_be_base(name) {
        return Err(RestrictionError::OwnName);
    }
    match kind {
        ResourceKind::Cluster => check_cluster(Cluster::decode(body)?)?,
        ResourceKind::Listener => {
            let listener = Listener::decode(body)?;
            let more = listener.additional_addresses.into_iter().map(|more| more.address);
            for address in std::iter::once(listener.address).chain(more) {
                check_listener_address(address, ports)?;
            }
        }
        ResourceKind::Endpoints | ResourceKind::Routes | ResourceKind::Secret => {}
    }
    Visitor { ports }.visit(json, "", false)
}

fn check_cluster(cluster: Cluster) -> Result<(), RestrictionError> {
    let is_fixed = match cluster.cluster_discovery_type {
        None => true,
        Some(ClusterDiscoveryType::Type(found)) => {
            DiscoveryType::try_from(found).is_ok_and(|found| found != DiscoveryType::OriginalDst)
        }
        Some(ClusterDiscoveryType::ClusterType(found)) => found
            .typed_config
            .is_some_and(|config| to_type(&config.type_url) == DnsCluster::full_name()),
    };
    if !is_fixed {
        return Err(RestrictionError::Type);
    }
    let service = cluster.eds_cluster_config.unwrap_or_default().service_name;
    match service.is_empty() || service == cluster.name {
        true => Ok(()),
        false => Err(RestrictionError::ServiceName(service)),
    }
}

fn check_listener_address(address: Option<Address>, ports: &[u16]) -> Result<(), RestrictionError> {
    let Some(AddressKind::SocketAddress(SocketAddress {
        port_specifier: Some(PortSpecifier::PortValue(port)),
        ..
    })) = address.and_then(|address| address.address)
    else {
        return Err(RestrictionError::Address);
    };
    match ports.iter().any(|own| u32::from(*own) == port) {
        true => Err(RestrictionError::Port(port)),
        false => Ok(()),
    }
}

/// Visits every value in a resource, extensions included.
struct Visitor<'a> {
    ports: &'a [u16],
}

impl Visitor<'_> {
    /// `weighted`: inside a list of weighted clusters.
    fn visit(&self, value: &Value, key: &str, weighted: bool) -> Result<(), RestrictionError> {
        match value {
            Value::Object(fields) => {
                if key == "socketaddress" {
                    self.check_address(value)?;
                }
                for (field, value) in fields {
                    let plain = to_plain(field);
                    match plain.as_str() {
                        "clusterheader" => return Err(RestrictionError::ClientSelected(field.clone())),
                        "initialfetchtimeout" => return Err(RestrictionError::FetchTimeout),
                        _ => {}
                    }
                    let weighted = weighted || plain == "weightedclusters";
                    self.visit(value, &plain, weighted)?;
                }
                Ok(())
            }
            Value::Array(members) => members.iter().try_for_each(|member| self.visit(member, key, weighted)),
            Value::String(text) => check_text(text, key, weighted),
            _ => Ok(()),
        }
    }

    fn check_address(&self, value: &Value) -> Result<(), RestrictionError> {
        let of = |name: &str| {
            let mut fields = value.as_object().into_iter().flatten();
            fields
                .find(|(field, _)| to_plain(field) == name)
                .map(|(_, value)| value)
        };
        let host = of("address").and_then(Value::as_str).unwrap_or_default();
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let ip: Option<std::net::IpAddr> = host.parse().ok();
        let is_self =
            host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback() || ip.is_unspecified());
        let port = of("portvalue").and_then(|port| match port {
            Value::String(text) => text.parse().ok(),
            number => number.as_u64(),
        });
        match port {
            Some(port) if is_self && self.ports.iter().any(|own| u64::from(*own) == port) => {
                Err(RestrictionError::OwnPort(port))
            }
            _ => Ok(()),
        }
    }
}

fn check_text(text: &str, key: &str, weighted: bool) -> Result<(), RestrictionError> {
    let leads = key.contains("cluster") || (weighted && key == "name");
    if is_tenant_cluster(text) || (leads && CLUSTERS.contains(&text)) {
        return Err(RestrictionError::OwnCluster(text.to_owned()));
    }
    if CLUSTER_SELECTORS.contains(&to_type(text)) {
        return Err(RestrictionError::ClientSelected(text.to_owned()));
    }
    let host = text
        .rsplit_once(':')
        .map_or(text, |(host, _)| host)
        .to_ascii_lowercase();
    let is_control_plane = |label: &str| {
        let id = label.strip_prefix(HOSTED_NAMESPACE_PREFIX);
        id.is_some_and(|id| id.parse::<ClusterId>().is_ok())
    };
    match host.split('.').any(is_control_plane) {
        true => Err(RestrictionError::ControlPlane(text.to_owned())),
        false => Ok(()),
    }
}

/// The type name in a type URL.
fn to_type(url: &str) -> &str {
    url.rsplit('/').next().unwrap_or_default()
}

/// Normalizes a field name; protobuf's JSON mapping has two forms: `cluster_header` and
/// `clusterHeader`.
fn to_plain(field: &str) -> String {
    field.replace('_', "").to_ascii_lowercase()
}
