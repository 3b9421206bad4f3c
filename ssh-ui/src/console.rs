//! Where a command's answers go: one channel of a client, who may read slowly, or not at all. An adapter of the SSH library.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use russh::ChannelWriteHalf;
use russh::server::Msg;
use yoke_view::plain::plain_lines;

/// The number of standard error among a channel's streams (RFC 4254, 5.2).
const STDERR: u32 = 1;

/// The server's end of a channel.
pub struct Console {
    writer: ChannelWriteHalf<Msg>,
    is_terminal: bool,
    limit: Duration,
    stuck: AtomicBool,
}

impl Console {
    /// The end of a channel whose client takes what it is sent within `limit`, or is sent no more.
    pub fn new(writer: ChannelWriteHalf<Msg>, is_terminal: bool, limit: Duration) -> Self {
        Self {
            writer,
            is_terminal,
            limit,
            stuck: AtomicBool::new(false),
        }
    }

    /// Writes an answer, and says whether all of it could be sent.
    pub async fn put(&self, text: &str) -> bool {
        self.send(self.to_lines(text)).await
    }

    /// Whether somebody sits there, and not a program.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes for the person: an error, or progress.
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

    /// Writes bytes as they are, and says whether all of them could be sent.
    pub async fn send(&self, bytes: impl Into<Bytes>) -> bool {
        self.within(self.writer.data_bytes(bytes)).await
    }

    /// Says the exit code and closes the channel.
    pub async fn end(self, code: u32) {
        let writer = &self.writer;
        let ending = async {
            writer.exit_status(code).await?;
            writer.eof().await?;
            writer.close().await
        };
        // Of a connection that is gone there is nothing left to close.
        let _ = tokio::time::timeout(self.limit, ending).await;
    }

    /// After one piece that the client did not take there are no others.
    async fn within(&self, sending: impl Future<Output = Result<(), russh::Error>>) -> bool {
        if self.stuck.load(Ordering::Relaxed) {
            return false;
        }
        let sent = matches!(tokio::time::timeout(self.limit, sending).await, Ok(Ok(())));
        self.stuck.store(!sent, Ordering::Relaxed);
        sent
    }

    /// A terminal of the client's is in raw mode, and obeys what it is sent.
    fn to_lines(&self, text: &str) -> Vec<u8> {
        match self.is_terminal {
            true => plain_lines(text).replace('\n', "\r\n").into_bytes(),
            false => text.as_bytes().to_vec(),
        }
    }
}
