//! The store's server: one account with one user and two or three streams a Cluster (`docs/adr/0006-account-per-cluster.md`).
//!
//! ```text
//!  Cluster ─▶ account, user (Secret <id>-store) ─▶ claims, signed by the operator's signing key ─▶ $SYS.REQ.CLAIMS.UPDATE
//!          ├▶ provisioner (a user of minutes in the account) ─▶ streams KINE_<id>, KINE_SNAP_<id>, KINE_SPARE_<id>
//!          └▶ user <id> ─▶ credentials in the hosted namespace
//! ```
//!
//! [`account`], [`claims`], [`permissions`] and [`limits`] are pure; [`server`] and [`streams`] speak to NATS.

pub mod account;
pub mod claims;
pub mod limits;
pub mod permissions;
pub mod server;
pub mod streams;

pub use account::{Account, ClusterUser, Size};
pub use server::{Nats, NatsError};
