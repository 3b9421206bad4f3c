//! The names that tests and the benchmark use in addition to [`run`](crate::run). Only with the
//! feature `testing`.

use std::path::Path;

pub use crate::app::Contexts;
pub use crate::config::{Config, NatsConfig};
pub use crate::error::ReconcileError;
pub use crate::leader_election::{Election, LEASE, Terms};
pub use crate::model::identity::Identity;
pub use crate::node_reaper::ReapIntervals;
pub use crate::tenant_client::Way;

/// The Cluster controller, and the objects that it builds.
pub mod cluster {
    pub use crate::cluster::context::Context;
    pub use crate::cluster::lifecycle::orphans::Orphans;
    pub use crate::cluster::resources;
    pub use crate::cluster::sleep::state::SleepState;
    pub use crate::cluster::validate::{ValidationContext, validate};
    pub use crate::cluster::{QueueLimits, reconcile};
}

/// The host's API.
pub mod host_api {
    pub use crate::host_api::{Host, apply, cache};
}

/// The JoinToken controller.
pub mod join_token {
    pub use crate::join_token::{Context, reconcile};
}

/// Loss of the host's nodes.
pub mod loss {
    pub use crate::host_nodes::loss::{Context, run};
}

/// NATS accounts and streams.
pub mod nats {
    pub use crate::nats::{Account, ClusterUser, Nats, NatsError, Size, streams};
}

/// The Tenant controller.
pub mod tenant {
    pub use crate::tenant::{Context, reconcile};
}

/// Configuration for a nats-server on the loopback interface, with its secrets in `secret_dir`.
pub fn nats_config(port: u16, secret_dir: &Path) -> NatsConfig {
    NatsConfig {
        urls: vec![format!("tls://127.0.0.1:{port}")],
        host_aliases: Default::default(),
        cidrs: vec!["127.0.0.1/32".into()],
        port,
        secret_dir: secret_dir.to_owned(),
    }
}
