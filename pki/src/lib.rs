//! Certificates of a tenant cluster: which ones it needs, which CA signs and which client trusts
//! them, and how to read and verify issued ones.
//!
//! ```text
//!  ClusterFacts ─plan─▶ Issuers, Certificates in yoke-pki ─(cert-manager)─▶ Secrets
//!                         │                                        │
//!                         └─ Leaf.destination ◀──── copied by the operator, checked by `inspect`
//!  CA certificates ─bundle─▶ trust bundles ─┬─▶ files of the control plane, the ingress
//!                                           └─kubeconfig─▶ tenants, controllers
//! ```
//!
//! No I/O and no clock: callers pass `now`. Only [`service_account`] uses randomness, to generate a
//! key. Callers are the operator (all modules), the ingress ([`inspect`]) and the end-to-end tests.

pub mod bundle;
pub mod cert_manager;
#[cfg(test)]
mod fixtures;
pub mod inspect;
pub mod kubeconfig;
pub mod plan;
pub mod request;
pub mod service_account;

pub use bundle::Bundle;
pub use inspect::ParsedCertificate;
pub use kubeconfig::Kubeconfig;
pub use plan::{ClusterFacts, Plan};
pub use request::ParsedRequest;
pub use service_account::ServiceAccountKey;
