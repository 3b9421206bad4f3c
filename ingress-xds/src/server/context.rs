//! Dependencies of the gRPC endpoint, and the admission of its clients by their certificate.

use std::io;

use rustls::pki_types::CertificateDer;
use tokio::sync::mpsc;
use yoke_runtime::Drain;
use yoke_runtime::tls::{Admission, TlsConfigs};

use crate::activator::wake::Waker;
use crate::authz::GateLimits;
use crate::base::Input;
use crate::metrics::Metrics;
use crate::snapshot::Snapshots;
use crate::tls::is_expected_client;

/// Dependencies on the rest of the process.
#[derive(Clone, Debug)]
pub struct ServerContext {
    /// The newest snapshot.
    pub snapshots: Snapshots,
    /// Receives rejections of the base configuration by an Envoy.
    pub base: mpsc::Sender<Input>,
    /// TLS configuration of the listener.
    pub tls: TlsConfigs,
    /// DNS names; a client's certificate must have one of them.
    pub client_names: Vec<String>,
    /// Limits of the gate.
    pub limits: GateLimits,
    /// Sends wake requests to the operator.
    pub waker: Waker,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Ends the server when the process shuts down.
    pub drain: Drain,
}

impl Admission for ServerContext {
    fn check(&self, certificates: &[CertificateDer<'_>]) -> io::Result<()> {
        let certificate = certificates.first();
        if certificate.is_some_and(|certificate| is_expected_client(certificate, &self.client_names)) {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the client certificate has none of the expected DNS names",
        ))
    }

    fn count(&self, admitted: bool) {
        self.metrics.count_handshake(admitted);
    }
}
