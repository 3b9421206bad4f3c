//! Helpers for tests of several crates that run real programs side by side.

// A failure here is a failure of the test.
#![allow(clippy::panic)]

#[cfg(feature = "dashboard")]
mod dashboard;
mod eventually;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "nats")]
pub mod nats;
pub mod page;
mod port;
mod process;

#[cfg(feature = "dashboard")]
pub use dashboard::Dashboard;
pub use eventually::{TimedOut, eventually, eventually_blocking, eventually_found, eventually_some, eventually_true};
pub use port::free_port;
pub use process::Process;
