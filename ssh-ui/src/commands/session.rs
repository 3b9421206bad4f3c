//! An authenticated client. All of its commands take the same path: permission check, audit log,
//! metrics.

use std::net::IpAddr;
use std::sync::Arc;

use crate::Error;
use crate::audit::{Audit, Protocol};
use crate::commands::parse::{ParseFailure, Request, parse, parse_for_program};
use crate::commands::report::to_json;
use crate::identity::key_registry::Identity;
use crate::identity::token::Permit;
use crate::shared::Shared;
use crate::tenant::TenantHost;

/// An authenticated client of one connection.
#[derive(Clone)]
pub struct ClientSession {
    shared: Arc<Shared>,
    identity: Identity,
    source: IpAddr,
    /// Permissions of the client's API token. `None` for SSH, where every command is permitted.
    permit: Option<Permit>,
}

/// Result of a command.
pub struct Answer {
    /// The client requested JSON.
    pub json: bool,
    /// Text for standard output, or the error.
    pub result: Result<String, Error>,
}

impl ClientSession {
    /// Returns a client that has authenticated with an SSH key, connected from `source`.
    pub fn new(shared: Arc<Shared>, identity: Identity, source: IpAddr) -> Self {
        Self {
            shared,
            identity,
            source,
            permit: None,
        }
    }

    /// Restricts the client to the permissions of an API token; the client is then a program.
    pub fn restricted_to(self, permit: Permit) -> Self {
        Self {
            permit: Some(permit),
            ..self
        }
    }

    /// Returns the Tenant and the key of the client.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the state that all connections share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the host API with the permissions of the client's Tenant.
    pub fn host(&self) -> Result<TenantHost, Error> {
        TenantHost::of(&self.shared.host, &self.identity.tenant)
    }

    /// Parses a command line, checks that the client may execute it, and executes it with `work`.
    pub async fn run_command<F>(&self, line: &[u8], work: impl FnOnce(Request) -> F) -> Answer
    where
        F: Future<Output = Result<String, Error>>,
    {
        let permitted = self.shared.check_command(&self.identity);
        let audit = self.begin(&permitted, &String::from_utf8_lossy(line));
        let read = match self.permit {
            Some(_) => parse_for_program(line),
            None => parse(line),
        };
        let (name, json, result) = match (permitted, read) {
            (Err(error), Ok(request)) => (request.command.as_str(), request.json, Err(error)),
            (Err(error), Err(ParseFailure::Help { json, .. } | ParseFailure::Invalid { json, .. })) => {
                ("none", json, Err(error))
            }
            (Ok(()), Ok(request)) => {
                let (name, json) = (request.command.as_str(), request.json);
                let is_allowed = self.permit.as_ref().is_none_or(|permit| permit.allows(name));
                let result = match is_allowed {
                    true => work(request).await,
                    false => Err(Error::NotPermitted(name)),
                };
                (name, json, result)
            }
            (Ok(()), Err(ParseFailure::Help { text, json })) => {
                let result = match json {
                    true => to_json(&serde_json::json!({"help": text})).map_err(Error::Json),
                    false => Ok(text),
                };
                ("help", json, result)
            }
            (Ok(()), Err(ParseFailure::Invalid { text, json })) => ("none", json, Err(Error::Usage(text))),
        };
        self.end(audit, name, result.as_ref().err());
        Answer { json, result }
    }

    /// Runs the full-screen interface with `work`, if the client may use it.
    pub async fn run_interface<F>(&self, work: impl FnOnce() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let permitted = self.shared.check_command(&self.identity);
        let audit = self.begin(&permitted, "");
        let result = match permitted {
            Ok(()) => work().await,
            Err(error) => Err(error),
        };
        self.end(audit, "interface", result.as_ref().err());
        result
    }

    fn begin(&self, permitted: &Result<(), Error>, line: &str) -> Option<Audit> {
        // A rate-limited command has no audit line, or the log would grow at the client's rate.
        match permitted {
            Err(Error::RateLimited) => None,
            _ => {
                let permit = self.permit.as_ref();
                let protocol = permit.map_or(Protocol::Ssh, |permit| Protocol::Api(permit.id().clone()));
                Some(Audit::begin(&self.identity, self.source, protocol, line))
            }
        }
    }

    /// Writes the audit line before the answer, because the client may never read the answer.
    fn end(&self, audit: Option<Audit>, name: &'static str, error: Option<&Error>) {
        let word = error.map_or("ok", Error::as_str);
        self.shared.metrics.count_command(name, word);
        if let Some(audit) = audit {
            audit.end(word, error.map(Error::with_causes).as_deref());
        }
    }
}
