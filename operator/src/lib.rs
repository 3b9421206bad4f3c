//! The operator: brings Tenants and Clusters on the host to what their specs ask for.
//!
//! ```text
//!  config file, NATS secret ─▶ run ─┬─ watches (cache) ─▶ triggers ─┬─▶ tenant::reconcile ──▶ namespace, role, NATS account
//!                                   │                               └─▶ cluster::reconcile ─▶ certificates, store, control
//!                                   ├─ /metrics /livez /readyz                                plane, ingress, kubeconfig
//!                                   └─ NATS connection ─▶ all Tenants again when it comes back
//! ```
//!
//! It holds no state of its own: what it draws once (keys) it keeps in Secrets, and everything else follows from objects.

pub mod apply;
pub mod cache;
pub mod cluster;
pub mod conditions;
pub mod config;
pub mod context;
pub mod events;
pub mod metrics;
pub mod nats;
pub mod network;
pub mod quantity;
pub mod run;
pub mod tenant;
pub mod tenant_api;

pub use run::{Arguments, run};

/// An error with everything that caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some libraries print their source as part of themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
