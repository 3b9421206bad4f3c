//! A service-account token → the cluster that vouches for it, or why it is not believed. Pure; called by
//! [`crate::gate::request`].
//!
//! ```text
//!  text ─▶ header, claims: issuer ─▶ algorithm ─▶ that cluster's keys ─▶ signature ─▶ times ─▶ audience ─▶ cluster
//! ```
//!
//! Guarantees:
//! - The issuer only chooses whose keys are tried. A token that one cluster signed never names another: the key, the issuer
//!   and the audiences are of the same cluster.
//! - The algorithm follows from the key, never from the token: a header that asks for another one fits no key. There is no
//!   `none` and no algorithm with a shared secret.
//! - A header names a key among the cluster's own, by the digest that Kubernetes gives it. What else it names (`jku`, `jwk`,
//!   `x5u`) is not read.
//!
//! Caveats: this is where a request goes, not what it may do. The cluster's API server verifies the token again, and knows
//! more: whether the service account and the pod that it is bound to exist.

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

/// Longest token that is looked at; those of Kubernetes have about 1 KiB.
pub(crate) const MAX_BYTES: usize = 8 * 1024;
/// How far a clock may be off, in seconds: what kube-apiserver allows (go-jose's default).
const LEEWAY: i64 = 60;
const RSA_BITS: RangeInclusive<usize> = 2048..=8192;
const PUBLIC_KEY_TAG: &str = "PUBLIC KEY";

/// By what the tokens of one cluster are recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTrust {
    /// The issuer that the tokens name; no other cluster has it.
    pub issuer: String,
    /// Audiences of which a token must have one.
    pub audiences: BTreeSet<String>,
    /// Keys by which a token may be signed.
    pub keys: Vec<TokenKey>,
}

/// A token that is believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified<T> {
    /// The cluster that has issued it.
    pub cluster: T,
    /// Whose it is: `system:serviceaccount:` and so on.
    pub subject: String,
}

/// A public key by which tokens are signed.
#[derive(Clone, Debug)]
pub struct TokenKey {
    algorithm: Algorithm,
    /// Kubernetes' name for the key: the digest of its SubjectPublicKeyInfo.
    id: String,
    key: ParsedPublicKey,
}

/// Algorithms by which kube-apiserver signs with the keys that clusters have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rs256,
    Es256,
}

/// A key cannot verify tokens.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It is not PEM.
    #[error("reading a public key")]
    Pem(#[source] pem::PemError),
    /// It is something else.
    #[error("the key is neither RSA of 2048 to 8192 bits nor on the curve P-256")]
    Kind,
}

/// Why a token is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is longer than any honest one.
    #[error("the token is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// It is not three parts of base64url, or a part is not the JSON that it should be.
    #[error("the token is malformed")]
    Malformed,
    /// Its header demands something to be understood that is not.
    #[error("the token's header has critical extensions")]
    Critical,
    /// No key of any cluster signs by its algorithm.
    #[error("the token's algorithm is not one of service accounts")]
    Algorithm,
    /// No cluster has its issuer.
    #[error("the token's issuer is no cluster")]
    Issuer,
    /// The cluster has no such key for this algorithm.
    #[error("the token's key is not one of its cluster's")]
    Key,
    /// The cluster did not sign it.
    #[error("the token's signature is wrong")]
    Signature,
    /// It was valid.
    #[error("the token has expired")]
    Expired,
    /// It will be valid, or was issued in the future.
    #[error("the token is not valid yet")]
    Early,
    /// It is meant for somebody else.
    #[error("the token's audience is not the cluster's API")]
    Audience,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

/// A field that comes twice is an error of parsing. Tokens of others may lack two of them.
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
    /// Reads a public key in PEM (SubjectPublicKeyInfo).
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

// The name is a digest of the whole key.
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

    /// The reason as a word for logs and metrics.
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

/// The cluster of a token, which `find` knows by its issuer. `trust_of` tells by what its tokens are recognised.
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
    // Others' tokens have others' claims, and others' algorithms.
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

/// The algorithm that goes with a key in DER, by its kind. That of another curve shows when it is parsed.
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
