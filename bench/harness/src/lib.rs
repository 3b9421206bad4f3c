//! Parts that several benchmarks share. A benchmark is a program of its own, in a folder beside this
//! one.
//!
//! ```text
//!  sandbox: a network namespace ─▶ host: kube-apiserver on etcd, with an audit log ─▶ audit: counts requests
//!                               └▶ tenants: the API servers of all clusters
//!  usage, disk, metrics, times: measure ─▶ table, targets: print
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the tables are the result")]

pub mod audit;
pub mod clusters;
pub mod disk;
pub mod host;
pub mod metrics;
pub mod sandbox;
pub mod table;
pub mod targets;
pub mod tenants;
pub mod times;
pub mod usage;

pub use crate::host::Host;
pub use crate::table::Table;
pub use crate::times::Times;
pub use crate::usage::{Peak, Usage};
