//! Helpers of `yoke-ingress-xds`'s tests: host objects, certificates, the real Envoy. A failure
//! ends the run.

use std::time::Duration;

pub(crate) use yoke_ingress_xds::test_util::{CLIENT_NAME, SERVER_NAME, envoy, eventually, fixtures, loopback, pki};

/// Timeout for steps that are not measured, or take this long with ten thousand clusters.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
