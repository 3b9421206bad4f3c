//! Which certificates a tenant cluster has, who signs them, who trusts whom, and how to read what was issued.
//!
//! ```text
//!  ClusterFacts ─plan─▶ Issuers, Certificates in yoke-pki ─(cert-manager)─▶ Secrets
//!                         │                                        │
//!                         └─ Leaf.destination ◀──── copied by the operator, checked by `inspect`
//!  CA certificates ─bundle─▶ what verifiers trust ─┬─▶ files of the control plane, the ingress
//!                                                  └─kubeconfig─▶ tenants, controllers
//! ```
//!
//! No input or output, and no clock: `now` comes in. The one source of randomness is [`service_account`], which makes a key.
//! Called by the operator (everything), the ingress ([`inspect`]) and the tests of the whole system.

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
