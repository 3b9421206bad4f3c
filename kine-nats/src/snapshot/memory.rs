//! A stream of messages in memory, for tests. It can reject messages.

use crate::log::LogError;
use crate::snapshot::messages::Messages;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::sleep;

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    messages: BTreeMap<u64, (String, Bytes)>,
    /// Number of messages that are accepted before all are rejected.
    left: Option<u32>,
    /// Duration of storing a message, or of reading some.
    slowness: Duration,
    /// A message that cannot be read, and behind which none is found.
    unreadable: Option<u64>,
}

/// The stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryMessages {
    inner: Arc<Mutex<Inner>>,
}

impl MemoryMessages {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Accepts this many messages and no more; `None` accepts all.
    pub(crate) fn set_left(&self, left: Option<u32>) {
        self.lock().left = left;
    }

    /// Sets the duration of each operation.
    pub(crate) fn set_slowness(&self, slowness: Duration) {
        self.lock().slowness = slowness;
    }

    async fn work(&self) {
        let slowness = self.lock().slowness;
        tokio::task::yield_now().await;
        if !slowness.is_zero() {
            sleep(slowness).await;
        }
    }

    /// Number of messages that were ever accepted.
    pub(crate) fn stored(&self) -> u64 {
        self.lock().last
    }

    /// Subjects, with the number of messages of each.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (subject, _) in self.lock().messages.values() {
            *counts.entry(subject.clone()).or_default() += 1;
        }
        counts
    }

    /// All messages, by sequence.
    pub(crate) fn all(&self) -> Vec<(u64, Bytes)> {
        let messages = &self.lock().messages;
        messages
            .iter()
            .map(|(at, (_, payload))| (*at, payload.clone()))
            .collect()
    }

    /// Hides the newest message of a subject, like a server that finds it corrupt.
    pub(crate) fn hide(&self, subject: &str) {
        let mut inner = self.lock();
        let newest = inner.messages.iter().rev().find(|(_, (found, _))| found == subject);
        inner.unreadable = newest.map(|(sequence, _)| *sequence);
    }

    /// Replaces the payload of a message.
    pub(crate) fn replace(&self, sequence: u64, payload: Bytes) {
        self.lock().messages.get_mut(&sequence).unwrap().1 = payload;
    }

    /// Corrupts the newest message of a subject.
    pub(crate) fn corrupt(&self, subject: &str) {
        let mut inner = self.lock();
        let newest = inner.messages.values_mut().rev().find(|(found, _)| found == subject);
        newest.unwrap().1 = Bytes::from_static(b"damaged");
    }
}

impl Messages for MemoryMessages {
    async fn store(&self, subject: String, payload: Bytes) -> Result<u64, LogError> {
        self.work().await;
        let mut inner = self.lock();
        if let Some(left) = &mut inner.left {
            *left = left.checked_sub(1).ok_or(LogError::Timeout)?;
        }
        inner.last += 1;
        let sequence = inner.last;
        inner.messages.insert(sequence, (subject, payload));
        Ok(sequence)
    }

    async fn last(&self, subject: &str) -> Result<Option<(u64, Bytes)>, LogError> {
        let inner = self.lock();
        let newest = inner.messages.iter().rev().find(|(_, (found, _))| found == subject);
        let readable = newest.filter(|(sequence, _)| inner.unreadable != Some(**sequence));
        Ok(readable.map(|(sequence, (_, payload))| (*sequence, payload.clone())))
    }

    async fn first(&self, from: u64, subject: &str) -> Result<Option<(u64, Bytes)>, LogError> {
        Ok(self.batch(from, subject).await?.into_iter().next())
    }

    async fn batch(&self, from: u64, subject: &str) -> Result<Vec<(u64, Bytes)>, LogError> {
        self.work().await;
        let inner = self.lock();
        let found = inner.messages.range(from..).filter(|(_, (found, _))| found == subject);
        Ok(found
            .take_while(|(sequence, _)| inner.unreadable != Some(**sequence))
            .map(|(sequence, (_, payload))| (*sequence, payload.clone()))
            .collect())
    }

    async fn subjects(&self, filter: &str) -> Result<BTreeMap<String, u64>, LogError> {
        let prefix = filter.trim_end_matches('>');
        let mut counts = self.counts();
        counts.retain(|subject, _| subject.starts_with(prefix));
        Ok(counts)
    }

    async fn purge_below(&self, sequence: u64) -> Result<(), LogError> {
        self.lock().messages.retain(|at, _| *at >= sequence);
        Ok(())
    }

    async fn purge_subject(&self, subject: &str) -> Result<(), LogError> {
        self.lock().messages.retain(|_, (found, _)| found != subject);
        Ok(())
    }
}
