//! The operator: brings Tenants and Clusters on the host to what their specs ask for.
//!
//! ```text
//!  config file, NATS secret ─▶ run ─┬─ watches (cache) ─▶ triggers ─┬─▶ tenant::reconcile ──▶ namespace, role
//!                                   │                               └─▶ cluster::reconcile ─▶ certificates, store, control
//!                                   ├─ /metrics /livez /readyz                                plane, ingress, kubeconfig
//!                                   └─ NATS connection ─▶ all Clusters again when it comes back
//! ```
//!
//! It holds no state of its own: what it draws once (keys) it keeps in Secrets, and everything else follows from objects.

pub mod apply;
pub mod cache;
pub mod cluster;
pub mod conditions;
pub mod config;
pub mod context;
pub mod error;
pub mod events;
pub mod metrics;
pub mod nats;
pub mod network;
pub mod quantity;
pub mod run;
mod security;
pub mod tenant;
pub mod tenant_api;
mod triggers;

pub use error::ReconcileError;
pub use run::{Arguments, run};

/// An error with everything that caused it, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let refusal = refusal_of(cause);
        let cause_text = refusal.map_or_else(|| cause.to_string(), |status| status.message.clone());
        // Some libraries print their source as part of themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source().filter(|_| refusal.is_none());
    }
    text
}

/// The words of an API server; the library's text around them repeats them twice.
fn refusal_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a kube::core::Status> {
    let boxed = error.downcast_ref::<Box<kube::Error>>().map(|error| &**error);
    match boxed.or_else(|| error.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("doing something")]
    struct Outer(#[source] Box<kube::Error>);

    #[test]
    fn an_api_servers_words_are_said_once() {
        let status = kube::core::Status {
            message: "pods \"a\" not found".into(),
            code: 404,
            ..Default::default()
        };
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(chain(&error), "doing something: pods \"a\" not found");
    }
}
