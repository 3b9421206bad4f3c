//! Runs programs of the machine and of the worker, and knows this process itself.

pub(crate) mod own_status;
pub(crate) mod signals;
pub(crate) mod stdin_program;
pub(crate) mod supervise;
