//! Repairs a log that ends before acknowledged records, as after a power failure of a server that
//! acknowledges before it syncs. The writer stores the records that it remembers again, byte for
//! byte at their old sequences. If that is impossible, it stores a snapshot of the acknowledged
//! state. The snapshot keeps every process from continuing the truncated log as if nothing had been
//! lost.

use super::pipeline::ACK_LIMIT;
use super::{Writer, WriterError};
use crate::codec;
use crate::log::{Ack, Log, LogError, LogInfo};
use crate::session::Session;
use crate::snapshot::Messages;
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

/// Bytes of records that are remembered, and the overhead of each.
const REMEMBERED: usize = 4 << 20;
const RECORD: usize = 128;
const PAUSE: Duration = Duration::from_millis(100);
/// How long a log must stay truncated before it is repaired. Together with the time of detection
/// this is well below the lease, which is all that a challenger waits that starts to read now.
const PATIENCE: Duration = Duration::from_millis(400);

/// The newest records of the log, without a gap.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    records: VecDeque<Bytes>,
    /// Sequence of the oldest record.
    first: u64,
    bytes: usize,
}

/// The outcome of storing records again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repair {
    Done,
    /// The log holds other records than those remembered.
    Impossible,
    /// A later writer started at their sequences.
    Taken,
}

impl Recent {
    pub(crate) fn push(&mut self, sequence: u64, record: Bytes) {
        if self.records.is_empty() {
            self.first = sequence;
        }
        self.bytes += record.len() + RECORD;
        self.records.push_back(record);
        while self.bytes > REMEMBERED {
            let Some(oldest) = self.records.pop_front() else { break };
            self.bytes -= oldest.len() + RECORD;
            self.first += 1;
        }
    }

    fn get(&self, sequence: u64) -> Option<&Bytes> {
        let at = sequence.checked_sub(self.first)?;
        self.records.get(usize::try_from(at).ok()?)
    }
}

impl<L: Log, M: Messages> Writer<L, M> {
    /// Stores lost records in the log again, or ends the writer.
    pub(super) async fn restore(&mut self) -> Result<(), WriterError> {
        let acknowledged = self.session.sequence;
        // A leader that was just elected may not know its own end yet.
        let deadline = Instant::now() + PATIENCE;
        let info = loop {
            match self.log.info().await {
                Ok(info) if info.last < acknowledged && Instant::now() >= deadline => break info,
                Ok(info) if info.last < acknowledged => sleep(PAUSE).await,
                // The caller tries again.
                Ok(_) | Err(_) => return Ok(()),
            }
        };
        let last = info.last;
        tracing::error!(last, acknowledged, "The log has lost records that were acknowledged");
        let (line, memory) = ((&mut self.acks, &mut self.token), (&self.recent, &self.session));
        match append_again(&*self.log, line, memory, info).await {
            Ok(Repair::Done) => {
                tracing::warn!(acknowledged, "They are stored again");
                return Ok(());
            }
            Ok(Repair::Impossible) => {
                self.store.end_lease();
                self.upkeep.save(&self.store, &self.session).await;
            }
            // A snapshot would only keep the processes of that writer from starting.
            Ok(Repair::Taken) => tracing::error!("Another writer began without them"),
            Err(error) => {
                tracing::warn!(error = %error, "They cannot be stored yet");
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

/// Stores the remembered records behind the log's end again, up to the end of a session.
pub(crate) async fn append_again(
    log: &impl Log,
    (acks, token): (&mut mpsc::Receiver<Ack>, &mut u64),
    (recent, session): (&Recent, &Session),
    LogInfo { first, last, .. }: LogInfo,
) -> Result<Repair, LogError> {
    // An empty log has nothing to compare; its earlier records are in a snapshot.
    if last >= first.max(1) {
        let found = log.get(last).await?;
        if found.is_none() || found.as_ref() != recent.get(last) {
            return Ok(judge(found, session));
        }
    }
    for sequence in last + 1..=session.sequence {
        let Some(record) = recent.get(sequence).cloned() else {
            return Ok(Repair::Impossible);
        };
        *token += 1;
        log.publish(*token, record.clone(), sequence - 1).await?;
        let deadline = Instant::now() + ACK_LIMIT;
        while let Ok(Some(ack)) = timeout_at(deadline, acks.recv()).await {
            if ack.token == *token {
                break;
            }
        }
        match log.get(sequence).await? {
            Some(found) if found == record => {}
            None => return Err(LogError::Timeout),
            found => return Ok(judge(found, session)),
        }
    }
    Ok(Repair::Done)
}

/// Classifies a record in the log that differs from the remembered one.
fn judge(found: Option<Bytes>, session: &Session) -> Repair {
    let record = found.and_then(|bytes| codec::decode(&bytes).ok());
    match record {
        Some(record) if record.header.cluster == session.cluster && record.header.epoch > session.epoch => {
            Repair::Taken
        }
        _ => Repair::Impossible,
    }
}
