//! A log in memory, for tests. It can lose records and acks.

use crate::log::{Ack, Log, LogError, LogInfo, Rejection, ServerLoss};
use crate::snapshot::memory::MemoryMessages;
use bytes::Bytes;
use futures::future::BoxFuture;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;

/// Bytes that a stream adds to a record.
const MESSAGE: u64 = 200;

/// The fate of the next record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The record is stored, but the ack is lost.
    LoseAck,
    /// The record is not stored, and no ack arrives.
    LoseRecord,
    /// The record is rejected.
    Refuse,
    /// The stream is full.
    Full,
}

#[derive(Default)]
struct Event(Option<BoxFuture<'static, ()>>);

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Event").field(&self.0.is_some()).finish()
    }
}

#[derive(Debug, Default)]
struct Inner {
    records: Vec<Bytes>,
    /// Number of purged records; their bytes stay in `records`, so that tests can read them.
    purged: usize,
    /// Sequences of lost records that have records behind them.
    holes: BTreeSet<u64>,
    /// Size limit in bytes.
    limit: Option<u64>,
    /// The loss that the log reports.
    lost: ServerLoss,
    /// Whether a purge may move the end to a sequence that the log never had.
    purges_ahead: bool,
    info_fails: u32,
    publish_fails: u32,
    /// Size limit of one record in bytes.
    largest: Option<usize>,
    at_info: Event,
    faults: VecDeque<Option<Fault>>,
    /// Acks that are delayed; `None` while acks are sent at once.
    delayed: Option<Vec<(mpsc::Sender<Ack>, Ack)>>,
    connected: bool,
}

/// The stream, shared by any number of logs that write to it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    inner: Arc<Mutex<Inner>>,
    messages: MemoryMessages,
    spare: MemoryMessages,
}

