//! Reloads the certificates of this process's gRPC listener, and checks its clients.
//!
//! A client needs a certificate of the client CA *and* an expected DNS name: the CA may have other
//! clients. Changed files that cannot be used leave the previous certificates in use; a log line
//! and a metric report it.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use yoke_pki::ParsedCertificate;
use yoke_runtime::Drain;
use yoke_runtime::tls::{Reload, TlsError, TlsFiles};

use crate::metrics::Metrics;

const POLL: Duration = Duration::from_secs(5);
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// `tls.crt` and `tls.key` in a directory, and the file with the CA certificates that verify
/// clients.
pub fn files_in(directory: &Path, client_ca: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join(CERTIFICATE),
        key: directory.join(KEY),
        client_ca: Some(client_ca.to_owned()),
    }
}

/// Rereads the files until the drain starts.
pub async fn reload_certificates(mut reload: Reload, metrics: Metrics, drain: Drain) -> Result<(), TlsError> {
    while drain.until_started(tokio::time::sleep(POLL)).await.is_some() {
        match reload.look().await {
            Ok(false) => {}
            Ok(true) => {
                metrics.count_reload(true);
                tracing::info!("certificates reloaded");
            }
            Err(error) => {
                metrics.count_reload(false);
                tracing::warn!(
                    error = &error as &dyn Error,
                    "reloading certificates failed; the previous ones stay in use"
                );
            }
        }
    }
    Ok(())
}

/// Whether a client's certificate, already verified against the CA, carries one of the expected
/// names.
pub fn is_expected_client(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let parsed = ParsedCertificate::from_der(certificate.to_vec());
    parsed.is_ok_and(|parsed| parsed.dns_names.iter().any(|name| names.contains(name)))
}
