//! Sleep and wake of a Cluster.
//!
//! ```text
//!            annotation, schedule, inactivity (policies)
//!                           │ recorded as a command
//!                           ▼
//!   Awake ──────────────▶ state ──▶ Asleep: no pod runs; the ingress answers with ingress_message
//!     ▲   blockers may              │
//!     │   delay it                  │ a client connects, a schedule ends, certificates must renew
//!     └─────────────────────────────┘
//! ```

pub(crate) mod blockers;
pub mod idle;
pub mod ingress_message;
pub(crate) mod policies;
pub mod schedule;
pub mod state;
