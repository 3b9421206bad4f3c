//! A real Envoy, our real server, and tenants that stand for API servers, on loopback.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part, and it is not public"
)]

pub mod api;
pub mod client;
pub mod envoy;
#[path = "../../src/fixtures.rs"]
pub mod fixtures;
pub mod frames;
pub mod pki;
pub mod tenant;
pub mod wire;
pub mod xds;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long something that should happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `check` gives something, and says how long it took.
pub async fn eventually<T>(what: &str, limit: Duration, mut check: impl AsyncFnMut() -> Option<T>) -> (T, Duration) {
    let start = Instant::now();
    loop {
        if let Some(found) = check().await {
            return (found, start.elapsed());
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
