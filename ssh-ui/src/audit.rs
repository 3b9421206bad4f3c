//! One line in the log for each thing that somebody did, and for each one who was not let in.

use std::net::IpAddr;

use crate::directory::Identity;
use crate::token::TokenError;

/// What is kept of a command at most, in characters.
const COMMAND_MAX: usize = 256;

/// How somebody came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// With a key, over SSH.
    Ssh,
    /// With a token that the key signed.
    Api,
}

impl Door {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ssh => "ssh",
            Self::Api => "api",
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
            command: command.chars().take(COMMAND_MAX).collect(),
            ended: false,
        }
    }

    /// It ended so; `detail` is for the host's owner.
    pub fn end(mut self, result: &'static str, detail: Option<&str>) {
        self.write(result, detail);
    }

    fn write(&mut self, result: &'static str, detail: Option<&str>) {
        self.ended = true;
        tracing::info!(
            target: "audit",
            tenant = self.identity.tenant,
            key = self.identity.key,
            fingerprint = self.identity.fingerprint,
            source = %self.source,
            door = self.door.as_str(),
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
