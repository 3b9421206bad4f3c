//! The store's server: one account a Tenant, one user and two streams a Cluster.
//!
//! ```text
//!  Tenant  ─▶ keys (Secret) ─▶ claims ─▶ signed by the operator's signing key ─▶ $SYS.REQ.CLAIMS.UPDATE
//!  Cluster ─▶ provisioner (a user of an hour in the account, one connection) ─▶ streams KINE_<id>, KINE_SNAP_<id>
//!          └▶ user <id>, signed by the account's scoped key ─▶ credentials in the hosted namespace
//! ```
//!
//! [`claims`], [`permissions`] and [`limits`] are pure; [`server`], its connections and [`streams`] speak to NATS.

pub mod account;
pub mod claims;
mod connections;
pub mod limits;
pub mod permissions;
pub mod server;
pub mod streams;

pub use account::{AccountKeys, ClusterUser};
pub use server::{Nats, NatsError};
