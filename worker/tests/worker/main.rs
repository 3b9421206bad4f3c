//! Tests of the program itself: its messages about machines and tokens, and a real kubelet that
//! joins a real API server and leaves it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test's helper")]

mod bundle;
mod cluster;
mod command;
mod container;
mod egress;
mod gpus;
mod limits;
mod machine;
mod network;
mod node;
mod pair;
mod plugin;
mod program;
mod signer;
mod systemd;
#[cfg(feature = "slow")]
mod top;
mod upgrade;
mod uplink;
