//! Validates a Secret with a certificate of the ingress. Pure.
//!
//! Envoy rejects a certificate that it cannot use and continues with its previous one. These checks
//! report the problem where the host's owner looks for it.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use yoke_api::names::{HOSTED_NAMESPACE_PREFIX, PKI_NAMESPACE};
use yoke_pki::ParsedCertificate;
use yoke_pki::inspect::InspectError;
use yoke_pki::plan::{INGRESS_LEAF, SLEEPER_LEAF};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// A certificate for clients whose TLS ends at the ingress.
#[derive(Clone, PartialEq, Eq)]
pub struct IngressCertificate {
    /// The certificate and its issuers up to the root, PEM.
    pub chain: String,
    /// The private key, PEM.
    pub key: String,
    /// DNS names of the certificate.
    pub names: BTreeSet<String>,
    /// End of the certificate's validity.
    pub not_after: Timestamp,
}

/// Why a Secret is invalid.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The object is not one of the expected Secrets.
    #[error("the name and namespace of the Secret are not those of an ingress certificate")]
    WrongObject,
    /// A key is missing or not text. cert-manager may not have issued the certificate yet.
    #[error("the key {0} is missing or empty")]
    Missing(&'static str),
    /// The certificate or the private key cannot be parsed.
    #[error("reading the key {key}")]
    Read {
        /// The key of the Secret.
        key: &'static str,
        /// The problem with it.
        #[source]
        source: InspectError,
    },
    /// The first certificate is a CA certificate.
    #[error("the first certificate is a CA certificate and must be a server certificate")]
    Authority,
    /// The private key does not belong to the certificate.
    #[error("the private key does not match the certificate")]
    Pair,
}

// The private key must not be logged.
impl fmt::Debug for IngressCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IngressCertificate")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Validates the Secret with the certificate for Pods, whose TLS ends at Envoy.
pub fn validate_ingress(object: &Secret) -> Result<IngressCertificate, CertificateError> {
    if place_of(object) != [PKI_NAMESPACE, INGRESS_LEAF] {
        return Err(CertificateError::WrongObject);
    }
    validate_pair(object)
}

/// Validates a Secret with an activator certificate. In the CA namespace it covers the public names
/// of all clusters; in a control-plane namespace it covers the extra names of that cluster.
pub fn validate_activator(object: &Secret) -> Result<IngressCertificate, CertificateError> {
    let [namespace, name] = place_of(object);
    if name != SLEEPER_LEAF || !namespace.starts_with(HOSTED_NAMESPACE_PREFIX) {
        return Err(CertificateError::WrongObject);
    }
    validate_pair(object)
}

fn place_of(object: &Secret) -> [&str; 2] {
    let metadata = &object.metadata;
    [&metadata.namespace, &metadata.name].map(|text| text.as_deref().unwrap_or_default())
}

fn validate_pair(object: &Secret) -> Result<IngressCertificate, CertificateError> {
    let text = |key: &'static str| {
        let bytes = object.data.as_ref().and_then(|data| data.get(key));
        let text = bytes.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        text.filter(|text| !text.is_empty())
            .ok_or(CertificateError::Missing(key))
    };
    let failed = |key| move |source| CertificateError::Read { key, source };
    let key = text(KEY)?;
    let chain = ParsedCertificate::from_pem(text(CERTIFICATE)?).map_err(failed(CERTIFICATE))?;
    let certificate = chain.first().ok_or(CertificateError::Missing(CERTIFICATE))?;
    if certificate.is_ca {
        return Err(CertificateError::Authority);
    }
    if !certificate.matches_key(key).map_err(failed(KEY))? {
        return Err(CertificateError::Pair);
    }
    Ok(IngressCertificate {
        chain: chain.iter().map(ParsedCertificate::to_pem).collect(),
        key: key.to_owned(),
        names: certificate.dns_names.iter().cloned().collect(),
        not_after: certificate.not_after,
    })
}

#[cfg(test)]
mod tests;
