//! The host API with the permissions of one Tenant. An adapter: only this module sends requests for
//! a Tenant.
//!
//! Guarantees: every request impersonates the Tenant and uses the Tenant's namespace. The host's
//! API server checks the Tenant's own permissions, so it refuses a request for another Tenant's
//! objects (`docs/adr/0005-ssh-acts-as-the-tenant.md`).

mod host;
mod join;
mod nodes;
pub mod nodes_error;
mod progress;
mod request;
mod wait;
mod watch;

pub use self::host::TenantHost;
pub use self::join::CreatedJoinToken;
pub use self::nodes::{Node, Nodes};
pub(crate) use self::progress::PROGRESS_LINES;
pub use self::progress::Progress;
pub use self::wait::WaitTarget;
