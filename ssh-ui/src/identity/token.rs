//! API tokens, which a user signs with an SSH key for a program. Pure: time is an argument.
//!
//! ```text
//!  yoke-api1.<base64 of the claims>.<base64 of the signature, as `ssh-keygen -Y sign` makes it>
//!            {"tenant": "acme", "commands": ["clusters"], "exp": 1767225600}
//! ```
//!
//! Guarantees:
//! - A token is valid only for this host, because the signature's namespace contains the host's
//!   name.
//! - A token is valid only for the Tenant and the commands that it lists, and until it expires.
//! - The owner of the key is looked up in the registry at each use.
//! - The claims are not used before the signature is verified.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use russh::keys::ssh_key::encoding::{Decode as _, Reader as _};
use russh::keys::ssh_key::{self, Algorithm, SshSig};
use russh::keys::{HashAlg, PublicKey};
use serde::Deserialize;

use crate::commands::parse::is_command;
use crate::identity::key_registry::fingerprint;

/// Prefix of a token; it identifies the format's version.
const PREFIX: &str = "yoke-api1.";
/// Maximum length of a token, in characters. Claims and a signature need some hundred.
const TOKEN_MAX: usize = 8192;
/// Flag in the signature of a security key: the user touched the key (PROTOCOL.u2f of OpenSSH).
const TOUCHED: u8 = 1;
/// Bytes that a security key adds to its signature: flags, and a counter of four bytes.
const TRAILER: usize = 5;
/// Length in bytes of the digest that identifies a token in logs.
const DIGEST: usize = 8;

/// Reason why a token is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The request has no token, or several.
    #[error("a token is missing")]
    Missing,
    /// The text is not a token, is too long, or is incomplete.
    #[error("this is not a token: a token is `{PREFIX}`, the claims in base64, a dot, and their signature in base64")]
    Form,
    /// The signature cannot be decoded.
    #[error("reading the signature of the token")]
    Unreadable(#[source] ssh_key::Error),
    /// The signature has the namespace of another host or purpose.
    #[error("the token is not for this host: its signature must have the namespace {0}")]
    Namespace(String),
    /// No Tenant has the key.
    #[error("no Tenant of this host has the key {0}, which signed the token")]
    UnknownKey(String),
    /// The signature does not match the claims.
    #[error("the signature of the token is wrong")]
    Signature(#[source] ssh_key::Error),
    /// The security key was not touched for the signature.
    #[error("the token was signed without a touch of the security key")]
    Untouched,
    /// The claims cannot be parsed.
    #[error("the claims of the token are wrong")]
    Claims(#[source] serde_json::Error),
    /// The claims list an unknown command.
    #[error("the token names {0:?}, which is not a command")]
    Command(String),
    /// The key belongs to another Tenant now.
    #[error("the token is for another Tenant than the owner of its key")]
    Tenant,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token expires too late.
    #[error("the token is valid for too long: at most {} hours from now", .0.as_secs() / 3600)]
    Lasting(Duration),
}

/// Requirements for the tokens of this host.
#[derive(Clone, Debug)]
pub struct TokenRules {
    /// Name of this host.
    pub host: String,
    /// Longest time until a token may expire, from now.
    pub longest: Duration,
}

/// A parsed token that is not verified yet.
#[derive(Debug)]
pub struct Token {
    claims: Vec<u8>,
    signature: SshSig,
}

/// The permissions of a verified token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    commands: BTreeSet<String>,
    id: TokenId,
}

/// Identifies a token in logs without containing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenId {
    /// The first bytes of the SHA-256 of its claims, in hex.
    pub digest: String,
    /// Expiration time in seconds since 1970.
    pub expires: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    /// The Tenant. If the key moves to another Tenant, the token becomes invalid.
    tenant: String,
    commands: BTreeSet<String>,
    /// Expiration time in seconds since 1970, as in a JWT.
    exp: i64,
}

impl TokenRules {
    /// Returns the namespace that signatures must have.
    pub fn namespace(&self) -> String {
        format!("yoke@{}", self.host)
    }
}

impl Permit {
    /// Returns whether the token permits a command.
    pub fn allows(&self, command: &str) -> bool {
        self.commands.contains(command)
    }

    /// Returns the id of the token, for logs.
    pub fn id(&self) -> &TokenId {
        &self.id
    }
}

impl TokenError {
    /// Returns the reason as a label for logs and metrics.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Form | Self::Unreadable(_) => "unreadable",
            Self::Namespace(_) => "namespace",
            Self::UnknownKey(_) => "unknown_key",
            Self::Signature(_) | Self::Untouched => "signature",
            Self::Claims(_) | Self::Command(_) => "claims",
            Self::Tenant => "tenant",
            Self::Expired => "expired",
            Self::Lasting(_) => "lasting",
        }
    }
}

impl Token {
    /// Parses a token from untrusted text.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let body = text.strip_prefix(PREFIX).filter(|_| text.len() <= TOKEN_MAX);
        let (claims, signature) = body.and_then(|body| body.split_once('.')).ok_or(TokenError::Form)?;
        let decode = |part: &str| STANDARD.decode(part).map_err(|_| TokenError::Form);
        let (claims, signature) = (decode(claims)?, decode(signature)?);
        let mut reader = signature.as_slice();
        let signature = SshSig::decode(&mut reader).map_err(TokenError::Unreadable)?;
        if !reader.is_finished() || signature.version() != SshSig::VERSION {
            return Err(TokenError::Form);
        }
        Ok(Self { claims, signature })
    }

    /// Returns the fingerprint of the key that the token claims as its signer.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.key())
    }

    /// Verifies the token for the Tenant that owns its key, at `now`. Returns its permissions.
    pub fn verify(&self, rules: &TokenRules, tenant: &str, now: Timestamp) -> Result<Permit, TokenError> {
        let namespace = rules.namespace();
        if self.signature.namespace() != namespace {
            return Err(TokenError::Namespace(namespace));
        }
        self.key()
            .verify(&namespace, &self.claims, &self.signature)
            .map_err(TokenError::Signature)?;
        if !self.is_touched() {
            return Err(TokenError::Untouched);
        }
        let claims: Claims = serde_json::from_slice(&self.claims).map_err(TokenError::Claims)?;
        if claims.tenant != tenant {
            return Err(TokenError::Tenant);
        }
        let left = claims.exp.saturating_sub(now.as_second());
        if left <= 0 {
            return Err(TokenError::Expired);
        }
        if Duration::from_secs(left.unsigned_abs()) > rules.longest {
            return Err(TokenError::Lasting(rules.longest));
        }
        if let Some(name) = claims.commands.iter().find(|name| !is_command(name)) {
            return Err(TokenError::Command(name.chars().take(32).collect()));
        }
        Ok(Permit {
            commands: claims.commands,
            id: TokenId {
                digest: digest(&self.claims),
                expires: claims.exp,
            },
        })
    }

    fn key(&self) -> PublicKey {
        PublicKey::from(self.signature.public_key().clone())
    }

    /// Returns whether the user touched the security key; true for other keys. The library verifies
    /// the signature, but not this flag.
    fn is_touched(&self) -> bool {
        match self.signature.public_key().algorithm() {
            Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256 => {
                let bytes = self.signature.signature_bytes();
                let flags = bytes.len().checked_sub(TRAILER).and_then(|at| bytes.get(at));
                flags.is_some_and(|flags| flags & TOUCHED != 0)
            }
            _ => true,
        }
    }
}

fn digest(claims: &[u8]) -> String {
    let bytes = HashAlg::Sha256.digest(claims);
    bytes.iter().take(DIGEST).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
