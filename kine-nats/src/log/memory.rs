//! A log in memory, which can lose records and acks.

use super::{Ack, Log, LogError, LogInfo, Rejection};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;

/// What happens to the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is stored, and nobody hears of it.
    LoseAck,
    /// It is not stored, and nobody hears of it.
    LoseRecord,
    /// It is refused.
    Refuse,
    /// The stream is full.
    Full,
}

#[derive(Debug, Default)]
struct Inner {
    records: Vec<Bytes>,
    faults: VecDeque<Option<Fault>>,
    connected: bool,
}

/// The stream; one for any number of logs that write to it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    inner: Arc<Mutex<Inner>>,
}

/// One process's way to the stream.
#[derive(Debug)]
pub(crate) struct MemoryLog {
    memory: Memory,
    acks: mpsc::Sender<Ack>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                connected: true,
                ..Inner::default()
            })),
        }
    }

    pub(crate) fn open(&self) -> (MemoryLog, mpsc::Receiver<Ack>) {
        let (acks, receiver) = mpsc::channel(1024);
        (
            MemoryLog {
                memory: self.clone(),
                acks,
            },
            receiver,
        )
    }

    /// What happens to the next records, in order.
    pub(crate) fn inject(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.lock().faults.extend(faults);
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.lock().connected = connected;
    }

    pub(crate) fn push(&self, record: Bytes) {
        self.lock().records.push(record);
    }

    pub(crate) fn truncate(&self, length: usize) {
        self.lock().records.truncate(length);
    }

    pub(crate) fn records(&self) -> Vec<Bytes> {
        self.lock().records.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl MemoryLog {
    fn check(&self) -> Result<MutexGuard<'_, Inner>, LogError> {
        let inner = self.memory.lock();
        if inner.connected {
            Ok(inner)
        } else {
            Err(LogError::Disconnected)
        }
    }
}

impl Log for MemoryLog {
    async fn publish(&self, token: u64, record: Bytes, expected: u64) -> Result<(), LogError> {
        let outcome = {
            let mut inner = self.check()?;
            let fault = inner.faults.pop_front().flatten();
            let last = inner.records.len() as u64;
            match fault {
                Some(Fault::LoseRecord) => return Ok(()),
                Some(Fault::Refuse) => Err(Rejection::Other {
                    code: 503,
                    description: String::new(),
                }),
                _ if last != expected => Err(Rejection::Conflict),
                Some(Fault::Full) => Err(Rejection::Full),
                None | Some(Fault::LoseAck) => {
                    inner.records.push(record);
                    if fault.is_some() {
                        return Ok(());
                    }
                    Ok(last + 1)
                }
            }
        };
        self.acks
            .send(Ack { token, outcome })
            .await
            .map_err(|_| LogError::Disconnected)
    }

    async fn read(&self, from: u64) -> Result<Vec<(u64, Bytes)>, LogError> {
        let inner = self.check()?;
        let begin = from as usize - 1;
        Ok(inner
            .records
            .iter()
            .enumerate()
            .skip(begin)
            .map(|(at, record)| (at as u64 + 1, record.clone()))
            .collect())
    }

    async fn get(&self, sequence: u64) -> Result<Option<Bytes>, LogError> {
        Ok(self.check()?.records.get(sequence as usize - 1).cloned())
    }

    async fn info(&self) -> Result<LogInfo, LogError> {
        let last = self.check()?.records.len() as u64;
        Ok(LogInfo {
            first: 1,
            last,
            bytes: 0,
            limit: None,
        })
    }

    async fn purge(&self, _: u64) -> Result<(), LogError> {
        Ok(())
    }

    fn is_connected(&self) -> bool {
        self.memory.lock().connected
    }

    async fn reconnect(&self) {}
}
