//! The channel for the progress lines of a command.

use tokio::sync::mpsc;

/// Progress lines of a command for the user; the sender waits while the queue is full.
pub type Progress = mpsc::Sender<String>;

/// Capacity of the queue of progress lines.
pub(crate) const PROGRESS_LINES: usize = 16;
