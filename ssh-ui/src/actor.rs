//! Somebody who is known, and the one way on which all that they ask for goes: may they, is it written down, is it counted.

use std::net::IpAddr;
use std::sync::Arc;

use crate::Error;
use crate::audit::{Audit, Door};
use crate::command::{self, Misread, Request};
use crate::directory::Identity;
use crate::report::to_json;
use crate::server::Shared;
use crate::tenant::TenantHost;
use crate::token::Permit;

/// Somebody, at one connection.
#[derive(Clone)]
pub struct Actor {
    shared: Arc<Shared>,
    identity: Identity,
    source: IpAddr,
    /// What the token lets them do by which they came in; without one, everything.
    permit: Option<Permit>,
}

/// How it went.
pub struct Answer {
    /// They asked for JSON.
    pub json: bool,
    /// What goes to standard output, or why there is nothing.
    pub result: Result<String, Error>,
}

impl Actor {
    /// Somebody whose key was shown, and where from.
    pub fn new(shared: Arc<Shared>, identity: Identity, source: IpAddr) -> Self {
        Self {
            shared,
            identity,
            source,
            permit: None,
        }
    }

    /// The same, who may do no more than that, and is a program.
    pub fn within(self, permit: Permit) -> Self {
        Self {
            permit: Some(permit),
            ..self
        }
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// What all connections share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The host as their Tenant sees it.
    pub fn host(&self) -> Result<TenantHost, Error> {
        TenantHost::of(&self.shared.host, &self.identity.tenant)
    }

    /// Has a line carried out by `work`, once it is known what it is and that they may.
    pub async fn act<F>(&self, line: &[u8], work: impl FnOnce(Request) -> F) -> Answer
    where
        F: Future<Output = Result<String, Error>>,
    {
        let permitted = self.shared.permit(&self.identity);
        let audit = self.begin(&permitted, &String::from_utf8_lossy(line));
        let read = match self.permit {
            Some(_) => command::parse_for_program(line),
            None => command::parse(line),
        };
        let (name, json, result) = match (permitted, read) {
            (Err(error), Ok(request)) => (request.command.as_str(), request.json, Err(error)),
            (Err(error), Err(Misread::Help { json, .. } | Misread::Wrong { json, .. })) => ("none", json, Err(error)),
            (Ok(()), Ok(request)) => {
                let (name, json) = (request.command.as_str(), request.json);
                let is_allowed = self.permit.as_ref().is_none_or(|permit| permit.allows(name));
                let result = match is_allowed {
                    true => work(request).await,
                    false => Err(Error::NotPermitted(name)),
                };
                (name, json, result)
            }
            (Ok(()), Err(Misread::Help { text, json })) => {
                let result = match json {
                    true => to_json(&serde_json::json!({"help": text})).map_err(Error::Json),
                    false => Ok(text),
                };
                ("help", json, result)
            }
            (Ok(()), Err(Misread::Wrong { text, json })) => ("none", json, Err(Error::Usage(text))),
        };
        self.end(audit, name, result.as_ref().err());
        Answer { json, result }
    }

    /// Shows them the interface: `work`, if they may.
    pub async fn look<F>(&self, work: impl FnOnce() -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let permitted = self.shared.permit(&self.identity);
        let audit = self.begin(&permitted, "");
        let result = match permitted {
            Ok(()) => work().await,
            Err(error) => Err(error),
        };
        self.end(audit, "interface", result.as_ref().err());
        result
    }

    fn begin(&self, permitted: &Result<(), Error>, line: &str) -> Option<Audit> {
        // Of what comes too fast there is no line in the log, or it would fill as fast.
        match permitted {
            Err(Error::TooFast) => None,
            _ => {
                let permit = self.permit.as_ref();
                let door = permit.map_or(Door::Ssh, |permit| Door::Api(permit.mark().clone()));
                Some(Audit::begin(&self.identity, self.source, door, line))
            }
        }
    }

    /// Written before the answer, which may never be read.
    fn end(&self, audit: Option<Audit>, name: &'static str, error: Option<&Error>) {
        let word = error.map_or("ok", Error::as_str);
        self.shared.metrics.count_command(name, word);
        if let Some(audit) = audit {
            audit.end(word, error.map(Error::with_causes).as_deref());
        }
    }
}
