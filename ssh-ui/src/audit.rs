//! One line in the log for each thing that somebody did, and for each one who was not let in.

use std::net::IpAddr;

use crate::directory::Identity;
use crate::token::{Mark, TokenError};

/// What is kept of a command at most, in characters.
const COMMAND_MAX: usize = 256;
/// What secrets begin with that somebody may paste where they do not belong.
const SECRETS: [&str; 2] = ["yoke1.", "yoke-api1."];

/// How somebody came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// With a key, over SSH.
    Ssh,
    /// With a token that the key signed.
    Api(Mark),
}

impl Door {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Ssh => "ssh",
            Self::Api(_) => "api",
        }
    }

    fn mark(&self) -> Option<&Mark> {
        match self {
            Self::Ssh => None,
            Self::Api(mark) => Some(mark),
        }
    }
}

/// A thing that somebody does. Its line is written when it ends, or is dropped before it did.
#[derive(Debug)]
pub struct Audit {
    identity: Identity,
    source: IpAddr,
    door: Door,
    command: String,
    ended: bool,
}

impl Audit {
    /// Somebody begins to do this.
    pub fn begin(identity: &Identity, source: IpAddr, door: Door, command: &str) -> Self {
        Self {
            identity: identity.clone(),
            source,
            door,
            command: mask(command).chars().take(COMMAND_MAX).collect(),
            ended: false,
        }
    }

    /// It ended so; `detail` is for the host's owner.
    pub fn end(mut self, result: &'static str, detail: Option<&str>) {
        self.write(result, detail.map(mask).as_deref());
    }

    fn write(&mut self, result: &'static str, detail: Option<&str>) {
        self.ended = true;
        let mark = self.door.mark();
        tracing::info!(
            target: "audit",
            tenant = self.identity.tenant,
            key = self.identity.key,
            fingerprint = self.identity.fingerprint,
            source = %self.source,
            door = self.door.as_str(),
            token = mark.map(|mark| mark.digest.as_str()),
            expires = mark.map(|mark| mark.expires),
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
            // The client went away, or this process ends: what was asked of the host may have happened.
            self.write("abandoned", None);
        }
    }
}

/// Somebody came in.
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

/// Somebody did not come in.
pub fn refused(offered: &[String], source: IpAddr) {
    tracing::info!(target: "audit", fingerprints = offered.join(","), source = %source, "no login over SSH");
}

/// A token was not believed.
pub fn refused_token(error: &TokenError, fingerprint: Option<&str>, source: IpAddr) {
    tracing::info!(target: "audit", fingerprint, source = %source, reason = error.as_str(), "token refused");
}

/// A text without the secrets in it.
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
    fn secrets_are_not_written_down() {
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
