//! The etcd v3 API as compiled from `proto/`: messages, servers and clients.

// Generated code: the .proto files are its documentation.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used)]

pub(crate) mod wire;

/// Requests, responses and services.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// Keys with their values, and events.
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}
