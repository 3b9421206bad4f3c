//! Signs the certificates of kubelets, and those that tenants approve for users, in each awake
//! cluster, with its CAs in cert-manager.
//!
//! ```text
//!  successful probe of the API ─keep─▶ SignerTask: one watch per cluster and signer of CertificateSigningRequests
//!     budgets (watch) ─▶ validate ─▶ Node ─▶ JoinToken ─▶ signing budget (queue) ─▶ one use is counted ─▶ cert-manager (issue)
//!                 │                                └─ waits, or its JoinToken is not known yet   ─▶ compare ─▶ status (answer)
//!                 └─ refused: condition Failed, with a reason
//! ```
//!
//! Requests of one cluster are handled one after the other, and only while the cluster and its
//! Tenant have budget left. Until then they stay in the API server. It ends a watch that is not
//! read for long, and the next watch lists all open requests again. A requester with many requests
//! is skipped and answered later, so that it does not delay other requesters.
//!
//! Valid requests wait for the signing budget. Requests of existing nodes come before those of new
//! nodes. No use is counted before that, nor for a request that was deleted meanwhile.
//!
//! After a failure the next watch tries again. The delay doubles with each watch that ends soon.
//! After `MAX_STRIKES` such watches the cluster is not watched until the next successful probe of
//! its API. No permit is held during a request to a tenant's API.

mod answer;
mod context;
mod error;
mod issue;
pub(crate) mod join_counter;
mod metrics;
pub(crate) mod queue;
pub mod refusal;
mod sign;
mod task;
pub mod validate;
mod watch;
mod watched;

pub use crate::csr_signer::metrics::SignerMetrics;
pub use crate::csr_signer::task::{SignerHandle, SignerTask};
