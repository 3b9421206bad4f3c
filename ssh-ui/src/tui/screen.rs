//! State of the full-screen interface: what it shows, and what a key does. Pure: the caller
//! ([`crate::tui::session`]) owns the clock, the channel and the connection to the host.
//!
//! ```text
//!  bytes ─▶ keys ─▶ Screen::press ─▶ Action: a command line, as over `ssh HOST LINE` ─▶ Screen::finish
//!  watches of Clusters and events ─▶ Screen::follow_* ─▶ draw ─▶ cells ─▶ terminal
//! ```

mod clusters;
mod draw;
mod events;
pub mod form;
pub mod keys;
mod page;
mod state;
mod text;

pub use self::draw::draw;
pub use self::state::{Action, AnswerDisplay, Screen};
