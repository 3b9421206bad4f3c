//! What people are shown of Clusters and Tenants, in any place where they ask: tables, ages, and what a status means to
//! somebody who waits. And what they write: times, quantities.
//!
//! ```text
//!  Cluster, Tenant ─▶ verdict: is it done, refused, or to be waited for?
//!                  ─▶ render ─▶ table ─▶ text
//! text of others ─▶ plain ─▶ text that a terminal only shows
//! ```
//!
//! Everything here is pure. Called by `kubectl yoke` and by the SSH server.

pub mod input;
pub mod plain;
pub mod render;
pub mod table;
pub mod verdict;
