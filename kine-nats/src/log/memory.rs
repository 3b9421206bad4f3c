//! A log in memory, which can lose records and acks.

use super::{Ack, Log, LogError, LogInfo, Lost, Rejection};
use crate::snapshot::memory::MemoryMessages;
use bytes::Bytes;
use futures::future::BoxFuture;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;

/// What a stream adds to a record.
const MESSAGE: u64 = 200;

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
    /// How many records were purged; their bytes stay, for the tests to look at.
    purged: usize,
    /// Sequences of records that it has lost and holds what is behind.
    holes: BTreeSet<u64>,
    /// Bytes that are kept at most.
    limit: Option<u64>,
    /// What it says that it has lost.
    lost: Lost,
    /// Whether it may be moved to an end that it never had.
    purges_ahead: bool,
    info_fails: u32,
    publish_fails: u32,
    /// Bytes of the largest record that is taken.
    largest: Option<usize>,
    at_info: Event,
    faults: VecDeque<Option<Fault>>,
    /// Acks that are kept back; `None` while none are.
    held: Option<Vec<(mpsc::Sender<Ack>, Ack)>>,
    connected: bool,
}

/// The stream; one for any number of logs that write to it.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    inner: Arc<Mutex<Inner>>,
    messages: MemoryMessages,
    spare: MemoryMessages,
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

    /// Where the snapshots of this log are.
    pub(crate) fn messages(&self) -> MemoryMessages {
        self.messages.clone()
    }

    /// Where every other one of them may be.
    pub(crate) fn spare(&self) -> MemoryMessages {
        self.spare.clone()
    }

    /// Keeps acks back from here on.
    pub(crate) fn hold_acks(&self) {
        self.lock().held = Some(Vec::new());
    }

    /// Hands out what was kept back.
    pub(crate) async fn release_acks(&self) {
        let held = self.lock().held.take();
        for (sender, ack) in held.unwrap_or_default() {
            let _ = sender.send(ack).await;
        }
    }

    /// What happens to the next records, in order.
    pub(crate) fn inject(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.lock().faults.extend(faults);
    }

    pub(crate) fn set_connected(&self, connected: bool) {
        self.lock().connected = connected;
    }

    /// Lets the next questions for the log's ends fail.
    pub(crate) fn fail_info(&self, times: u32) {
        self.lock().info_fails = times;
    }

    /// Lets the next records not be sent.
    pub(crate) fn fail_publish(&self, times: u32) {
        self.lock().publish_fails = times;
    }

    pub(crate) fn set_largest(&self, bytes: usize) {
        self.lock().largest = Some(bytes);
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        self.lock().limit = Some(bytes);
    }

    /// What happens between the next look at the log's ends and its answer.
    pub(crate) fn at_info(&self, event: impl Future<Output = ()> + Send + 'static) {
        self.lock().at_info.0 = Some(Box::pin(event));
    }

    /// Lets it be emptied and go on behind sequences that it never had, as a repair does.
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

    /// Bytes that are kept.
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes()
    }

    /// Sequence of the oldest record that is kept.
    pub(crate) fn first(&self) -> u64 {
        self.lock().purged as u64 + 1
    }

    pub(crate) fn truncate(&self, length: usize) {
        self.lock().records.truncate(length);
    }

    /// Drops records, and says so, as a server does that was started on a damaged one.
    pub(crate) fn lose(&self, length: usize) {
        let mut inner = self.lock();
        let dropped: u64 = inner
            .records
            .drain(length..)
            .map(|record| record.len() as u64 + MESSAGE)
            .sum();
        inner.lost.bytes += dropped;
    }

    /// Loses one record, and holds what is behind it.
    pub(crate) fn punch(&self, sequence: u64) {
        self.lock().holes.insert(sequence);
    }

    /// Another server answers, which has lost nothing that it knows of.
    pub(crate) fn forget_lost(&self) {
        self.lock().lost = Lost::default();
    }

    /// Puts something else in the place of a record. Answers what was there.
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
        if let Some(held) = &mut self.memory.lock().held {
            held.push((self.acks.clone(), ack));
            return Ok(());
        }
        self.acks.send(ack).await.map_err(|_| LogError::Disconnected)
    }

    async fn read(&self, from: u64) -> Result<Vec<(u64, Bytes)>, LogError> {
        let inner = self.check()?;
        let begin = from as usize - 1;
        let hole = inner.holes.range(from..).next().copied();
        if begin < inner.purged || hole == Some(from) {
            return Err(LogError::Gap(from));
        }
        let records = inner.records.iter().enumerate().skip(begin);
        Ok(records
            .map(|(at, record)| (at as u64 + 1, record.clone()))
            .take_while(|(sequence, _)| hole != Some(*sequence))
            .collect())
    }

    async fn get(&self, sequence: u64) -> Result<Option<Bytes>, LogError> {
        let inner = self.check()?;
        let at = sequence as usize - 1;
        let kept = at >= inner.purged && !inner.holes.contains(&sequence);
        Ok(inner.records.get(at).filter(|_| kept).cloned())
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
