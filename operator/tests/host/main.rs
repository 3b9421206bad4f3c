//! The operator against a real host API and a real nats-server.

// Clippy exempts test functions, but not their helpers.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod activity;
mod addons;
mod addresses;
mod answers;
mod deletion;
mod doors;
mod fields;
mod harness;
mod host_names;
mod issuer;
mod join_tokens;
mod konnectivity;
mod leader;
mod leaving;
mod lost;
mod machine_loss;
mod odd;
mod paused;
mod reaped;
mod refused;
mod restored;
mod room;
mod sleep;
mod sources;
mod starts;
mod takeover;
mod tenant_api;
mod upgrade;
mod users;
mod workers;
