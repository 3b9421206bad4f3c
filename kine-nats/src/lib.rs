//! kine-nats: the etcd v3 API for kube-apiserver, on a log in NATS JetStream.
//!
//! etcd's gRPC requests come in, on unix and TCP sockets. Records go out to one stream, one message
//! for each batch of transactions, and snapshots go to another. One process writes at a time; its
//! state is in memory.
//!
//! ```text
//! grpc ── validate ──► store::submit ──► writer ──► txn (decides) ──► codec ──► log ──► JetStream
//!   ▲                                       │ stored
//!   ├── range ◄── mvcc ◄────────────────────┤
//!   └── watch ◄── watch_hub (cursors) ◄─────┘
//!
//! replica: snapshot + log ──► log::fencing (which records are valid) ──► state
//! ```

mod backup;
mod clock;
pub mod codec;
mod command;
mod error;
#[cfg(test)]
mod fuzz;
mod grace;
mod grpc;
mod http;
mod lease;
mod limits;
pub mod log;
mod metrics;
mod mvcc;
mod nats;
mod peer;
pub mod process;
pub mod proto;
mod quota;
mod range;
mod replica;
mod role;
pub mod snapshot;
mod state;
mod store;
mod txn;
mod validate;
mod watch_hub;
pub mod writer;
