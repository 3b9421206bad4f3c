//! The tenant's own cluster: its API, add-ons, workers and the addresses of its API.

pub(crate) mod addons;
pub mod endpoint_guard;
pub(crate) mod konnectivity;
pub(crate) mod probe;
pub(crate) mod worker_rollout;
pub(crate) mod workers;
