//! Sleep and wake of a Cluster: one state machine.
//!
//! ```text
//!                     Annotation, Schedule, SleepUnused
//!      ┌──────────────────────────────────────────────────────────┐
//!      │                                                          ▼
//!    Awake ◀── the API answers ── Waking ◀── a client connects, Asleep until a client connects
//!      │                            ▲        Annotation, Schedule,     │
//!      │                            │        WakeForNodeCertificates         │ spec.state: Asleep
//!      │ spec.state: Asleep         │ spec.state: Running              │ (WithdrawSleep)
//!      └───────────────────▶ Asleep by its owner ◀─────────────────────┘
//! ```
//!
//! The names on the arrows are those of `crate::cluster::requests::Request`. The state of a Cluster follows
//! from its spec and from two times in its status (`state`): the request to sleep, which `record` writes, and
//! the request to wake, which the ingress writes. `Waking` exists at the ingress only (`ingress_message`).
//!
//! | module | what it does |
//! |---|---|
//! | `state` | the states and their transitions, pure |
//! | `inputs` | reads what may send a Cluster to sleep |
//! | `idle`, `schedule` | decide when it is unused, and when a schedule is due; pure |
//! | `blockers` | probes what prevents sleep |
//! | `record` | writes a request into the status |
//! | `ingress_message` | what the ingress answers while no API is available |

pub(crate) mod blockers;
pub mod idle;
pub(crate) mod ingress_message;
pub(crate) mod inputs;
pub(crate) mod record;
pub mod schedule;
pub mod state;
