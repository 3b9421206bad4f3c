//! An SSH server for Tenants, who authenticate with their SSH keys: `ssh HOST clusters`,
//! `ssh HOST create NAME`, `scp HOST:NAME.kubeconfig .`
//!
//! ```text
//!  ssh client  ─▶ ssh: server, limits ─▶ connection ─▶ whose key? (identity)
//!                                         ├─▶ commands::exec ─┐
//!                                         ├─▶ tui ────────────┼─▶ commands: session ─▶ parse ─▶ execute ─▶ tenant ─▶ host API
//!                                         └─▶ ssh::sftp ──────────────────────────────────────────────────▶          (as the Tenant)
//!  HTTP client ─▶ api, limits ─▶ token: whose signature? ─────┘
//! ```
//!
//! Every request for a Tenant impersonates that Tenant at the host API ([`tenant`],
//! `docs/adr/0005-ssh-acts-as-the-tenant.md`), so the host API server keeps it from the objects of
//! other Tenants. Pure modules: [`commands::parse`], [`commands::report`],
//! [`identity::key_registry`], [`identity::token`], [`limits::admission`], [`ssh::banner`],
//! [`tui::screen`], [`tui::terminal`]. The others are adapters.

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
