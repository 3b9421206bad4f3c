//! What the tests of `yoke-ingress-xds` have: host objects, certificates, the real Envoy. What goes wrong there ends the run.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a part is used, and they are helpers of tests"
)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[path = "../../ingress-xds/tests/ingress/support/envoy.rs"]
pub(crate) mod envoy;
#[path = "../../ingress-xds/src/fixtures.rs"]
pub(crate) mod fixtures;
#[path = "../../ingress-xds/tests/ingress/support/pki.rs"]
pub(crate) mod pki;

/// The names by which the two processes know each other.
pub(crate) mod xds {
    pub(crate) const SERVER_NAME: &str = "yoke-ingress-xds.yoke-system.svc";
    pub(crate) const CLIENT_NAME: &str = "envoy.yoke-system.svc";
}

/// How long may be waited for what is not measured, or takes this long with ten thousand clusters.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Waits until `check` gives something, and says how long it took.
///
/// # Panics
///
/// If it is not given within the limit.
pub(crate) async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut check: impl AsyncFnMut() -> Option<T>,
) -> (T, Duration) {
    let begun = Instant::now();
    loop {
        if let Some(found) = check().await {
            return (found, begun.elapsed());
        }
        assert!(begun.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
