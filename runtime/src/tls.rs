//! Certificates of a TLS listener, reloaded when their files change, and the connections that the
//! listener admits.
//!
//! If changed files are invalid, the previous certificates stay in use. Open connections keep the
//! certificates of their handshake.
//!
//! ```text
//! files ── Reload ──► TlsConfigs ──► accept: handshake, Admission ──► connections for the server
//! ```

mod accept;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;

pub use accept::{Admission, Connections, accept};

/// The TLS configuration in use, which [`Reload`] updates.
pub type TlsConfigs = watch::Receiver<Arc<ServerConfig>>;

/// The certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file is not valid PEM.
    #[error("parsing {}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser.
        #[source]
        source: pem::Error,
    },
    /// The certificate and the key do not match.
    #[error("using the certificate and its key")]
    Pair(#[source] rustls::Error),
    /// A certificate of the clients' CA cannot be a trust anchor.
    #[error("trusting the clients' CA")]
    ClientCa(#[source] rustls::Error),
    /// The file of the clients' CA contains no usable certificate.
    #[error("verifying clients by their CA")]
    Verifier(#[source] VerifierBuilderError),
}

/// Paths of the certificate files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the server, followed by its intermediates.
    pub certificate: PathBuf,
    /// Private key of the server.
    pub key: PathBuf,
    /// CAs for client certificates. If set, a client must present a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// Reloads the files. The process calls [`Reload::look`] at its own interval.
#[derive(Debug)]
pub struct Reload {
    files: TlsFiles,
    contents: Contents,
    configs: watch::Sender<Arc<ServerConfig>>,
}

impl TlsFiles {
    async fn read(&self) -> Result<Contents, TlsError> {
        let client_ca = match &self.client_ca {
            Some(path) => Some(read(path).await?),
            None => None,
        };
        Ok(Contents {
            certificate: read(&self.certificate).await?,
            key: read(&self.key).await?,
            client_ca,
        })
    }

    fn build(&self, contents: &Contents) -> Result<Arc<ServerConfig>, TlsError> {
        let builder = ServerConfig::builder();
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(text)) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path, text)? {
                    roots.add(certificate).map_err(TlsError::ClientCa)?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                builder.with_client_cert_verifier(verifier.map_err(TlsError::Verifier)?)
            }
            _ => builder.with_no_client_auth(),
        };
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(parse(&self.key))?;
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
        // Metrics and probe requests may use HTTP/1.1.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Reload {
    /// Reads the files. They must be valid at the start.
    pub async fn load(files: TlsFiles) -> Result<(Self, TlsConfigs), TlsError> {
        let contents = files.read().await?;
        let (configs, receiver) = watch::channel(files.build(&contents)?);
        let reload = Self {
            files,
            contents,
            configs,
        };
        Ok((reload, receiver))
    }

    /// Reads the files again, and returns whether a change was applied. While files are being
    /// replaced one after the other, they may not match; the next call then succeeds.
    pub async fn look(&mut self) -> Result<bool, TlsError> {
        let contents = self.files.read().await?;
        if contents == self.contents {
            return Ok(false);
        }
        self.configs.send_replace(self.files.build(&contents)?);
        self.contents = contents;
        Ok(true)
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    tokio::fs::read(path).await.map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    parsed.map_err(parse(path))
}

fn parse(path: &Path) -> impl FnOnce(pem::Error) -> TlsError {
    let path = path.to_owned();
    move |source| TlsError::Parse { path, source }
}
