//! What tests of several crates need to run real programs beside each other on one machine.

mod port;

pub use port::free_port;
