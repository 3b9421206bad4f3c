//! What a worker needs to join, as one word that is pasted: `yoke1.` and base64url of JSON. Pure.
//!
//! It carries the CA, so a worker shows the token to nobody else than the cluster. It comes from a person's clipboard: every
//! part is checked when it is read, and no error quotes it.

use data_encoding::BASE64URL_NOPAD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::{self, PemObject as _};
use serde::{Deserialize, Serialize};
use yoke_api::KubernetesVersion;
use yoke_api::names::is_domain;

/// What the word begins with: its form, should there be another one.
const PREFIX: &str = "yoke1.";
/// Bytes of the longest word that is read.
const WORD_MAX: usize = 64 << 10;
const AUTHORITIES_MAX: usize = 8;
/// As in <https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/>.
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// A word is none by which a worker could join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// Too long.
    #[error("a join token has at most {WORD_MAX} characters")]
    Long,
    /// Another form, or something else altogether.
    #[error("a join token begins with {PREFIX}")]
    Prefix,
    /// Part of it is missing, or was changed.
    #[error("the join token is not whole")]
    Encoding,
    /// A part is not what it should be.
    #[error("the join token has no usable {0}")]
    Part(&'static str),
}

/// What a worker needs to join.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct JoinLine {
    /// Name and port of the API server.
    pub(crate) server: String,
    /// The certificates by which it is known, PEM.
    pub(crate) ca: String,
    /// The certificates by which the kubelet knows the API server when that calls it, PEM.
    pub(crate) client_ca: String,
    /// The bootstrap token, `<id>.<secret>`.
    pub(crate) token: String,
    /// Version of the cluster.
    pub(crate) version: String,
}

/// Without what is secret.
impl std::fmt::Debug for JoinLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("JoinLine");
        shown.field("server", &self.server).field("version", &self.version);
        shown.finish_non_exhaustive()
    }
}

impl JoinLine {
    /// Reads a word that somebody pasted.
    pub(crate) fn parse(word: &str) -> Result<Self, LineError> {
        let word = word.trim();
        if word.len() > WORD_MAX {
            return Err(LineError::Long);
        }
        let body = word.strip_prefix(PREFIX).ok_or(LineError::Prefix)?;
        let json = BASE64URL_NOPAD
            .decode(body.as_bytes())
            .map_err(|_| LineError::Encoding)?;
        let line: Self = serde_json::from_slice(&json).map_err(|_| LineError::Encoding)?;
        line.check()?;
        Ok(line)
    }
    fn check(&self) -> Result<(), LineError> {
        for (part, good) in [
            ("server", is_server(&self.server)),
            ("CA", is_bundle(&self.ca)),
            ("CA of clients", is_bundle(&self.client_ca)),
            ("bootstrap token", is_bootstrap_token(&self.token)),
            ("version", self.version.parse::<KubernetesVersion>().is_ok()),
        ] {
            if !good {
                return Err(LineError::Part(part));
            }
        }
        Ok(())
    }
}

/// Whether a text is a DNS name with a port.
fn is_server(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(name, port)| {
        let digits = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
        is_domain(name) && digits && port.parse::<u16>().is_ok()
    })
}

/// Whether a text is PEM with certificates and no other blocks.
fn is_bundle(pem: &str) -> bool {
    let blocks = pem.matches("-----BEGIN ").count();
    (1..=AUTHORITIES_MAX).contains(&blocks) && to_certificates(pem).is_ok_and(|found| found.len() == blocks)
}

fn is_bootstrap_token(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let part = |part: &str, length: usize| part.len() == length && part.bytes().all(plain);
    text.split_once('.')
        .is_some_and(|(id, secret)| part(id, ID_LENGTH) && part(secret, SECRET_LENGTH))
}

/// The certificates of a PEM text.
pub(crate) fn to_certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect()
}

#[cfg(test)]
mod tests;
