//! Reads ended connections, so that the gate knows how many a source has.
//!
//! Envoy sends them on the same gRPC connections as its `ext_authz` calls. With several replicas of
//! this process they so reach the replica that counted the start of the connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use envoy_types::pb::envoy::data::accesslog::v3::TcpAccessLogEntry;

use crate::authz::Gate;
use crate::limits::open_connections::OpenConnections;
use crate::metrics::Metrics;
use crate::server::attributes::to_socket;

/// Reads the connection log of one Envoy worker. When it is dropped, for whatever reason, entries
/// may have been missed.
pub(super) struct Reader {
    gate: Arc<Mutex<Gate>>,
    metrics: Metrics,
    dismissed: bool,
}

impl Reader {
    pub(super) fn new(gate: &Arc<Mutex<Gate>>, metrics: &Metrics) -> Self {
        Self {
            gate: Arc::clone(gate),
            metrics: metrics.clone(),
            dismissed: false,
        }
    }

    /// Drops the reader without consequences: no entry was missed.
    pub(super) fn dismiss(mut self) {
        self.dismissed = true;
    }

    pub(super) fn read(&self, entries: &[TcpAccessLogEntry]) {
        self.update(|open| entries.iter().filter_map(to_peer).for_each(|peer| open.remove(peer)));
    }

    fn update(&self, apply: impl FnOnce(&mut OpenConnections)) {
        let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        apply(gate.open_connections());
        self.metrics.set_open_connections(gate.open_connections().total());
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.dismissed {
            self.update(OpenConnections::clear);
        }
    }
}

fn to_peer(entry: &TcpAccessLogEntry) -> Option<SocketAddr> {
    to_socket(entry.common_properties.as_ref()?.downstream_remote_address.as_ref()?)
}
