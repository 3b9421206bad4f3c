//! kine-nats as a process, on a real nats-server, through real sockets.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod backup;
mod credentials;
mod etcd;
mod faults;
mod followers;
mod harness;
mod oracle;
mod repair;
mod semantics;
mod tls;
mod tools;
