//! Builds the objects of one Cluster from its accepted spec and its issued certificates. Pure and
//! infallible.
//!
//! ```text
//!  Accepted ──┬─▶ Issuers, Certificates (yoke-pki)          needs nothing else
//!             ├─▶ Namespace, Service, NetworkPolicy
//!  Materials ─┼─▶ Secrets of the components, kubeconfig     once certificates are issued
//!        └─▶ IssuedSummary ─▶ StatefulSet, ConfigMap of the ingress  once the Secrets and streams exist
//! ```

pub mod affinity;
pub mod arguments;
pub mod audit;
pub mod authentication;
mod blueprint;
mod components;
mod container;
mod hooks;
mod konnectivity;
mod materials;
mod names;
pub mod network_policy;
pub mod objects;
mod paths;
mod pod;
mod ports;
mod probes;
pub mod secrets;
mod start;
pub mod stateful_set;
pub mod summary;
mod template_facts;

pub use crate::cluster::resources::blueprint::Blueprint;
pub use crate::cluster::resources::materials::Materials;
pub use crate::cluster::resources::summary::{ApiAccess, IssuedSummary, Trust};

#[cfg(test)]
#[path = "resources/tests.rs"]
mod tests;
