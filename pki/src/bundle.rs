//! What verifiers are given to trust: certificates as PEM, each once, in a fixed order, so that the same set is the same bytes.
//!
//! | bundle | members | given to |
//! |---|---|---|
//! | [`Trust::Client`] | I, of every generation | `--client-ca-file`, a kubelet's `clientCAFile`, the ingress (clients and upstream) |
//! | [`Trust::Root`] | R | kubeconfigs, `--root-ca-file`, agents |
//! | [`Trust::KubeletServing`] | K, of every generation | `--kubelet-certificate-authority` |
//! | [`Trust::FrontProxy`] | FP, of every generation | `--requestheader-client-ca-file` |
//!
//! A verifier of client certificates uses the intermediates that the peer sends. Were R in its bundle, the chain of another
//! cluster's administrator would lead to it. So a client bundle with a self-signed certificate is refused, and the others take
//! nothing else.

use pem::{EncodeConfig, LineEnding, Pem};

use crate::inspect::{InspectError, ParsedCertificate};

/// What a bundle is trusted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trust {
    /// Certificates of a cluster's own clients and of its API server, by its intermediates.
    Client,
    /// Serving certificates under the root.
    Root,
    /// Serving certificates of a cluster's kubelets.
    KubeletServing,
    /// Client certificates shown to aggregated API servers.
    FrontProxy,
}

/// A bundle must not be made of these certificates.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// A member cannot be read.
    #[error("reading a certificate for a bundle")]
    Read(#[source] InspectError),
    /// There is no certificate: a verifier would trust nobody, or worse, its defaults.
    #[error("a bundle needs a certificate")]
    Empty,
    /// A member is not a CA.
    #[error("{0:?} is not a certificate authority")]
    NotAnAuthority(String),
    /// A root in a bundle for clients: every cluster's clients would be trusted.
    #[error("{0:?} is a root and must not be trusted for clients")]
    RootForClients(String),
    /// An intermediate where a root belongs.
    #[error("{0:?} is not a root")]
    NotARoot(String),
}

/// CA certificates that are trusted for one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    trust: Trust,
    certificates: Vec<ParsedCertificate>,
}

impl Bundle {
    /// A bundle of all certificates in these PEM texts.
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

    /// What it is trusted for.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// The members.
    pub fn certificates(&self) -> &[ParsedCertificate] {
        &self.certificates
    }

    /// The bundle as PEM.
    pub fn to_pem(&self) -> String {
        self.certificates.iter().map(ParsedCertificate::to_pem).collect()
    }
}

/// One block of PEM, lines ended by LF.
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
