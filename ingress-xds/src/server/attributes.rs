//! Envoy's attributes of connections and requests: addresses, and the keys of the metadata that the
//! gate adds.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::Address;
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;

/// Metadata key of the verdict; Envoy's access log contains the dynamic metadata of connections and
/// requests.
pub(super) const VERDICT: &str = "verdict";
pub(super) const TENANT: &str = "tenant";
pub(super) const CLUSTER: &str = "cluster";
/// Metadata keys of the cluster's public name and ID, with which the reader of access logs finds
/// the cluster.
pub(super) const NAME: &str = "name";
pub(super) const ID: &str = "id";

/// The socket address of an Envoy address, if it has an IP.
pub(super) fn to_socket(address: &Address) -> Option<SocketAddr> {
    let AddressKind::SocketAddress(socket) = address.address.as_ref()? else {
        return None;
    };
    let port = match socket.port_specifier {
        Some(PortSpecifier::PortValue(port)) => u16::try_from(port).ok()?,
        _ => 0,
    };
    Some(SocketAddr::new(socket.address.parse().ok()?, port))
}
