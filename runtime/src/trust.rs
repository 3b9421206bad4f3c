//! TLS client configuration that trusts given CAs instead of the system's.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::{ClientConfig, RootCertStore};

/// The text contains no CA that can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The text is not PEM.
    #[error(transparent)]
    Parse(#[from] pem::Error),
    /// A certificate cannot be a CA.
    #[error(transparent)]
    Ca(#[from] rustls::Error),
    /// The text contains no certificate, so the client would trust no server.
    #[error("the text contains no certificate")]
    Empty,
}

/// Builds a client configuration that trusts the CAs in a PEM text. The client presents no
/// certificate.
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
    fn text_without_a_usable_ca_is_refused() {
        crate::install_crypto();
        for (text, expected) in [
            ("", "the text contains no certificate"),
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
