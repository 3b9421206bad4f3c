//! Trust bundles: CA certificates as PEM, without duplicates and in a fixed order, so that the same
//! set gives the same bytes.
//!
//! | bundle | members | used by |
//! |---|---|---|
//! | [`Trust::Client`] | I, of every generation | `--client-ca-file`, a kubelet's `clientCAFile`, the ingress (clients and upstream) |
//! | [`Trust::Root`] | R | kubeconfigs, `--root-ca-file`, agents |
//! | [`Trust::KubeletServing`] | K, of every generation | `--kubelet-certificate-authority` |
//! | [`Trust::FrontProxy`] | FP, of every generation | `--requestheader-client-ca-file` |
//!
//! A verifier of client certificates uses the intermediates that the peer sends. If its bundle
//! contained R, the chain of another cluster's administrator would verify. So a client bundle with
//! a self-signed certificate is refused. The other bundles accept only self-signed certificates.

use pem::{EncodeConfig, LineEnding, Pem};

use crate::inspect::{InspectError, ParsedCertificate};

/// Purpose of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// Verifies the cluster's own clients and its API server, by the cluster's intermediates.
    Client,
    /// Verifies serving certificates under the root.
    Root,
    /// Verifies serving certificates of the cluster's kubelets.
    KubeletServing,
    /// Verifies client certificates that are presented to aggregated API servers.
    FrontProxy,
}

/// The certificates do not make a valid bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A certificate cannot be parsed.
    #[error("parsing a certificate of a trust bundle")]
    Read(#[source] InspectError),
    /// There is no certificate. A verifier would trust nothing or, worse, its defaults.
    #[error("a trust bundle needs at least one certificate")]
    Empty,
    /// A certificate is not a CA.
    #[error("{0:?} is not a certificate authority")]
    NotAnAuthority(String),
    /// A client bundle contains a root, which would trust the clients of all clusters.
    #[error("{0:?} is a root CA, which a trust bundle for clients must not contain")]
    RootForClients(String),
    /// A bundle of roots contains an intermediate.
    #[error("{0:?} is not a root CA")]
    NotARoot(String),
}

/// CA certificates that are trusted for one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    trust: Trust,
    certificates: Vec<ParsedCertificate>,
}

impl Bundle {
    /// Builds a bundle of all certificates in these PEM texts.
    pub fn new<T: AsRef<str>>(trust: Trust, texts: impl IntoIterator<Item = T>) -> Result<Self, BundleError> {
        let mut certificates = Vec::new();
        for text in texts {
            certificates.extend(ParsedCertificate::from_pem(text.as_ref()).map_err(BundleError::Read)?);
        }
        for certificate in &certificates {
            check(trust, certificate)?;
        }
        if certificates.is_empty() {
            return Err(BundleError::Empty);
        }
        certificates.sort_by(|a, b| a.der().cmp(b.der()));
        certificates.dedup_by(|a, b| a.der() == b.der());
        Ok(Self { trust, certificates })
    }

    /// Purpose of the bundle.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// The certificates of the bundle.
    pub fn certificates(&self) -> &[ParsedCertificate] {
        &self.certificates
    }

    /// The bundle as PEM.
    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(ParsedCertificate::to_pem).collect()
    }
}

/// Encodes one PEM block with LF line endings.
pub(crate) fn to_pem(tag: &str, der: &[u8]) -> String {
    let block = Pem::new(tag, der);
    pem::encode_config(&block, EncodeConfig::new().set_line_ending(LineEnding::LF))
}

fn check(trust: Trust, certificate: &ParsedCertificate) -> Result<(), BundleError> {
    let name = || certificate.subject.text.clone();
    match trust {
        _ if !certificate.is_ca => Err(BundleError::NotAnAuthority(name())),
        Trust::Client if certificate.self_issued => Err(BundleError::RootForClients(name())),
        Trust::Root | Trust::KubeletServing | Trust::FrontProxy if !certificate.self_issued => {
            Err(BundleError::NotARoot(name()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
