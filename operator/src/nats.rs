//! NATS as the server of the stores. Each Cluster has an account with one user and two or three
//! streams (`docs/adr/0006-account-per-cluster.md`).
//!
//! ```text
//!  Cluster ─▶ account, user (Secret <id>-store) ─▶ claims, signed by the operator's signing key ─▶ $SYS.REQ.CLAIMS.UPDATE
//!          ├▶ provisioner (a user of the account, valid for minutes) ─▶ streams KINE_<id>, KINE_SNAP_<id>, KINE_SPARE_<id>
//!          └▶ user <id> ─▶ credentials in the control-plane namespace
//! ```
//!
//! [`account`], [`permissions`] and [`limits`] are pure; [`server`] and [`streams`]
//! speak to NATS.

pub mod account;
pub mod limits;
pub mod permissions;
pub mod server;
pub mod streams;

pub use crate::nats::account::{Account, ClusterUser, Size};
pub use crate::nats::server::{Nats, NatsError};
