//! What tests of several crates need to run real programs beside each other on one machine.

// What goes wrong here is the test's failure.
#![allow(clippy::panic)]

#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod page;
mod port;
mod process;

#[cfg(feature = "dashboard")]
pub use dashboard::Dashboard;
pub use port::free_port;
pub use process::Process;
