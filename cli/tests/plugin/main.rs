//! The plugin as users run it, against a host's API in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's helper")]

mod completion;
mod connection;
mod create;
mod delete;
mod fixtures;
mod get;
mod host;
mod join;
mod kubeconfig;
mod run;
mod running;
mod status;
mod tls;
mod version;
mod wait;
