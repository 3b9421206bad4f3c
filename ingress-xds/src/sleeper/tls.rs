//! TLS as a cluster that sleeps has it: the certificate of the names under the base domain, and a client's certificate that is
//! asked for, and judged with its request, as kube-apiserver does: a bad one is answered, not cut off.
//!
//! Nothing is resumed: a session has the identity of whom it was made with.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use tokio::sync::{mpsc, watch};
use yoke_pki::plan::SLEEPER_LEAF;
use yoke_runtime::Drain;
use yoke_runtime::tls::TlsConfigs;

use crate::model::{Event, ObjectKey, Watched, to_chain};
use crate::validate::{CertificateError, validate_secret};

/// The certificate that is shown, if there is one.
pub type Shown = watch::Receiver<Option<Arc<CertifiedKey>>>;

/// The certificate cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShownError {
    /// The Secret is not believed.
    #[error("reading the Secret {SLEEPER_LEAF}")]
    Secret(#[source] CertificateError),
    /// It cannot be read.
    #[error("parsing certificate and key")]
    Parse(#[source] pem::Error),
    /// The key is of no kind that is known.
    #[error("loading the key")]
    Key(#[source] rustls::Error),
    /// Nobody has chosen how to encrypt.
    #[error("finding the process's provider of cryptography")]
    Provider,
}

/// Keeps what is shown new until the drain starts, and says whether there is something: nobody is led here before. A Secret that
/// cannot be used leaves the former one in use.
pub async fn keep_shown(
    mut secrets: mpsc::Receiver<Watched<Secret>>,
    shown: watch::Sender<Option<Arc<CertifiedKey>>>,
    events: mpsc::Sender<Event>,
    drain: Drain,
) {
    let (mut told, mut listed) = (None, false);
    while let Some(Some(seen)) = drain.until_started(secrets.recv()).await {
        let is_own = |key: &ObjectKey| key.name == SLEEPER_LEAF;
        listed |= matches!(seen, Watched::Listed(_));
        match seen {
            Watched::Applied(secret) => match read(&secret) {
                Ok(key) => {
                    tracing::info!("certificate for sleeping clusters taken up");
                    shown.send_replace(Some(Arc::new(key)));
                }
                Err(error) => tracing::warn!(
                    error = to_chain(&error),
                    "the certificate for sleeping clusters is not used"
                ),
            },
            Watched::Deleted(key) if is_own(&key) => {
                shown.send_replace(None);
            }
            Watched::Listed(keys) if !keys.iter().any(is_own) => {
                tracing::warn!("there is no certificate for sleeping clusters: nobody wakes them by connecting");
                shown.send_replace(None);
            }
            Watched::Deleted(_) | Watched::Listed(_) => {}
        }
        let has = shown.borrow().is_some();
        // Before the list is there, absence means nothing. Without a receiver the process is ending.
        if (has || listed) && told.replace(has) != Some(has) {
            let _ = events.send(Event::Sleeper(has)).await;
        }
    }
}

/// The certificate in a Secret.
pub fn read(secret: &Secret) -> Result<CertifiedKey, ShownError> {
    let certificate = validate_secret(secret, SLEEPER_LEAF).map_err(ShownError::Secret)?;
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes());
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(ShownError::Parse)?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).map_err(ShownError::Parse)?;
    let provider = CryptoProvider::get_default().ok_or(ShownError::Provider)?;
    let key = provider.key_provider.load_private_key(key).map_err(ShownError::Key)?;
    Ok(CertifiedKey::new(chain, key))
}

/// How TLS is spoken.
pub fn build_configs(shown: Shown) -> Result<TlsConfigs, ShownError> {
    let provider = CryptoProvider::get_default().ok_or(ShownError::Provider)?;
    let verifier = Arc::new(AnyClient(provider.signature_verification_algorithms));
    let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
    let mut config = builder.with_cert_resolver(Arc::new(Resolver(shown)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(watch::channel(Arc::new(config)).1)
}

/// Shows the one certificate to whoever names a server.
struct Resolver(Shown);

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resolver").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        hello.server_name()?;
        self.0.borrow().clone()
    }
}

/// Has every certificate pass whose key the client has.
#[derive(Debug)]
struct AnyClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for AnyClient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        // Each request is judged by it: see `identity`.
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
