//! The host cluster's API: everything that controllers share to read and write it.
//!
//! ```text
//!  host API ──watch──▶ cache (compact_store) ──▶ triggers ──▶ queues of the controllers
//!           ◀──apply── comparison ◀── a controller's wanted objects
//!           ◀─events── a controller's conditions
//! ```

pub mod apply;
pub mod cache;
pub mod certificate_authority;
pub mod compact_store;
pub mod comparison;
pub mod events;
mod host;
pub mod root_ca;
pub mod secrets;
pub(crate) mod triggers;

pub use crate::host_api::host::Host;
