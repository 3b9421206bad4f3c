//! The store of a Cluster: its streams in NATS, and the HTTP API of the store's process.

pub(crate) mod http;
pub(crate) mod streams;
