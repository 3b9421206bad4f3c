//! kine-nats as a process, on a real nats-server, through real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

mod activity;
mod backup;
mod beside;
mod cluster;
mod credentials;
mod damage;
mod etcd;
mod faults;
mod files;
mod followers;
#[path = "../../src/fuzz.rs"]
mod fuzz;
mod harness;
mod hostile;
mod idle;
#[cfg(feature = "slow")]
mod kubernetes;
mod loss;
mod many;
mod metrics;
mod oracle;
mod payload;
mod probes;
mod range_stream;
mod repair;
mod replicated;
mod semantics;
mod space;
mod strict;
mod tls;
mod tools;
mod unreadable;
