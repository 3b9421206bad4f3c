//! The base configuration: a ConfigMap of the host's owner with listeners, clusters, endpoints and
//! routes for Envoy. Pure; [`crate::routing`] owns it, [`crate::announce`] reports whether it is
//! served.
//!
//! ```text
//!  ConfigMap ─▶ read (restrictions) ─▶ rollback (Tracker) ─▶ Base ─▶ Snapshot ─▶ Envoy
//!                                             ▲                                    │
//!                                             └───────────── Rejection ◀───────────┘
//! ```
//!
//! A configuration is served as a whole or not at all. The previous one continues to be served if
//! the new one cannot be parsed, uses a reserved name or port, or is refused by an Envoy.
//!
//! The previous configuration is stored in memory only. A process that starts with an invalid
//! configuration therefore serves none, and each Envoy continues with the resources that it has.

mod read;
pub mod resources;
mod restrictions;
mod rollback;

pub use read::{BaseError, read};
pub use restrictions::RestrictionError;
pub use rollback::{Input, Notice, Rejection, Tracker};

#[cfg(test)]
mod tests;
