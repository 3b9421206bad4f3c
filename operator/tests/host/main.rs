//! The operator against a real host API and a real nats-server.

// The lint spares tests, and not what they are helped by.
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
#[path = "../support/mod.rs"]
// The tests of NATS alone use more of it.
#[allow(dead_code)]
mod support;
mod takeover;
mod tenant_api;
mod upgrade;
mod users;
mod workers;
