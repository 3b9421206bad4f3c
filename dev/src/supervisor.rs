//! A small supervisor: there is no init system to lean on.
//!
//! ```text
//!   yoke-dev up ──control socket, a line of JSON each way──▶ daemon ──▶ one keeper a service ──▶ process
//!                                                              │            │
//!                                         .dev/run/services/*.json     .dev/run/pids/*.json
//! ```
//!
//! Each node has one. The daemon runs inside the node's network namespace and in the node's own control group, and what it
//! starts inherits both. It writes down what it was told to keep and which processes (pid and start time) it keeps, so that the next
//! daemon takes over the processes of one that was killed. It signals only those.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub mod client;
pub mod daemon;
mod keeper;
mod probe;
mod process;

/// A process to keep running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its name, which names its log.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment in addition to `PATH`.
    pub env: BTreeMap<String, String>,
    /// How to tell that it works.
    pub probe: Probe,
    /// Changes when a file that the process read at its start has changed; then it is started anew.
    pub stamp: String,
}

impl Service {
    /// Whether a process that was started for `other` serves for this one: how it is probed makes no difference to it.
    fn same_process(&self, other: &Self) -> bool {
        (&self.name, &self.command, &self.env, &self.stamp) == (&other.name, &other.command, &other.env, &other.stamp)
    }
}

/// How to tell that a service works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// An HTTP GET without TLS answers 200.
    Http {
        /// Host and port, inside the node's namespace.
        address: String,
        /// Path and query.
        path: String,
    },
    /// A command ends with success.
    Command(Vec<String>),
}

/// What is asked of the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Keep this service running; start it anew if it differs from what is kept under its name.
    Keep(Box<Service>),
    /// Stop and start a service.
    Restart(String),
    /// Report every service.
    Status {
        /// Whether to ask each one whether it works; without it only processes are looked at.
        probe: bool,
    },
    /// End, leaving the processes to the next daemon.
    HandOver,
    /// Stop every service at once, by force after two seconds, and end.
    Shutdown,
}

/// The daemon's answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// The answer to [`Request::Status`].
    Status(Vec<ServiceStatus>),
    /// Not done, and why.
    Refused(String),
}

/// How a service is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Its name.
    pub name: String,
    /// Its process, while it runs.
    pub pid: Option<u32>,
    /// How often it was started by this daemon after the first time.
    pub restarts: u32,
    /// Nothing when the probe succeeded, else what it said.
    pub problem: Option<String>,
    /// Its log.
    pub log: PathBuf,
}
