//! The commands of the process: parse the command line, connect to NATS, and serve or repair a store.
//!
//! ```text
//! main ─► args ─┬─► run ─► role_loop: recover ─► follow ─► write ─► (replaced) recover …
//!               └─► repair
//! ```

pub mod args;
pub mod repair;
pub(crate) mod role_loop;
pub mod run;
