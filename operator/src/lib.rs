//! The operator: brings Tenants and Clusters on the host to what their specs ask for.
//!
//! ```text
//!  config file ─▶ leader: the Lease, by which one operator acts and others stand by
//!    ─▶ NATS secret ─▶ run ─┬─ watches (cache) ─▶ triggers ─┬─▶ tenant::reconcile ──▶ namespace, role
//!                           │                               ├─▶ cluster::reconcile ─▶ certificates, store, control
//!                           │                               │                         plane, ingress, kubeconfig
//!                           │                               └─▶ join_token::reconcile ─▶ what a worker joins by
//!                           ├─ signer: requests of kubelets in tenants' clusters ─▶ certificates
//!                           ├─ reaper: Nodes there whose workers fell silent ─▶ removed
//!                           ├─ loss: machines of the host ─▶ lost: their control planes start on others
//!                           ├─ /metrics /livez /readyz
//!                           └─ NATS connection ─▶ all Clusters again when it comes back
//! ```
//!
//! It holds no state of its own: what it draws once (keys) it keeps in Secrets, and everything else follows from objects.

pub mod addons;
pub mod apply;
pub mod cache;
pub mod cluster;
pub mod conditions;
pub mod config;
pub mod context;
pub mod error;
pub mod events;
pub mod join_token;
pub mod leader;
pub mod ledger;
pub mod loss;
pub mod metrics;
pub mod nats;
pub mod network;
pub mod notice;
pub mod quantity;
mod rbac;
pub mod reaper;
pub mod run;
mod security;
pub mod signer;
pub mod slots;
pub mod tenant;
pub mod tenant_api;
mod triggers;
mod upgrade;

pub use error::ReconcileError;
pub use run::{Arguments, run};

/// Bytes of an error that are told: parts of it may be the words of a tenant's webhook.
const CHAIN_MAX: usize = 1024;

/// An error with everything that caused it, in one line that has an end.
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
    text.truncate(text.floor_char_boundary(CHAIN_MAX));
    // A terminal would obey them.
    text.replace(char::is_control, " ")
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

    #[test]
    fn a_servers_words_are_no_orders_to_a_terminal() {
        let status = kube::core::Status::failure("no:\u{1b}]52;c;eA==\u{7}\nReady\u{9b}2J", "x");
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(chain(&error), "doing something: no: ]52;c;eA==  Ready 2J");
    }

    #[test]
    fn a_servers_words_have_an_end() {
        let status = kube::core::Status::failure(&"\u{e9}".repeat(5000), "x");
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert!((CHAIN_MAX - 3..=CHAIN_MAX).contains(&chain(&error).len()));
    }
}
