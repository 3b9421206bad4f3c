//! The control plane of the ingress: serves Envoy the address of each tenant cluster, and decides
//! which connections and requests are allowed. All clusters share one address.
//!
//! - A connection by a cluster's name is passed through: its TLS ends in the tenant's own API
//!   server.
//! - TLS of pods, which have no name for their own cluster, ends at Envoy. Each request goes to the
//!   cluster that issued its token.
//! - A sleeping cluster is answered by the activator, which wakes it.
//!
//! ```text
//!  host API ─▶ watch ─▶ routing: model (validate) ─▶ translate ─▶ snapshot ─┬▶ ads ─────────▶ server ─▶ Envoy: CDS, EDS, SDS
//!                                                                           └▶ authz (token) ▶ server ◀▶ Envoy: ext_authz
//!                                                           traffic ▶ /metrics   ▲ server ◀─ Envoy: connections that ended
//!                                                              ▲──────────────────────────── Envoy: traffic of clients
//! ```
//!
//! The base configuration, a ConfigMap of the host's owner with more Envoy resources, enters the
//! same snapshot through [`base`].
//!
//! Pure: [`validate`], [`base`], [`model`], [`translate`], [`snapshot`], [`ads`], [`authz`],
//! [`traffic`]. The rest are adapters. Routes are a function of host objects alone, so all replicas
//! have the same ones. Each replica counts the rates and connections of its own Envoys.

pub mod activator;
pub mod ads;
pub mod announce;
pub mod arguments;
pub mod authz;
pub mod base;
pub mod limits;
pub mod metrics;
pub mod model;
pub mod process;
pub mod routing;
pub mod server;
pub mod snapshot;
#[cfg(any(test, feature = "test-util"))]
pub mod test_util;
pub mod tls;
pub mod traffic;
pub mod translate;
pub mod validate;
pub mod watch;
