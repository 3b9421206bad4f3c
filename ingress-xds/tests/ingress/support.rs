//! A real Envoy, the real server, and servers in place of API servers, on loopback.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part, and it is not public"
)]

pub mod api;
pub mod client;
pub mod frames;
pub mod tenant;
pub mod wire;
pub mod xds;

pub use yoke_ingress_xds::test_util::{CLIENT_NAME, PATIENCE, SERVER_NAME, envoy, eventually, fixtures, loopback, pki};
