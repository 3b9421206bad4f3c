//! Claims of NATS as JSON Web Tokens of version 2, signed with ed25519 nkeys (ADR-14,
//! <https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-14.md>).
//!
//! ```text
//!  operator key ──signs──▶ account claims ──▶ NATS server
//!  account key  ──signs──▶ user claims    ──▶ credentials file of a client
//! ```
//!
//! A server verifies the chain operator → account → user without asking another process. All
//! modules are pure: time and keys are arguments. The operator issues the tokens of Clusters, and
//! the development stack those of its host.

pub mod claims;
pub mod credentials;
pub mod token;

pub use crate::claims::{
    AccountClaims, AccountLimits, DeleteClaims, JetStreamLimits, NO_LIMIT, OperatorClaims, Permission, SigningKey,
    UserClaims, UserLimits, UserScope,
};
pub use crate::token::{ClaimsError, Envelope, sign, sign_sorted};
