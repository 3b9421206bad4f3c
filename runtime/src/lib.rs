//! What every process of Yoke needs around its own work, and nothing of that work.
//!
//! ```text
//!  main ─▶ init_tracing, install_crypto
//!       ─▶ Supervisor::new ──▶ spawn(task) …  each holds a Drain
//!       │        └── SIGTERM, SIGINT or a dead task ─▶ Drain ─▶ tasks end ─▶ run() returns
//!       └─▶ Endpoint::bind ─▶ /metrics /livez /readyz   (served until the last task has ended)
//! ```
//!
//! Called by the `main` of each process. In come a name, an address and futures; out come log lines on standard error,
//! an HTTP endpoint and one exit result. Beside them, [`tls`]: the listener's side of TLS, [`trust()`]: the
//! other one, [`budget`]: limits on how often strangers may knock, [`clock`]: for leases, and `host_api`, by a feature: the way to the host's API.

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
