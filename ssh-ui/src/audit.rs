//! The audit log: one line for each command, each login and each refused login or token.

use std::net::IpAddr;

use crate::identity::key_registry::Identity;
use crate::identity::token::{TokenError, TokenId};

/// Maximum length of a logged command, in characters.
const COMMAND_MAX: usize = 256;
/// Prefixes of secrets that a user may paste into a command by mistake.
const SECRETS: [&str; 2] = ["yoke1.", "yoke-api1."];

/// Protocol over which a client authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SSH, with a key.
    Ssh,
    /// HTTPS, with a token that the key signed.
    Api(TokenId),
}

impl Protocol {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Ssh => "ssh",
            Self::Api(_) => "api",
        }
    }

    fn token_id(&self) -> Option<&TokenId> {
        match self {
            Self::Ssh => None,
            Self::Api(id) => Some(id),
        }
    }
}

/// A command in progress. Its line is written when it ends, or when the value is dropped before
/// that.
#[derive(Debug)]
pub struct Audit {
    identity: Identity,
    source: IpAddr,
    protocol: Protocol,
    command: String,
    ended: bool,
}

impl Audit {
    /// Starts the record of a command.
    pub fn begin(identity: &Identity, source: IpAddr, protocol: Protocol, command: &str) -> Self {
        Self {
            identity: identity.clone(),
            source,
            protocol,
            command: mask(command).chars().take(COMMAND_MAX).collect(),
            ended: false,
        }
    }

    /// Writes the line with the result. `detail` is for the host's owner.
    pub fn end(mut self, result: &'static str, detail: Option<&str>) {
        self.write(result, detail.map(mask).as_deref());
    }

    fn write(&mut self, result: &'static str, detail: Option<&str>) {
        self.ended = true;
        let id = self.protocol.token_id();
        tracing::info!(
            target: "audit",
            tenant = self.identity.tenant,
            key = self.identity.key,
            fingerprint = self.identity.fingerprint,
            source = %self.source,
            door = self.protocol.as_str(),
            token = id.map(|id| id.digest.as_str()),
            expires = id.map(|id| id.expires),
            command = self.command,
            result,
            error = detail,
            "command of a Tenant"
        );
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        if !self.ended {
            // The client disconnected, or the process ends: requests to the host may have taken
            // effect.
            self.write("abandoned", None);
        }
    }
}

/// Logs a successful login.
pub fn login(identity: &Identity, source: IpAddr) {
    tracing::info!(
        target: "audit",
        tenant = identity.tenant,
        key = identity.key,
        fingerprint = identity.fingerprint,
        source = %source,
        "login over SSH"
    );
}

/// Logs a failed login with the fingerprints of the offered keys.
pub fn refused(offered: &[String], source: IpAddr) {
    tracing::info!(target: "audit", fingerprints = offered.join(","), source = %source, "no login over SSH");
}

/// Logs a refused token.
pub fn refused_token(error: &TokenError, fingerprint: Option<&str>, source: IpAddr) {
    tracing::info!(target: "audit", fingerprint, source = %source, reason = error.as_str(), "token refused");
}

/// Replaces the secrets in a text.
fn mask(text: &str) -> String {
    let mut masked = text.to_owned();
    for prefix in SECRETS {
        let mut parts = masked.split(prefix);
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "._-+/=".contains(c));
            text += &format!("{prefix}…{rest}");
        }
        masked = text;
    }
    masked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        for (text, expected) in [
            ("revoke a-x", "revoke a-x"),
            ("revoke yoke1.eyJ_-a", "revoke yoke1.…"),
            ("revoke 'yoke1.eyJ' --json", "revoke 'yoke1.…' --json"),
            ("yoke-api1.eyJ+/w==.U1N= yoke1.e", "yoke-api1.… yoke1.…"),
            (
                "invalid value 'yoke1.eyJ' for '<NAME>': no",
                "invalid value 'yoke1.…' for '<NAME>': no",
            ),
            ("yoke1.yoke1.e yoke1.", "yoke1.…yoke1.… yoke1.…"),
            ("", ""),
        ] {
            assert_eq!(mask(text), expected, "{text}");
        }
    }
}
