//! The full-screen interface: its state, its drawing, and the session that connects it to a
//! channel.

pub mod screen;
pub mod session;
pub mod terminal;