/// The connection of one process to the stream.
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
            messages: MemoryMessages::default(),
            spare: MemoryMessages::default(),
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

    /// The stream for the snapshots of this log.
    pub(crate) fn messages(&self) -> MemoryMessages {
        self.messages.clone()
    }

    /// The stream for every other snapshot of this log.
    pub(crate) fn spare(&self) -> MemoryMessages {
        self.spare.clone()
    }

    /// Delays all acks from here on.
    pub(crate) fn delay_acks(&self) {
        self.lock().delayed = Some(Vec::new());
    }

    /// Sends the delayed acks.
    pub(crate) async fn release_acks(&self) {
        let delayed = self.lock().delayed.take();
        for (sender, ack) in delayed.unwrap_or_default() {
            let _ = sender.send(ack).await;
        }
    }

    /// Sets the fates of the next records, in order.
    pub(crate) fn inject(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.lock().faults.extend(faults);
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.lock().connected = connected;
    }

    /// Makes the next calls of `info` fail.
    pub(crate) fn fail_info(&self, times: u32) {
        self.lock().info_fails = times;
    }

    /// Makes the next calls of `publish` fail.
    pub(crate) fn fail_publish(&self, times: u32) {
        self.lock().publish_fails = times;
    }

    pub(crate) fn set_largest(&self, bytes: usize) {
        self.lock().largest = Some(bytes);
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        self.lock().limit = Some(bytes);
    }

    /// Runs `event` between the next call of `info` and its response.
    pub(crate) fn at_info(&self, event: impl Future<Output = ()> + Send + 'static) {
        self.lock().at_info.0 = Some(Box::pin(event));
    }

    /// Allows a purge beyond the end of the log, as a repair needs it.
    pub(crate) fn let_purge_ahead(&self) {
        self.lock().purges_ahead = true;
    }

    pub(crate) fn push(&self, record: Bytes) {
        self.lock().records.push(record);
    }

    pub(crate) fn purge(&self, below: u64) {
        let mut inner = self.lock();
        inner.purged = inner.purged.max(below as usize - 1);
    }

    /// Bytes of the retained records.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes()
    }

    /// Sequence of the oldest retained record.
    pub(crate) fn first(&self) -> u64 {
        self.lock().purged as u64 + 1
    }

    pub(crate) fn truncate(&self, length: usize) {
        self.lock().records.truncate(length);
    }

    /// Drops records and reports it, like a server that starts on a corrupt record.
    pub(crate) fn lose(&self, length: usize) {
        let mut inner = self.lock();
        let dropped: u64 = inner
            .records
            .drain(length..)
            .map(|record| record.len() as u64 + MESSAGE)
            .sum();
        inner.lost.bytes += dropped;
    }

    /// Loses one record and retains those behind it.
    pub(crate) fn punch(&self, sequence: u64) {
        self.lock().holes.insert(sequence);
    }

    /// Clears the reported loss, as if another server without losses answered.
    pub(crate) fn clear_loss(&self) {
        self.lock().lost = ServerLoss::default();
    }

    /// Replaces the bytes of a record. Returns the old ones.
    pub(crate) fn replace(&self, at: usize, record: Bytes) -> Bytes {
        std::mem::replace(&mut self.lock().records[at], record)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().records.len()
    }

    pub(crate) fn records(&self) -> Vec<Bytes> {
        self.lock().records.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.records
            .iter()
            .skip(self.purged)
            .map(|record| record.len() as u64 + MESSAGE)
            .sum()
    }

    fn offer(&mut self, record: Bytes, expected: u64) -> Result<u64, Rejection> {
        if self.records.len() as u64 != expected {
            return Err(Rejection::Conflict);
        }
        if self
            .limit
            .is_some_and(|limit| self.bytes() + record.len() as u64 + MESSAGE > limit)
        {
            return Err(Rejection::Full);
        }
        self.records.push(record);
        Ok(expected + 1)
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
            if inner.publish_fails > 0 {
                inner.publish_fails -= 1;
                return Err(LogError::Disconnected);
            }
            let bytes = record.len();
            if inner.largest.is_some_and(|largest| bytes > largest) {
                return Err(LogError::TooLarge { bytes });
            }
            let fault = inner.faults.pop_front().flatten();
            match fault {
                Some(Fault::LoseRecord) => return Ok(()),
                Some(Fault::Refuse) => Err(Rejection::Other {
                    code: 503,
                    description: String::new(),
                }),
                _ if inner.records.len() as u64 != expected => Err(Rejection::Conflict),
                Some(Fault::Full) => Err(Rejection::Full),
                None => inner.offer(record, expected),
                Some(Fault::LoseAck) => {
                    let _ = inner.offer(record, expected);
                    return Ok(());
                }
            }
        };
        let ack = Ack { token, outcome };
        if let Some(delayed) = &mut self.memory.lock().delayed {
            delayed.push((self.acks.clone(), ack));
            return Ok(());
        }
        self.acks.send(ack).await.map_err(|_| LogError::Disconnected)
    }

    async fn read(&self, from: u64) -> Result<Vec<(u64, Bytes)>, LogError> {
        let inner = self.check()?;
        let start = from as usize - 1;
        let hole = inner.holes.range(from..).next().copied();
        if start < inner.purged || hole == Some(from) {
            return Err(LogError::Gap(from));
        }
        let records = inner.records.iter().enumerate().skip(start);
        Ok(records
            .map(|(at, record)| (at as u64 + 1, record.clone()))
            .take_while(|(sequence, _)| hole != Some(*sequence))
            .collect())
    }

    async fn get(&self, sequence: u64) -> Result<Option<Bytes>, LogError> {
        let inner = self.check()?;
        let at = sequence as usize - 1;
        let is_retained = at >= inner.purged && !inner.holes.contains(&sequence);
        Ok(inner.records.get(at).filter(|_| is_retained).cloned())
    }

    async fn info(&self) -> Result<LogInfo, LogError> {
        let (info, event) = {
            let mut inner = self.check()?;
            if inner.info_fails > 0 {
                inner.info_fails -= 1;
                return Err(LogError::Timeout);
            }
            let info = LogInfo {
                first: inner.purged as u64 + 1,
                last: inner.records.len() as u64,
                holes: inner.holes.range(inner.purged as u64 + 1..).count() as u64,
                bytes: inner.bytes(),
                limit: inner.limit,
                lost: inner.lost,
            };
            (info, inner.at_info.0.take())
        };
        if let Some(event) = event {
            event.await;
        }
        Ok(info)
    }

    async fn purge(&self, below: u64) -> Result<(), LogError> {
        let mut inner = self.check()?;
        inner.purged = inner.purged.max(below as usize - 1);
        if inner.purges_ahead && inner.purged > inner.records.len() {
            let end = inner.purged;
            inner.records.resize(end, Bytes::new());
        }
        assert!(
            inner.purged <= inner.records.len(),
            "nothing is purged before it is stored"
        );
        Ok(())
    }

    fn is_connected(&self) -> bool {
        self.memory.lock().connected
    }

    async fn reconnect(&self) {}
}
