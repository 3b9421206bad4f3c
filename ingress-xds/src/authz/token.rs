//! Verifies a service account token and finds the cluster that issued it. Pure; called by
//! [`crate::authz::request`].
//!
//! ```text
//!  text ─▶ header, claims: issuer ─▶ algorithm ─▶ that cluster's keys ─▶ signature ─▶ times ─▶ audience ─▶ cluster
//! ```
//!
//! Guarantees:
//! - The issuer only selects whose keys are tried. A token that one cluster signed never selects
//!   another: key, issuer and audiences belong to the same cluster.
//! - The key determines the algorithm, never the token: a header with another algorithm matches no
//!   key. `none` and algorithms with a shared secret do not exist here.
//! - A token's header names one of the cluster's own keys, by its digest (`kid`). Other references to
//!   keys (`jku`, `jwk`, `x5u`) are ignored.
//!
//! Caveats: the result is where a request goes, not what it may do. The cluster's API server
//! verifies the token again, and checks more: whether the service account and the pod that the
//! token is bound to exist.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256};
use data_encoding::BASE64URL_NOPAD;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Maximum length of a token in bytes; those of Kubernetes have about 1 KiB.
pub(crate) const MAX_BYTES: usize = 8 * 1024;
/// Tolerated clock difference in seconds: the value of kube-apiserver (go-jose's default).
const LEEWAY: i64 = 60;
const RSA_BITS: RangeInclusive<usize> = 2048..=8192;
const PUBLIC_KEY_TAG: &str = "PUBLIC KEY";

/// Trust settings for the tokens of one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTrust {
    /// The issuer of the tokens; no other cluster has it.
    pub issuer: String,
    /// Accepted audiences; a token must have one of them.
    pub audiences: BTreeSet<String>,
    /// Keys that may sign a token.
    pub keys: Vec<TokenKey>,
}

/// A verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<T> {
    /// The cluster that issued the token.
    pub cluster: T,
    /// The token's subject: `system:serviceaccount:` and so on.
    pub subject: String,
}

/// A public key that verifies tokens.
#[derive(Clone, Debug)]
pub struct TokenKey {
    algorithm: Algorithm,
    /// Kubernetes' ID of the key: the digest of its SubjectPublicKeyInfo.
    id: String,
    key: ParsedPublicKey,
}

/// Algorithms with which kube-apiserver signs for the key types of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Es256,
}

/// A key that cannot verify tokens.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not PEM.
    #[error("reading a public key")]
    Pem(#[source] pem::PemError),
    /// The key has an unsupported type or size.
    #[error("the key is neither RSA of 2048 to 8192 bits nor on the curve P-256")]
    Kind,
}

/// Why a token is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token exceeds the size limit.
    #[error("the token is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// The token is not three parts of base64url, or a part is not the expected JSON.
    #[error("the token is malformed")]
    Malformed,
    /// The header has critical extensions, and none are supported.
    #[error("the token's header has critical extensions")]
    Critical,
    /// No key of any cluster uses the algorithm of the header.
    #[error("the token's algorithm is not supported for service accounts")]
    Algorithm,
    /// No cluster has the issuer of the token.
    #[error("no cluster has the token's issuer")]
    Issuer,
    /// The cluster has no such key for this algorithm.
    #[error("the cluster has no key with the token's key ID and algorithm")]
    Key,
    /// The signature does not verify with the cluster's keys.
    #[error("the token's signature is wrong")]
    Signature,
    /// The token's validity has ended.
    #[error("the token has expired")]
    Expired,
    /// The token's validity has not started, or it was issued in the future.
    #[error("the token is not valid yet")]
    Early,
    /// The token is issued for another audience.
    #[error("the token's audience is not the cluster's API")]
    Audience,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

/// The claims that are checked. A claim that appears twice is a parse error. Tokens of other
/// issuers may lack `aud` and `exp`.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: Option<OneOrMany>,
    exp: Option<i64>,
    nbf: Option<i64>,
    iat: Option<i64>,
    #[serde(default)]
    sub: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl TokenKey {
    /// Parses a public key in PEM (SubjectPublicKeyInfo).
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let block = pem::parse(text).map_err(KeyError::Pem)?;
        let der = block.contents();
        let algorithm = algorithm_of(der).filter(|_| block.tag() == PUBLIC_KEY_TAG);
        let algorithm = algorithm.ok_or(KeyError::Kind)?;
        let key = match algorithm {
            Algorithm::Rs256 => ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der),
            Algorithm::Es256 => ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, der),
        };
        let key = key.map_err(|_| KeyError::Kind)?;
        Ok(Self {
            algorithm,
            id: BASE64URL_NOPAD.encode(&Sha256::digest(der)),
            key,
        })
    }
}

