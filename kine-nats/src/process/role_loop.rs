//! The cycles of a process. In each cycle it recovers the store from the log, follows the log until
//! no other process writes, and writes until it is stopped or replaced. After a replacement its
//! memory may differ from the log, so the next cycle recovers again.

use crate::clock;
use crate::limits::LEASE_USED;
use crate::log::{Ack, Log, Transient};
use crate::metrics::Metrics;
use crate::quota::Quota;
use crate::replica::error::RecoverError;
use crate::replica::follower::{self, Follower, WriterIdentity};
use crate::replica::recover::{Replica, Tail};
use crate::role::writer_of;
use crate::snapshot::{Messages, Snapshots};
use crate::store::Store;
use crate::store::peers::Peers;
use crate::writer::{BackgroundWork, SnapshotConfig, Unsaved, Writer, WriterError, WriterParts, stopped};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

const QUEUE: usize = 4096;
const RETRY: Duration = Duration::from_millis(200);

/// Publishes the store to the services; `None` until they may use it.
pub(crate) type StoreSender = watch::Sender<Option<Arc<Store>>>;

/// Configuration of a process.
#[derive(Debug, Clone)]
pub(crate) struct ProcessConfig {
    /// Number of this process. The writer number of each cycle derives from it.
    pub(crate) member: u64,
    pub(crate) incarnation: u64,
    pub(crate) name: String,
    pub(crate) quota: Option<u64>,
    pub(crate) snapshot_config: SnapshotConfig,
    /// Whether linearizable reads ignore the lease.
    pub(crate) strict_reads: bool,
    pub(crate) metrics: Metrics,
    /// Connection to the other processes. `None` if this process serves only as the writer.
    pub(crate) peers: Option<Arc<dyn Peers>>,
    /// Whether a replaced writer exits, although it could follow.
    pub(crate) end_when_replaced: bool,
}

/// How a cycle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CycleEnd {
    /// The process was stopped.
    Stopped,
    /// Another process writes, and this one may follow it.
    Replaced,
}

/// Why a process cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CycleError {
    /// The log cannot be followed.
    #[error("run the store: read and follow its log")]
    Follow(#[from] RecoverError),
    /// The log cannot be written, or not by this process.
    #[error("run the store: write its log")]
    Write(#[from] WriterError),
}

/// Runs one cycle: recover, follow, write, until stopped or replaced.
pub(crate) async fn run_cycle<L: Log, M: Messages>(
    log: Arc<L>,
    mut acks: mpsc::Receiver<Ack>,
    snapshots: Snapshots<M, L>,
    config: &ProcessConfig,
    cycle: u16,
    stores: &StoreSender,
    stop: watch::Receiver<bool>,
) -> Result<CycleEnd, CycleError> {
    let start = clock::now();
    let mut halt = stop.clone();
    let replica = tokio::select! {
        biased;
        replica = retry(|| Replica::load(&*log, &snapshots)) => replica?,
        () = stopped(&mut halt) => return Ok(CycleEnd::Stopped),
    };
    let sequence = replica.tail.fencing.sequence;
    tracing::info!(
        revision = replica.state.mvcc.visible(),
        keys = replica.state.mvcc.keys(),
        sequence,
        milliseconds = (clock::now() - start).as_millis() as u64,
        "Recovered the store from the log"
    );
    let (store, tail) = open_store(stores, replica, config)?;
    let mut follower = Follower::new(tail, Arc::clone(&store));
    if config.peers.is_some() {
        stores.send_replace(Some(Arc::clone(&store)));
    }
    let identity = WriterIdentity {
        writer: writer_of(config.member, cycle),
        incarnation: config.incarnation,
        name: config.name.clone(),
    };
    let sent = tokio::select! {
        biased;
        sent = follower.take_over(&*log, &snapshots, &mut acks, &identity) => sent?,
        () = stopped(&mut halt) => return Ok(CycleEnd::Stopped),
    };
    let writer = promote(follower, log, acks, snapshots, config, sent);
    tracing::info!(
        epoch = store.epoch(),
        revision = store.revision(),
        milliseconds = (clock::now() - start).as_millis() as u64,
        "This process is the writer"
    );
    stores.send_replace(Some(store));
    let result = writer.run(stop).await;
    let is_stopped = *halt.borrow() || halt.has_changed().is_err();
    end_cycle(result, is_stopped, config)
}

/// Puts a recovered state into the store of the previous cycle, or creates the store.
fn open_store(
    stores: &StoreSender,
    replica: Replica,
    config: &ProcessConfig,
) -> Result<(Arc<Store>, Tail), CycleError> {
    let known = stores.borrow().clone();
    if let Some(store) = known {
        let tail = follower::reinstall(&store, replica)?;
        return Ok((store, tail));
    }
    let Replica { tail, state } = replica;
    let quota = Quota::new(config.quota, tail.info.limit);
    let store = Store::new(state, quota, config.metrics.clone(), config.peers.clone());
    Ok((Arc::new(store.with_strict_reads(config.strict_reads)), tail))
}

/// Decides what follows after the writer of this process has ended.
fn end_cycle(
    result: Result<(), WriterError>,
    is_stopped: bool,
    config: &ProcessConfig,
) -> Result<CycleEnd, CycleError> {
    match result {
        Ok(()) if is_stopped => Ok(CycleEnd::Stopped),
        Ok(()) if config.end_when_replaced => {
            tracing::info!("Another process takes over as the writer; exiting");
            Ok(CycleEnd::Stopped)
        }
        Ok(()) => {
            tracing::info!("Another process takes over as the writer; following it");
            Ok(CycleEnd::Replaced)
        }
        Err(error @ (WriterError::Fenced { .. } | WriterError::Overtaken { .. }))
            if config.peers.is_some() && !config.end_when_replaced =>
        {
            tracing::warn!(error = %error, "Another process replaced this one as the writer; following it");
            Ok(CycleEnd::Replaced)
        }
        Err(error) => Err(error.into()),
    }
}

/// Turns a follower whose epoch record is stored into the writer.
pub(crate) fn promote<L: Log, M: Messages>(
    follower: Follower,
    log: Arc<L>,
    acks: mpsc::Receiver<Ack>,
    snapshots: Snapshots<M, L>,
    config: &ProcessConfig,
    sent: Duration,
) -> Writer<L, M> {
    let Follower { tail, store, .. } = follower;
    let now = clock::now();
    store.write().leases.renew_all(now);
    let unsaved = Unsaved {
        since: now,
        urgent: tail.lacks_snapshot,
        ..tail.replayed
    };
    let background = BackgroundWork::new(
        Arc::clone(&log),
        tail.info,
        snapshots,
        &store.read(),
        config.snapshot_config,
        unsaved,
    );
    let (queue, requests) = mpsc::channel(QUEUE);
    store.become_writer(&tail.fencing, queue, sent + LEASE_USED);
    Writer::new(WriterParts {
        log,
        acks,
        queue: requests,
        store,
        incarnation: config.incarnation,
        fencing: tail.fencing,
        background,
        recent: tail.recent,
    })
}

/// Repeats an operation until it succeeds, or fails with a permanent error.
pub(crate) async fn retry<T, E, F>(mut work: impl FnMut() -> F) -> Result<T, E>
where
    E: Transient,
    F: Future<Output = Result<T, E>>,
{
    let mut is_reported = false;
    loop {
        match work().await {
            Err(error) if error.is_transient() => {
                if !is_reported {
                    tracing::warn!(error = %error, cause = error.source().map(ToString::to_string), "Waiting for NATS");
                }
                is_reported = true;
                sleep(RETRY).await;
            }
            result => return result,
        }
    }
}
