//! Watch caches of the host API: one watch per kind, held in memory. Each event also triggers
//! reconciliations.
//!
//! ```text
//!  host API ─watch─▶ Store or CompactStore (read by reconciliations) ─▶ WatchRouter ─▶ Controllers of Clusters, Tenants, JoinTokens
//! ```
//!
//! A trigger is sent after the store contains the change, so a reconciliation sees at least the
//! change that triggered it.
//!
//! An object that cannot be decoded is logged and left out. It does not affect the other objects of
//! its kind.

mod caches;
mod clusters;
mod decode;
mod metrics;
pub(crate) mod reserved_storage;
pub(crate) mod retention;
pub(crate) mod sink;
mod start;
mod sync;
mod triggered;
mod trim;

pub use crate::host_api::cache::caches::Caches;
pub(crate) use crate::host_api::cache::clusters::Summaries;
pub use crate::host_api::cache::clusters::{Clusters, Named};
pub use crate::host_api::cache::metrics::CacheMetrics;
pub use crate::host_api::cache::reserved_storage::{ByIdentity, Reserved};
pub use crate::host_api::cache::start::start;
pub use crate::host_api::cache::sync::SyncError;
pub use crate::host_api::cache::triggered::Triggered;
