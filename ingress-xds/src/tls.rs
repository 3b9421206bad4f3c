//! The certificates of this process's listener, reread when their files change, and the check of who connects.
//!
//! Who connects must have a certificate of the client CA *and* carry an expected DNS name: the CA may have other clients.
//! A change that cannot be used leaves the old certificates in use and is told by log and metric.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;
use yoke_pki::ParsedCertificate;
use yoke_runtime::Drain;

use crate::metrics::Metrics;

const POLL: Duration = Duration::from_secs(5);
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("parsing {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The CA's certificates cannot be trusted.
    #[error("using the client CA")]
    ClientCa(#[source] rustls::Error),
    /// There is no certificate of a CA.
    #[error("making the verifier of clients")]
    Verifier(#[source] VerifierBuilderError),
    /// Certificate and key do not make a pair.
    #[error("using the certificate and its key")]
    Pair(#[source] rustls::Error),
}

/// Where the certificates are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: PathBuf,
}

#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

/// The TLS configuration in use; `Reload` keeps it new.
pub type TlsConfigs = watch::Receiver<Arc<ServerConfig>>;

/// The task that rereads the files.
pub struct Reload {
    files: TlsFiles,
    contents: Contents,
    publish: watch::Sender<Arc<ServerConfig>>,
    metrics: Metrics,
}

impl TlsFiles {
    /// `tls.crt` and `tls.key` in a directory, and a file of CA certificates by which clients are verified.
    pub fn new(directory: &Path, client_ca: &Path) -> Self {
        Self {
            certificate: directory.join(CERTIFICATE),
            key: directory.join(KEY),
            client_ca: client_ca.to_owned(),
        }
    }

    async fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificate: read(&self.certificate).await?,
            key: read(&self.key).await?,
            client_ca: read(&self.client_ca).await?,
        })
    }

    fn build(&self, contents: &Contents) -> Result<Arc<ServerConfig>, TlsError> {
        let parse = |path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::Parse { path, source }
        };
        let certificates = |path: &Path, text: &[u8]| {
            let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
            parsed.map_err(parse(path))
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.client_ca, &contents.client_ca)? {
            roots.add(certificate).map_err(TlsError::ClientCa)?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
        let verifier = verifier.build().map_err(TlsError::Verifier)?;
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(parse(&self.key))?;
        let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
        let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Pair)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

impl Reload {
    /// Reads the files once; the task and the configuration that it keeps.
    pub async fn load(files: TlsFiles, metrics: Metrics) -> Result<(Self, TlsConfigs), TlsError> {
        let contents = files.read().await?;
        let (publish, configs) = watch::channel(files.build(&contents)?);
        let reload = Self {
            files,
            contents,
            publish,
            metrics,
        };
        Ok((reload, configs))
    }

    /// Rereads the files until the drain starts.
    pub async fn run(mut self, drain: Drain) -> Result<(), TlsError> {
        while drain.until_started(tokio::time::sleep(POLL)).await.is_some() {
            // The files are replaced one after the other where they are not in a Secret: a mixture is retried.
            match self.files.read().await {
                Ok(contents) if contents == self.contents => {}
                Ok(contents) => match self.files.build(&contents) {
                    Ok(config) => {
                        self.contents = contents;
                        self.publish.send_replace(config);
                        self.metrics.count_reload(true);
                        tracing::info!("certificates reread");
                    }
                    Err(error) => self.fail(&error),
                },
                Err(error) => self.fail(&error),
            }
        }
        Ok(())
    }

    fn fail(&self, error: &TlsError) {
        self.metrics.count_reload(false);
        let error = error as &dyn std::error::Error;
        tracing::warn!(error, "changed certificates cannot be used");
    }
}

/// Whether a client's certificate, already verified against the CA, carries one of the expected names.
pub fn is_expected_client(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let parsed = ParsedCertificate::from_der(certificate.to_vec());
    parsed.is_ok_and(|parsed| parsed.dns_names.iter().any(|name| names.contains(name)))
}

async fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    tokio::fs::read(path).await.map_err(failed)
}
