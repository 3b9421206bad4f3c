//! Output of a command: one channel, whose client may read slowly or not at all. An adapter of the
//! SSH library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use russh::ChannelWriteHalf;
use russh::server::Msg;
use yoke_view::plain::plain_lines;

/// Number of standard error among the streams of a channel (RFC 4254, 5.2).
const STDERR: u32 = 1;

/// The server's end of a channel.
pub struct ChannelOutput {
    writer: ChannelWriteHalf<Msg>,
    is_terminal: bool,
    limit: Duration,
    stuck: AtomicBool,
}

impl ChannelOutput {
    /// Creates the output for a channel. If the client does not read a piece within `limit`, no
    /// further piece is sent.
    pub fn new(writer: ChannelWriteHalf<Msg>, is_terminal: bool, limit: Duration) -> Self {
        Self {
            writer,
            is_terminal,
            limit,
            stuck: AtomicBool::new(false),
        }
    }

    /// Writes an answer to standard output. Returns whether all of it was sent.
    pub async fn put(&self, text: &str) -> bool {
        self.send(self.to_lines(text)).await
    }

    /// Returns whether the client has a terminal, so that a person reads the output.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes a message for the user to standard error: an error or progress.
    pub async fn say(&self, text: &str) -> bool {
        let text = &plain_lines(text);
        match self.is_terminal {
            true => self.put(text).await,
            false => {
                let bytes = self.to_lines(text);
                self.within(self.writer.extended_data_bytes(STDERR, bytes)).await
            }
        }
    }

    /// Writes bytes unchanged. Returns whether all of them were sent.
    pub async fn send(&self, bytes: impl Into<Bytes>) -> bool {
        self.within(self.writer.data_bytes(bytes)).await
    }

    /// Sends the exit code and closes the channel.
    pub async fn end(self, code: u32) {
        let writer = &self.writer;
        let ending = async {
            writer.exit_status(code).await?;
            writer.eof().await?;
            writer.close().await
        };
        // If the connection is closed, nothing is left to close.
        let _ = tokio::time::timeout(self.limit, ending).await;
    }

    /// Sends one piece within the limit. After one timeout all further pieces are dropped.
    async fn within(&self, sending: impl Future<Output = Result<(), russh::Error>>) -> bool {
        if self.stuck.load(Ordering::Relaxed) {
            return false;
        }
        let sent = matches!(tokio::time::timeout(self.limit, sending).await, Ok(Ok(())));
        self.stuck.store(!sent, Ordering::Relaxed);
        sent
    }

    /// A client's terminal is in raw mode and would execute control sequences.
    fn to_lines(&self, text: &str) -> Vec<u8> {
        match self.is_terminal {
            true => plain_lines(text).replace('\n', "\r\n").into_bytes(),
            false => text.as_bytes().to_vec(),
        }
    }
}
