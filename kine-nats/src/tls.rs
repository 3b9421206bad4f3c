//! The certificates of the https listeners, reread when their files change.
//!
//! A change that cannot be used leaves the old certificates in use and is logged once. Connections that are open keep
//! what they were admitted with.
//!
//! ```text
//! files ── Reload ──► TlsConfigs ──► accept: handshake ──► connections for the server
//! ```

mod accept;
#[cfg(test)]
mod tests;

pub(crate) use accept::accept;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

const POLL: Duration = Duration::from_secs(2);

/// The TLS configuration in use.
pub(crate) type TlsConfigs = watch::Receiver<Arc<ServerConfig>>;

/// The certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("parse {}", path.display())]
    Parse {
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("use the certificate and its key")]
    Pair(#[source] rustls::Error),
    #[error("trust the clients' CA")]
    ClientCa(#[source] rustls::Error),
    #[error("verify clients by their CA")]
    Verifier(#[source] VerifierBuilderError),
}

/// Where the certificates are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The server's certificate, and those between it and its CA.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// With it, a client needs a certificate of one of these CAs.
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

/// What rereads the files.
pub(crate) struct Reload {
    files: TlsFiles,
    contents: Contents,
    configs: watch::Sender<Arc<ServerConfig>>,
    /// What was logged last, as long as it is so.
    complaint: Option<String>,
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
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|source| TlsError::Parse {
            path: self.key.clone(),
            source,
        })?;
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Reload {
    /// Reads the files, which must be usable at first.
    pub(crate) async fn load(files: TlsFiles) -> Result<(Self, TlsConfigs), TlsError> {
        let contents = files.read().await?;
        let (configs, receiver) = watch::channel(files.build(&contents)?);
        let reload = Self {
            files,
            contents,
            configs,
            complaint: None,
        };
        Ok((reload, receiver))
    }

    /// Rereads the files until told to stop.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        while timeout(POLL, stop.wait_for(|stop| *stop)).await.is_err() {
            match self.look().await {
                Ok(changed) => {
                    self.complaint = None;
                    if changed {
                        tracing::info!("Certificates are reread");
                    }
                }
                Err(error) => self.complain(error),
            }
        }
    }

    /// Takes over what changed; answers whether something did. Files that are replaced one after the other do not fit
    /// each other for a moment: the next look finds them whole.
    async fn look(&mut self) -> Result<bool, TlsError> {
        let contents = self.files.read().await?;
        if contents == self.contents {
            return Ok(false);
        }
        self.configs.send_replace(self.files.build(&contents)?);
        self.contents = contents;
        Ok(true)
    }

    fn complain(&mut self, error: TlsError) {
        let error = format!("{:#}", anyhow::Error::new(error));
        if self.complaint.as_ref() != Some(&error) {
            tracing::warn!(error, "Changed certificates cannot be used");
            self.complaint = Some(error);
        }
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
    parsed.map_err(|source| TlsError::Parse {
        path: path.to_owned(),
        source,
    })
}
