//! Harness for tests on the running development stack: `make up` first, then `cargo test -p yoke-e2e`.
//!
//! ```text
//!  .dev/env ──▶ Stack ──▶ host API (kube)         one Tenant per test, removed at its end
//!                     ├─▶ kubectl, kubectl-yoke   as users run them
//!                     └─▶ network namespaces      to connect from a pod, from the node, from outside
//! ```
//!
//! A test fails if Yoke's processes log warnings or errors that are not listed ([`logs`]).
//!
//! A test waits for a state and never for a time. Every wait has a timeout, and its failure reports
//! the last observation.

pub mod acknowledged;
pub mod command;
pub mod footprint;
pub mod held_watch;
pub mod host_node;
pub mod logs;
pub mod network;
pub mod operators;
pub mod process;
pub mod readme;
pub mod ssh;
pub mod stack;
pub mod tenant;
pub mod victim;
pub mod wait;
pub mod worker;
pub mod workload;

pub use command::{Output, run};
pub use host_node::HostNode;
pub use logs::Expected;
pub use stack::Stack;
pub use tenant::TenantFixture;
pub use victim::Victim;
pub use wait::{wait_for, wait_until, watch_for};
pub use worker::Worker;
pub use workload::Workload;
pub use yoke_test_support::eventually;
