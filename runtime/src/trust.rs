//! Clients of TLS that trust CAs of their own, in place of the system's.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// A text holds no CAs that can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It is no PEM.
    #[error(transparent)]
    Parse(#[from] pem::Error),
    /// One of its certificates cannot be a CA's.
    #[error(transparent)]
    Ca(#[from] rustls::Error),
    /// Nobody would be trusted.
    #[error("it holds no certificate")]
    Empty,
}

/// A client that trusts the CAs whose certificates a text has, as PEM, and shows no certificate.
pub fn trust(text: &[u8]) -> Result<ClientConfig, TrustError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text) {
        roots.add(certificate?)?;
    }
    if roots.is_empty() {
        return Err(TrustError::Empty);
    }
    Ok(ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_trusts_nobody_is_refused() {
        crate::install_crypto();
        for (text, expected) in [
            ("", "it holds no certificate"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
                "BadEncoding",
            ),
        ] {
            let error = trust(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let cut = "-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert!(matches!(trust(cut.as_bytes()), Err(TrustError::Parse(_))));
    }
}
