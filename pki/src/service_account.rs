//! The RSA key with which a control plane signs service-account tokens. The operator generates it
//! once. It is not a cert-manager Certificate, because cert-manager would rotate it and so
//! invalidate all tokens.

use std::fmt;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;

use crate::bundle::to_pem;

const PKCS8_TAG: &str = "PRIVATE KEY";
const PKCS1_TAG: &str = "RSA PRIVATE KEY";
const PUBLIC_TAG: &str = "PUBLIC KEY";

/// A key could not be generated or parsed. No error contains any part of the key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The random generator or the library failed.
    #[error("generating a service-account key")]
    Generate,
    /// The text is not PEM.
    #[error("parsing a service-account key")]
    Pem,
    /// The PEM block is not an RSA private key.
    #[error("PEM block {0:?} is not an RSA private key")]
    NotRsa(String),
    /// The key cannot be encoded as DER.
    #[error("encoding a service-account key")]
    Encode,
}

/// A signing key for service-account tokens, with its public key.
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceAccountKey {
    private_pem: String,
    public_pem: String,
}

impl ServiceAccountKey {
    /// Generates an RSA key of 2048 bits.
    pub fn generate() -> Result<Self, KeyError> {
        Self::from_pair(&KeyPair::generate(KeySize::Rsa2048).map_err(|_| KeyError::Generate)?)
    }

    /// Parses a private key in PEM: PKCS#8 or PKCS#1.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let block = pem::parse(text).map_err(|_| KeyError::Pem)?;
        let not_rsa = |_| KeyError::NotRsa(block.tag().to_owned());
        let pair = match block.tag() {
            PKCS8_TAG => KeyPair::from_pkcs8(block.contents()).map_err(not_rsa)?,
            PKCS1_TAG => KeyPair::from_der(block.contents()).map_err(not_rsa)?,
            other => return Err(KeyError::NotRsa(other.to_owned())),
        };
        Self::from_pair(&pair)
    }

    /// The private key as PKCS#8 PEM, for kube-apiserver (`--service-account-signing-key-file`).
    pub fn private_pem(&self) -> &str {
        &self.private_pem
    }

    /// The public key as SubjectPublicKeyInfo PEM, for kube-apiserver
    /// (`--service-account-key-file`).
    pub fn public_pem(&self) -> &str {
        &self.public_pem
    }

    fn from_pair(pair: &KeyPair) -> Result<Self, KeyError> {
        let private = pair.as_der().map_err(|_| KeyError::Encode)?;
        let public = pair.public_key().as_der().map_err(|_| KeyError::Encode)?;
        Ok(Self {
            private_pem: to_pem(PKCS8_TAG, private.as_ref()),
            public_pem: to_pem(PUBLIC_TAG, public.as_ref()),
        })
    }
}

impl fmt::Debug for ServiceAccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountKey")
            .field("public_pem", &self.public_pem)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_comes_back_from_its_pem() {
        let key = ServiceAccountKey::generate().unwrap();
        assert!(key.private_pem().starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(key.public_pem().starts_with("-----BEGIN PUBLIC KEY-----\n"));
        assert_eq!(ServiceAccountKey::from_pem(key.private_pem()).unwrap(), key);
    }

    #[test]
    fn keys_differ() {
        let (a, b) = (
            ServiceAccountKey::generate().unwrap(),
            ServiceAccountKey::generate().unwrap(),
        );
        assert_ne!(a.private_pem(), b.private_pem());
        assert_ne!(a.public_pem(), b.public_pem());
    }

    #[test]
    fn debug_shows_no_private_key() {
        let key = ServiceAccountKey::generate().unwrap();
        assert!(!format!("{key:?}").contains("PRIVATE"));
    }

    #[test]
    fn other_texts_are_refused() {
        let elliptic = rcgen::KeyPair::generate().unwrap().serialize_pem();
        assert!(matches!(ServiceAccountKey::from_pem("no PEM"), Err(KeyError::Pem)));
        assert!(matches!(ServiceAccountKey::from_pem(&elliptic), Err(KeyError::NotRsa(tag)) if tag == "PRIVATE KEY"));
        let public = ServiceAccountKey::generate().unwrap().public_pem().to_owned();
        assert!(matches!(ServiceAccountKey::from_pem(&public), Err(KeyError::NotRsa(tag)) if tag == "PUBLIC KEY"));
    }
}
