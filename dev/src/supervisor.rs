//! A small process supervisor, because there is no init system to rely on.
//!
//! ```text
//!   yoke-dev up ──control socket, a line of JSON each way──▶ daemon ──▶ one runner per service ──▶ process
//!                                                              │            │
//!                                         .dev/run/services/*.json     .dev/run/pids/*.json
//! ```
//!
//! Each node has one. The daemon runs inside the node's network namespace and control group, and
//! its processes inherit both. It persists the services that it runs, and their processes (pid and
//! start time). So the next daemon takes over the processes of a killed one. It sends signals only
//! to these processes.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub mod client;
pub mod daemon;
mod probe;
mod process;
mod runner;

/// A process to keep running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Name of the service, and of its log.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables, in addition to `PATH`.
    pub env: BTreeMap<String, String>,
    /// Health check.
    pub probe: Probe,
    /// Hash of the files that the process reads at its start. A change restarts the process.
    pub stamp: String,
}

impl Service {
    /// Whether a process that was started for `other` can serve this service too. A changed probe
    /// needs no restart.
    fn same_process(&self, other: &Self) -> bool {
        (&self.name, &self.command, &self.env, &self.stamp) == (&other.name, &other.command, &other.env, &other.stamp)
    }
}

/// Health check of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// An HTTP GET without TLS must return 200.
    Http {
        /// Host and port, inside the node's namespace.
        address: String,
        /// Path and query.
        path: String,
    },
    /// A command must succeed.
    Command(Vec<String>),
}

/// Requests to the daemon.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Keep this service running. Restart it if it differs from the running service of the same
    /// name.
    Keep(Box<Service>),
    /// Stop and start a service.
    Restart(String),
    /// Report every service.
    Status {
        /// Whether to run the health checks. If false, only processes are checked.
        probe: bool,
    },
    /// Exit, and leave the processes to the next daemon.
    HandOver,
    /// Stop all services at the same time, by force after two seconds, and exit.
    Shutdown,
}

/// The daemon's reply.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request succeeded.
    Done,
    /// Reply to [`Request::Status`].
    Status(Vec<ServiceStatus>),
    /// The request failed, with the reason.
    Refused(String),
}

/// State of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// Name of the service.
    pub name: String,
    /// Pid of its process, while it runs.
    pub pid: Option<u32>,
    /// Number of restarts by this daemon.
    pub restarts: u32,
    /// `None` if the service is healthy, else the reason.
    pub problem: Option<String>,
    /// Path of its log.
    pub log: PathBuf,
}
