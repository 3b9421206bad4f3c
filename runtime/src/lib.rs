//! Process plumbing that all Yoke processes share: logging, shutdown, metrics, probes, TLS.
//!
//! ```text
//!  main ─▶ init_tracing, install_crypto
//!       ─▶ Supervisor::new ──▶ spawn(task) …  each task holds a Drain
//!       │        └── SIGTERM, SIGINT or a dead task ─▶ Drain ─▶ tasks end ─▶ run() returns
//!       └─▶ Endpoint::bind ─▶ /metrics /livez /readyz   (served until the last task has ended)
//! ```
//!
//! The `main` of each process calls this crate. The input is a name, an address and futures; the
//! output is log lines on standard error, an HTTP endpoint and one exit result. Other modules:
//!
//! - [`tls`]: server side of TLS.
//! - [`trust()`]: client side of TLS.
//! - [`budget`]: rate limits for unauthenticated clients.
//! - [`clock`]: time for leases.
//! - `host_api` (a feature): client of the host's API.

pub mod accept;
pub mod budget;
pub mod clock;
pub mod crypto;
pub mod drain;
#[cfg(feature = "host-api")]
pub mod host_api;
pub mod logging;
pub mod metrics;
pub mod readiness;
pub mod supervise;
pub mod tls;
pub mod trust;

pub use accept::AcceptBackoff;
pub use crypto::install_crypto;
pub use drain::{Drain, DrainTrigger};
pub use logging::init_tracing;
pub use metrics::{Endpoint, Metrics};
pub use readiness::{Check, Readiness};
pub use supervise::{Supervisor, until_signal};
pub use trust::trust;
