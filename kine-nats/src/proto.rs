//! The etcd v3 API as compiled from `proto/`: messages, servers and clients.

// Generated: the .proto files say what there is to say.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used)]

/// Requests, answers and services.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// Keys with their values, and events.
pub mod mvccpb {
    tonic::include_proto!("mvccpb");
}
