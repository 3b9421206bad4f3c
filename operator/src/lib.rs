//! The operator reconciles the Tenants and Clusters of the host with their specs.
//!
//! ```text
//!  config file ─▶ leader: the Lease; its holder acts, other operators are standby
//!    ─▶ NATS secret ─▶ run ─┬─ watches (cache) ─▶ triggers ─┬─▶ tenant::reconcile ──▶ namespace, role
//!                           │                               ├─▶ cluster::reconcile ─▶ certificates, store, control
//!                           │                               │                         plane, ingress, kubeconfig
//!                           │                               └─▶ join_token::reconcile ─▶ Secret with the join command
//!                           ├─ signer: kubelets' CSRs in tenants' clusters ─▶ certificates
//!                           ├─ reaper: Nodes there whose workers are silent ─▶ deleted
//!                           ├─ loss: lost nodes of the host ─▶ their control planes start on other nodes
//!                           ├─ /metrics /livez /readyz
//!                           └─ NATS connection ─▶ requeues all Clusters after a reconnect
//! ```
//!
//! The operator has no state of its own. It generates keys once and persists them in Secrets;
//! everything else follows from objects.

#![allow(
    unreachable_pub,
    reason = "`pub` means public within the crate: only `run` and `testing` are public outside"
)]
#![cfg_attr(
    not(feature = "testing"),
    allow(
        dead_code,
        unused_imports,
        reason = "some names exist only for tests and the benchmark"
    )
)]

mod addons;
mod app;
mod cluster;
mod config;
mod csr_signer;
mod error;
#[cfg(test)]
mod fixtures;
mod host_api;
mod host_nodes;
mod join_token;
mod leader_election;
mod metrics;
mod model;
mod nats;
mod node_reaper;
mod tenant;
mod tenant_client;
mod tenant_slots;
#[cfg(feature = "testing")]
pub mod testing;

pub use crate::app::{Arguments, run};

/// Maximum length of an error message in bytes. Parts of it may be text of a tenant's webhook,
/// which has no limit of its own.
const CHAIN_MAX: usize = 1024;

/// Formats an error with all its sources as one line of limited length.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let api_status = api_status_of(cause);
        let cause_text = api_status.map_or_else(|| cause.to_string(), |status| status.message.clone());
        // Some libraries print their source as part of themselves.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source().filter(|_| api_status.is_none());
    }
    text.truncate(text.floor_char_boundary(CHAIN_MAX));
    // A terminal would execute control characters.
    text.replace(char::is_control, " ")
}

/// The status message of an API server. kube's own text around it repeats it twice.
fn api_status_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a kube::core::Status> {
    let unboxed = error.downcast_ref::<Box<kube::Error>>().map(|error| &**error);
    match unboxed.or_else(|| error.downcast_ref::<kube::Error>()) {
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
    fn the_message_of_an_api_server_appears_once() {
        let status = kube::core::Status {
            message: "pods \"a\" not found".into(),
            code: 404,
            ..Default::default()
        };
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(chain(&error), "doing something: pods \"a\" not found");
    }

    #[test]
    fn control_characters_of_a_message_are_removed() {
        let status = kube::core::Status::failure("no:\u{1b}]52;c;eA==\u{7}\nReady\u{9b}2J", "x");
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert_eq!(chain(&error), "doing something: no: ]52;c;eA==  Ready 2J");
    }

    #[test]
    fn a_long_message_is_truncated() {
        let status = kube::core::Status::failure(&"\u{e9}".repeat(5000), "x");
        let error = Outer(Box::new(kube::Error::Api(Box::new(status))));
        assert!((CHAIN_MAX - 3..=CHAIN_MAX).contains(&chain(&error).len()));
    }
}
