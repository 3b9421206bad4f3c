//! TLS of the activator.
//!
//! - Server certificates: one for all names under the base domain, and one for each cluster with
//!   extra names.
//! - Client certificates: requested, and verified with the request as kube-apiserver does. An
//!   invalid certificate is answered, it does not fail the handshake.
//!
//! Sessions are never resumed: a resumed session would carry the identity that it was created with.

use std::collections::{BTreeMap, BTreeSet};
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
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::SLEEPER_LEAF;
use yoke_runtime::Drain;
use yoke_runtime::tls::TlsConfigs;

use crate::model::activators::activator_secret_key;
use crate::model::observation::{ActivatorNames, Event, ObjectKey, Watched, to_chain};
use crate::snapshot::Snapshots;
use crate::snapshot::resource::resource_name;
use crate::validate::{CertificateError, validate_activator};

/// Certificates by the namespace of their Secret. The namespace of the CAs has the certificate for
/// names under the base domain. A control-plane namespace has the certificate for the extra names
/// of its cluster.
pub type Certificates = BTreeMap<String, Arc<CertifiedKey>>;

/// A certificate that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CertificateLoadError {
    /// The Secret is not valid.
    #[error("reading the Secret {SLEEPER_LEAF}")]
    Secret(#[source] CertificateError),
    /// The PEM text cannot be parsed.
    #[error("parsing certificate and key")]
    Parse(#[source] pem::Error),
    /// The private key has an unsupported type.
    #[error("loading the key")]
    Key(#[source] rustls::Error),
    /// The process has installed no crypto provider.
    #[error("finding the crypto provider of the process")]
    Provider,
}

/// Updates the served certificates until the drain starts, and publishes their names as events: the
/// routing table sends no client here before. An unusable Secret leaves the previous certificate in
/// use.
pub async fn update_certificates(
    mut secrets: mpsc::Receiver<Watched<Secret>>,
    certificates: watch::Sender<Certificates>,
    events: mpsc::Sender<Event>,
    drain: Drain,
) {
    while let Some(Some(seen)) = drain.until_started(secrets.recv()).await {
        let event = match seen {
            Watched::Applied(secret) => match load_certificate(&secret, &certificates) {
                Some(names) => Watched::Applied(Box::new(names)),
                None => continue,
            },
            Watched::Deleted(key) => {
                certificates.send_modify(|all| {
                    all.remove(&key.namespace);
                });
                Watched::Deleted(key)
            }
            Watched::Listed(keys) => {
                let is_there = |namespace: &str| keys.contains(&activator_secret_key(namespace));
                if !is_there(PKI_NAMESPACE) {
                    tracing::warn!("no certificate for sleeping clusters: connections cannot wake them");
                }
                certificates.send_modify(|all| all.retain(|namespace, _| is_there(namespace)));
                Watched::Listed(keys)
            }
        };
        // Without a receiver the process is ending.
        let _ = events.send(Event::ActivatorCertificate(event)).await;
    }
}

fn load_certificate(secret: &Secret, certificates: &watch::Sender<Certificates>) -> Option<ActivatorNames> {
    let key = ObjectKey::of(&secret.metadata);
    let namespace = key.namespace.clone();
    match read(secret) {
        Ok((certificate, names)) => {
            tracing::info!(namespace, "certificate for sleeping clusters loaded");
            certificates.send_modify(|all| {
                all.insert(namespace, Arc::new(certificate));
            });
            Some(ActivatorNames { key, names })
        }
        Err(error) => {
            let error = to_chain(&error);
            tracing::warn!(
                namespace,
                error,
                "certificate for sleeping clusters is invalid and ignored"
            );
            None
        }
    }
}

/// Parses the certificate in a Secret, and its names.
fn read(secret: &Secret) -> Result<(CertifiedKey, BTreeSet<String>), CertificateLoadError> {
    let certificate = validate_activator(secret).map_err(CertificateLoadError::Secret)?;
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes());
    let chain = chain
        .collect::<Result<Vec<_>, _>>()
        .map_err(CertificateLoadError::Parse)?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).map_err(CertificateLoadError::Parse)?;
    let provider = CryptoProvider::get_default().ok_or(CertificateLoadError::Provider)?;
    let key = provider
        .key_provider
        .load_private_key(key)
        .map_err(CertificateLoadError::Key)?;
    Ok((CertifiedKey::new(chain, key), certificate.names))
}

/// Builds the TLS configuration of the listener.
pub fn build_configs(
    certificates: watch::Receiver<Certificates>,
    snapshots: Snapshots,
) -> Result<TlsConfigs, CertificateLoadError> {
    let provider = CryptoProvider::get_default().ok_or(CertificateLoadError::Provider)?;
    let verifier = Arc::new(UnverifiedClient(provider.signature_verification_algorithms));
    let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
    let mut config = builder.with_cert_resolver(Arc::new(Resolver {
        certificates,
        snapshots,
    }));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(watch::channel(Arc::new(config)).1)
}

/// Selects the server certificate by SNI name.
struct Resolver {
    certificates: watch::Receiver<Certificates>,
    snapshots: Snapshots,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name()?;
        let snapshot = self.snapshots.borrow().clone();
        let entry = snapshot.as_ref().and_then(|all| all.get(&resource_name(name)));
        let namespace = match entry {
            // The certificate of the cluster that owns the name, also if another cluster has a
            // certificate for it.
            Some(entry) if entry.route.public_name != name => entry.route.namespace.as_str(),
            _ => PKI_NAMESPACE,
        };
        self.certificates.borrow().get(namespace).cloned()
    }
}

/// Accepts every client certificate whose private key the client has.
#[derive(Debug)]
struct UnverifiedClient(WebPkiSupportedAlgorithms);

impl ClientCertVerifier for UnverifiedClient {
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
        // Each request is authenticated by it later: see `identity`.
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
