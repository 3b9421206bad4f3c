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
//!   └── watch ◄── hub (notifies watches) ◄──┘          boot: snapshot + log ──► session (who may write) ──► state
//! ```

mod activity;
pub mod args;
mod audit;
mod backup;
mod boot;
mod clients;
mod clock;
pub mod codec;
mod follow;
#[cfg(test)]
mod fuzz;
mod grace;
mod grpc;
mod http;
mod hub;
mod keep;
mod lease;
mod listen;
pub mod log;
mod metrics;
mod mvcc;
mod nats;
mod peer;
pub mod proto;
mod quota;
mod range;
mod refusal;
mod repair;
mod role;
mod run;
pub mod session;
pub mod snapshot;
mod state;
mod store;
mod tls;
mod txn;
mod validate;
pub mod writer;

pub use repair::repair;
pub use run::run;
