//! A stream of messages in memory.

use super::Messages;
use crate::log::LogError;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug, Default)]
struct Inner {
    last: u64,
    messages: BTreeMap<u64, (String, Bytes)>,
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
}

impl Messages for MemoryMessages {
    async fn store(&self, subject: String, payload: Bytes) -> Result<u64, LogError> {
        tokio::task::yield_now().await;
        let mut inner = self.lock();
        inner.last += 1;
        let sequence = inner.last;
        inner.messages.insert(sequence, (subject, payload));
        Ok(sequence)
    }

    async fn last(&self, subject: &str) -> Result<Option<(u64, Bytes)>, LogError> {
        let messages = &self.lock().messages;
        let newest = messages.iter().rev().find(|(_, (found, _))| found == subject);
        Ok(newest.map(|(sequence, (_, payload))| (*sequence, payload.clone())))
    }

    async fn batch(&self, from: u64, subject: &str) -> Result<Vec<(u64, Bytes)>, LogError> {
        tokio::task::yield_now().await;
        let messages = &self.lock().messages;
        let found = messages.range(from..).filter(|(_, (found, _))| found == subject);
        Ok(found
            .map(|(sequence, (_, payload))| (*sequence, payload.clone()))
            .collect())
    }

    async fn purge_below(&self, sequence: u64) -> Result<(), LogError> {
        self.lock().messages.retain(|at, _| *at >= sequence);
        Ok(())
    }
}
