//! Host objects, certificates and the real Envoy for tests and measurements. Only with the feature
//! `test-util`; used by the tests of this crate and by `yoke-ingress-bench`. Failures panic.

#![allow(
    missing_docs,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "helpers of tests, in which a failure ends the test"
)]

pub mod envoy;
pub mod fixtures;
pub mod pki;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// DNS names in the certificates of this process and of Envoy.
pub const SERVER_NAME: &str = "yoke-ingress-xds.yoke-system.svc";
pub const CLIENT_NAME: &str = "envoy.yoke-system.svc";

/// Timeout for an expected event on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Repeats `check` until it returns a value. Returns the value and the elapsed time. `what`
/// completes the sentence "waited for …".
///
/// # Panics
///
/// If `check` returns no value within `limit`.
pub async fn eventually<T>(what: &str, limit: Duration, check: impl AsyncFnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    match yoke_test_support::eventually_some(what, limit, check).await {
        Ok(found) => (found, start.elapsed()),
        Err(error) => panic!("{error}"),
    }
}

/// A socket address of the loopback interface.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