// The ID is a digest of the complete key.
impl PartialEq for TokenKey {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for TokenKey {}

impl Algorithm {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

impl TokenError {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::TooLong,
        Self::Malformed,
        Self::Critical,
        Self::Algorithm,
        Self::Issuer,
        Self::Key,
        Self::Signature,
        Self::Expired,
        Self::Early,
        Self::Audience,
    ];

    /// The value of the metric label `verdict`, also used in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooLong => "token_too_long",
            Self::Malformed => "token_malformed",
            Self::Critical => "token_critical",
            Self::Algorithm => "token_algorithm",
            Self::Issuer => "token_issuer",
            Self::Key => "token_key",
            Self::Signature => "token_signature",
            Self::Expired => "token_expired",
            Self::Early => "token_early",
            Self::Audience => "token_audience",
        }
    }
}

/// Verifies a token. `find` returns the cluster with the token's issuer; `trust_of` returns the
/// trust settings of that cluster.
pub fn verify<T>(
    token: &str,
    now: Timestamp,
    find: impl FnOnce(&str) -> Option<T>,
    trust_of: impl FnOnce(&T) -> &TokenTrust,
) -> Result<Verified<T>, TokenError> {
    if token.len() > MAX_BYTES {
        return Err(TokenError::TooLong);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
    let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
    let header: Header = read(header)?;
    let claims: Claims = read(claims)?;
    let signature = decode(signature)?;
    if header.crit.is_some() {
        return Err(TokenError::Critical);
    }
    // Tokens of other issuers may have other claims and algorithms, so the issuer is checked first.
    let cluster = find(&claims.iss).ok_or(TokenError::Issuer)?;
    let (Some(audiences), Some(expiry)) = (&claims.aud, claims.exp) else {
        return Err(TokenError::Malformed);
    };
    let algorithm = Algorithm::from_name(&header.alg).ok_or(TokenError::Algorithm)?;
    let trust = trust_of(&cluster);
    if trust.issuer != claims.iss {
        return Err(TokenError::Issuer);
    }
    check_signature(trust, algorithm, header.kid.as_deref(), signed.as_bytes(), &signature)?;
    claims.check_times(expiry, now.as_second())?;
    if !audiences.iter().any(|audience| trust.audiences.contains(audience)) {
        return Err(TokenError::Audience);
    }
    Ok(Verified {
        cluster,
        subject: claims.sub,
    })
}

fn check_signature(
    trust: &TokenTrust,
    algorithm: Algorithm,
    id: Option<&str>,
    signed: &[u8],
    signature: &[u8],
) -> Result<(), TokenError> {
    let fits = |key: &&TokenKey| key.algorithm == algorithm && id.is_none_or(|id| key.id == id);
    let mut keys = trust.keys.iter().filter(fits).peekable();
    keys.peek().ok_or(TokenError::Key)?;
    if keys.any(|key| key.key.verify_sig(signed, signature).is_ok()) {
        Ok(())
    } else {
        Err(TokenError::Signature)
    }
}

impl Claims {
    fn check_times(&self, expiry: i64, now: i64) -> Result<(), TokenError> {
        if expiry <= now.saturating_sub(LEEWAY) {
            return Err(TokenError::Expired);
        }
        let latest = now.saturating_add(LEEWAY);
        if [self.nbf, self.iat].into_iter().flatten().any(|time| time > latest) {
            return Err(TokenError::Early);
        }
        Ok(())
    }
}

impl OneOrMany {
    fn iter(&self) -> impl Iterator<Item = &String> {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
        .iter()
    }
}

/// The algorithm of a public key in DER, by its type. Parsing the key rejects other curves.
fn algorithm_of(der: &[u8]) -> Option<Algorithm> {
    let (rest, info) = SubjectPublicKeyInfo::from_der(der).ok()?;
    match info.parsed().ok().filter(|_| rest.is_empty())? {
        PublicKey::RSA(key) if RSA_BITS.contains(&key.key_size()) => Some(Algorithm::Rs256),
        PublicKey::EC(_) => Some(Algorithm::Es256),
        _ => None,
    }
}

fn read<T: for<'a> Deserialize<'a>>(part: &str) -> Result<T, TokenError> {
    serde_json::from_slice(&decode(part)?).map_err(|_| TokenError::Malformed)
}

fn decode(part: &str) -> Result<Vec<u8>, TokenError> {
    BASE64URL_NOPAD
        .decode(part.as_bytes())
        .map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests;
