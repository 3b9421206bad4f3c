//! The newest records of the log in memory, and storing them again in a log that has lost them.

use crate::codec;
use crate::log::fencing::FencingState;
use crate::log::{Ack, Log, LogError, LogInfo};
use crate::writer::batch::ACK_LIMIT;
use bytes::Bytes;
use std::collections::VecDeque;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Bytes of records that are remembered, and the overhead of each.
const REMEMBERED: usize = 4 << 20;
const RECORD: usize = 128;

/// The newest records of the log, without a gap.
#[derive(Debug, Default)]
pub(crate) struct RecentRecords {
    records: VecDeque<Bytes>,
    /// Sequence of the oldest record.
    first: u64,
    bytes: usize,
}

/// The outcome of storing records again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppendResult {
    Done,
    /// The log holds other records than those remembered.
    Impossible,
    /// A later writer started at their sequences.
    Taken,
}

impl RecentRecords {
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

/// Stores the remembered records behind the log's end again, up to the position of `fencing`.
pub(crate) async fn append_again(
    log: &impl Log,
    acks: &mut mpsc::Receiver<Ack>,
    token: &mut u64,
    recent: &RecentRecords,
    fencing: &FencingState,
    LogInfo { first, last, .. }: LogInfo,
) -> Result<AppendResult, LogError> {
    // An empty log has nothing to compare; its earlier records are in a snapshot.
    if last >= first.max(1) {
        let found = log.get(last).await?;
        if found.is_none() || found.as_ref() != recent.get(last) {
            return Ok(judge(found, fencing));
        }
    }
    for sequence in last + 1..=fencing.sequence {
        let Some(record) = recent.get(sequence).cloned() else {
            return Ok(AppendResult::Impossible);
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
            found => return Ok(judge(found, fencing)),
        }
    }
    Ok(AppendResult::Done)
}

/// Classifies a record in the log that differs from the remembered one.
fn judge(found: Option<Bytes>, fencing: &FencingState) -> AppendResult {
    let record = found.and_then(|bytes| codec::decode(&bytes).ok());
    match record {
        Some(record) if record.header.cluster == fencing.cluster && record.header.epoch > fencing.epoch => {
            AppendResult::Taken
        }
        _ => AppendResult::Impossible,
    }
}
