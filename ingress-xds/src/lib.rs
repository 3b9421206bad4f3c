//! Tells Envoy where each tenant cluster is, and decides which connections and requests may pass: all clusters share one
//! address. TLS of a connection with a cluster's name ends in the tenant's own API server. TLS of pods, which have no name for
//! their own cluster, ends at Envoy, and each request goes where its token says.
//!
//! ```text
//!  host API ─▶ watch ─▶ routing: model (validate) ─▶ translate ─▶ snapshot ─┬▶ ads ─────────▶ server ─▶ Envoy: CDS, EDS, SDS
//!                                                                           └▶ gate (token) ▶ server ◀▶ Envoy: ext_authz
//!                                                           traffic ▶ /metrics   ▲ server ◀─ Envoy: connections that ended
//!                                                              ▲──────────────────────────── Envoy: what clients did
//! ```
//!
//! What the host's owner adds to Envoy's configuration (a ConfigMap) comes by [`base`] into the same snapshot.
//!
//! Pure: [`validate`], [`base`], [`model`], [`translate`], [`snapshot`], [`ads`], [`gate`], [`token`], [`answer`], [`traffic`]. The rest are adapters. The answer is a
//! function of host objects alone, so any number of replicas gives the same one, and none keeps state.

pub mod ads;
pub mod announce;
pub mod answer;
pub mod arguments;
pub mod base;
pub mod gate;
pub mod metrics;
pub mod model;
pub mod process;
pub mod routing;
pub mod seats;
pub mod server;
pub mod sleeper;
pub mod snapshot;
pub mod tls;
pub mod token;
pub mod traffic;
pub mod translate;
pub mod validate;
pub mod wake;
pub mod watch;

#[cfg(test)]
mod fixtures;
