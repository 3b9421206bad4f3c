//! Tells Envoy where each tenant cluster is, and decides which connections may pass: all clusters share one address, and
//! TLS ends in the tenant's own API server.
//!
//! ```text
//!  host API ─▶ watch ─▶ routing: model (validate) ─▶ translate ─▶ snapshot ─┬▶ ads ──▶ server ─▶ Envoy: CDS, EDS
//!                                                                           └▶ gate ─▶ server ◀▶ Envoy: ext_authz
//! ```
//!
//! Pure: [`validate`], [`model`], [`translate`], [`snapshot`], [`ads`], [`gate`]. The rest are adapters. The answer is a
//! function of host objects alone, so any number of replicas gives the same one, and none keeps state.

pub mod ads;
pub mod arguments;
pub mod gate;
pub mod metrics;
pub mod model;
pub mod process;
pub mod routing;
pub mod server;
pub mod snapshot;
pub mod tls;
pub mod translate;
pub mod validate;
pub mod watch;

#[cfg(test)]
mod fixtures;
