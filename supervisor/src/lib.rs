//! Keeps programs of one machine running, and owns the control groups in which they run.
//!
//! ```text
//!  caller ──Program──▶ runner ──start, SIGTERM, SIGKILL──▶ process ──▶ log file
//!         ◀──State────   │                                    │
//!                        └─ backoff while the process exits   └─ in a control group (cgroups)
//! ```
//!
//! The worker (`worker/`) and the development stack (`dev/`) use it. `yoke-dev` is compiled before everything
//! else on a new machine, so the crate depends on rustix, thiserror and tokio only.

pub mod cgroups;
pub mod log_file;
pub mod process;
pub mod programs;
pub mod runner;

pub use crate::process::Process;
pub use crate::runner::{Policy, Program, Runner, State, WhenDropped};
