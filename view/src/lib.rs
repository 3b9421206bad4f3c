//! Presentation of Clusters and Tenants for all user interfaces: tables, ages, and the meaning of a
//! status for a caller that waits. The crate also parses the durations and quantities that users
//! type.
//!
//! ```text
//!  Cluster, Tenant ─▶ verdict: done, refused, or still waiting?
//!                           ─▶ progress: the line to show, the refusal to tolerate
//!                  ─▶ render ─▶ table ─▶ text
//!  untrusted text  ─▶ plain ─▶ text that a terminal only displays
//! ```
//!
//! All modules are pure. `kubectl yoke` and the SSH server call them.

pub mod input;
pub mod plain;
pub mod progress;
pub mod render;
pub mod table;
pub mod verdict;
