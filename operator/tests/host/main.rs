//! The operator against a real host API and a real nats-server.

// Clippy exempts test functions, but not their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod activity;
mod addons;
mod addresses;
mod allowed_sources;
mod deletion;
mod egress;
mod fields;
mod harness;
mod host_names;
mod issuer;
mod join_tokens;
mod konnectivity;
mod leader;
mod lost_secrets;
mod node_admission;
mod node_loss;
mod node_reaper;
mod paused;
mod readiness;
mod refused;
mod restored;
mod sleep;
mod starts;
mod store_quota;
mod takeover;
mod tenant_api;
mod undecodable;
mod upgrade;
mod users;
mod workers;
