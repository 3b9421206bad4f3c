//! What somebody signed with their SSH key for a program to show in their place. Pure: time comes in as an argument.
//!
//! ```text
//!  yoke-api1.<base64 of the claims>.<base64 of the signature, as `ssh-keygen -Y sign` makes it>
//!            {"tenant": "acme", "commands": ["clusters"], "exp": 1767225600}
//! ```
//!
//! Guarantees: a token is good for this host alone (its name is in the signature's namespace), for the Tenant and the commands that
//! it names and until it says; whose its key is, the directory says with each use. Nothing of it is believed before its signature
//! is verified.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use russh::keys::ssh_key::encoding::{Decode as _, Reader as _};
use russh::keys::ssh_key::{self, Algorithm, SshSig};
use russh::keys::{HashAlg, PublicKey};
use serde::Deserialize;

use crate::command;
use crate::directory::fingerprint;

/// What a token begins with: its form, should there be another one.
const PREFIX: &str = "yoke-api1.";
/// Characters of the longest token that is read. Claims and a signature have some hundreds.
const TOKEN_MAX: usize = 8192;
/// The flag of a security key by which it says that it was touched (PROTOCOL.u2f of OpenSSH).
const TOUCHED: u8 = 1;
/// What such a key adds to its signature: flags, and a counter of four bytes.
const TRAILER: usize = 5;
/// Bytes of a digest by which logs tell tokens apart.
const DIGEST: usize = 8;

/// A token is of no use here.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// There is none.
    #[error("a token is missing")]
    Missing,
    /// It is something else, too long, or not whole.
    #[error("this is no token: it is `{PREFIX}`, the claims in base64, a dot, and their signature in base64")]
    Form,
    /// The signature is none.
    #[error("reading the signature of the token")]
    Unreadable(#[source] ssh_key::Error),
    /// It was signed for something else.
    #[error("the token is not for this host: its signature must have the namespace {0}")]
    Namespace(String),
    /// Nobody has the key.
    #[error("no Tenant of this host has the key {0}, by which the token is signed")]
    UnknownKey(String),
    /// The signature is not of what is claimed.
    #[error("the signature of the token is wrong")]
    Signature(#[source] ssh_key::Error),
    /// The security key did not say that somebody touched it.
    #[error("the token was signed without a touch of the security key")]
    Untouched,
    /// What is claimed cannot be read.
    #[error("the claims of the token are wrong")]
    Claims(#[source] serde_json::Error),
    /// It allows what there is not.
    #[error("the token names {0:?}, which is no command")]
    Command(String),
    /// The key is another Tenant's by now.
    #[error("the token is for another Tenant than the one that has its key")]
    Tenant,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// Its time is too long.
    #[error("the token holds for too long: at most {} hours from now", .0.as_secs() / 3600)]
    Lasting(Duration),
}

/// What tokens must be for this host.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Name of this host.
    pub host: String,
    /// How long one may hold from now.
    pub longest: Duration,
}

/// A token that was read, and is not believed.
#[derive(Debug)]
pub struct Token {
    claims: Vec<u8>,
    signature: SshSig,
}

/// What a token that is believed lets do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    commands: BTreeSet<String>,
    mark: Mark,
}

/// What logs tell a token by, which is not the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The beginning of the SHA-256 of its claims, in hex.
    pub digest: String,
    /// Until when it holds, in seconds since 1970.
    pub expires: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Claims {
    /// A key that is given to another Tenant takes no tokens along.
    tenant: String,
    commands: BTreeSet<String>,
    /// Seconds since 1970, as in a JWT.
    exp: i64,
}

impl Rules {
    /// The namespace of signatures.
    pub fn namespace(&self) -> String {
        format!("yoke@{}", self.host)
    }
}

impl Permit {
    /// Whether a command may be given.
    pub fn allows(&self, command: &str) -> bool {
        self.commands.contains(command)
    }

    /// The token that it is of.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }
}

impl TokenError {
    /// A word for logs and metrics.
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
    /// Reads a token, which may be anything.
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

    /// The fingerprint of the key that it says it is signed by.
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.key())
    }

    /// What it lets a Tenant do at `now` who has the key, if it is what it says.
    pub fn verify(&self, rules: &Rules, tenant: &str, now: Timestamp) -> Result<Permit, TokenError> {
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
        if let Some(name) = claims.commands.iter().find(|name| !command::exists(name)) {
            return Err(TokenError::Command(name.chars().take(32).collect()));
        }
        Ok(Permit {
            commands: claims.commands,
            mark: Mark {
                digest: digest(&self.claims),
                expires: claims.exp,
            },
        })
    }

    fn key(&self) -> PublicKey {
        PublicKey::from(self.signature.public_key().clone())
    }

    /// Whether somebody touched the security key, if it is one. The library verifies what the key says, and not that it says this.
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
