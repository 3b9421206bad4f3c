//! nats-server, started as in the tests of the operator.
#![allow(
    dead_code,
    missing_docs,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a part is used, and they are helpers of tests"
)]

#[path = "../../../operator/tests/support/mod.rs"]
mod support;

pub(crate) use support::Server;
