//! An SSH server for Tenants, who authenticate with their SSH keys: `ssh HOST clusters`, `ssh HOST
//! create NAME`, `scp HOST:NAME.kubeconfig .`
//!
//! ```text
//!  ssh client ─▶ server: gate (rates, slots) ─▶ connection: directory (whose key?) ─▶ exec ──────▶ actor ─▶ command ─▶ perform ─▶ tenant ─▶ host API
//!                                                 │                ▲                  interface ──▶                                  (as the
//!                                                 └▶ sftp          └── watch of Tenants                                               Tenant)
//!  HTTP client ─▶ api: gate ─▶ token: whose signature? (directory) ────────────────────────────▶
//! ```
//!
//! Every request for a Tenant impersonates that Tenant at the host API ([`tenant`],
//! `docs/adr/0005-ssh-acts-as-the-tenant.md`), so the host API server keeps it from the objects of
//! other Tenants. Pure modules: [`command`], [`directory`], [`gate`], [`greeting`], [`report`],
//! [`screen`], [`terminal`], [`token`]. The others are adapters.

pub mod api;
pub mod arguments;
pub mod audit;
pub mod commands;
pub mod error;
pub mod identity;
pub mod limits;
pub mod metrics;
pub mod process;
pub mod shared;
pub mod ssh;
pub mod tenant;
pub mod tui;

pub use error::Error;
