//! Repairs a log that ends before acknowledged records, as after a power failure of a server that
//! acknowledges before it syncs. The writer stores the records that it remembers again, byte for
//! byte at their old sequences. If that is impossible, it stores a snapshot of the acknowledged
//! state. The snapshot keeps every process from continuing the truncated log as if nothing had been
//! lost.

use crate::log::Log;
use crate::snapshot::Messages;
use crate::writer::error::WriterError;
use crate::writer::recent::{AppendResult, append_again};
use crate::writer::task::Writer;
use std::time::Duration;
use tokio::time::{Instant, sleep};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a log must lack its end before it is repaired. Detection and this delay together take
/// less than the writer's lease. So the repair starts before a follower may take over.
const PATIENCE: Duration = Duration::from_millis(400);

impl<L: Log, M: Messages> Writer<L, M> {
    /// Stores lost records in the log again, or ends the writer.
    pub(super) async fn repair_log(&mut self) -> Result<(), WriterError> {
        let acknowledged = self.fencing.sequence;
        // A leader that was just elected may not know its own end yet.
        let deadline = Instant::now() + PATIENCE;
        let info = loop {
            match self.log.info().await {
                Ok(info) if info.last < acknowledged && Instant::now() >= deadline => break info,
                Ok(info) if info.last < acknowledged => sleep(POLL_INTERVAL).await,
                // The caller tries again.
                Ok(_) | Err(_) => return Ok(()),
            }
        };
        let last = info.last;
        tracing::error!(last, acknowledged, "The log has lost acknowledged records");
        let (acks, token) = (&mut self.acks, &mut self.token);
        match append_again(&*self.log, acks, token, &self.recent, &self.fencing, info).await {
            Ok(AppendResult::Done) => {
                tracing::warn!(acknowledged, "Stored the lost records in the log again");
                return Ok(());
            }
            Ok(AppendResult::Impossible) => {
                self.store.end_lease();
                self.background.save(&self.store, &self.fencing).await;
            }
            // A snapshot would only keep the processes of that writer from starting.
            Ok(AppendResult::Taken) => tracing::error!("Another writer started without the lost records"),
            Err(error) => {
                tracing::warn!(error = %error, "Cannot store the lost records yet; retrying");
                return Ok(());
            }
        }
        self.store.end_lease();
        Err(WriterError::Lost {
            last,
            acknowledged,
            revision: self.store.revision(),
        })
    }
}
