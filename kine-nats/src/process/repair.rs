//! `kine-nats repair`: continues a store whose log has lost acknowledged records, or cannot be
//! followed.
//!
//! ```text
//! newest complete snapshot + the records behind it that can be followed
//!   ─► revision far above every earlier one, everything before it compacted: no client mistakes old data for new
//!   ─► stored as a snapshot behind all that log and snapshots ever held: it is the newest one from here on
//!   ─► the log is emptied up to there; the next writer starts behind it
//!   ─► the low watermark is set there, too: this accepts the loss that the server reports
//! ```
//!
//! Until the last step no process can start, because the new snapshot is ahead of the log. An
//! earlier writer finds its position in the log gone.

use crate::limits::LEASE;
use crate::log::fencing::FencingState;
use crate::log::jetstream::JetStream;
use crate::log::stream::Stream;
use crate::log::{Log, LogError, LogInfo};
use crate::nats;
use crate::process::args::RepairArgs;
use crate::process::role_loop::retry;
use crate::process::run::snapshots;
use crate::replica::error::RecoverError;
use crate::replica::recover::{Replica, Salvage};
use crate::snapshot::{LowWatermark, Messages, SnapshotError, SnapshotPoint, Snapshots};
use crate::state::State;
use anyhow::Context;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::time::sleep;

/// A live writer shows that it is alive more often than this.
const SILENCE: Duration = LEASE.saturating_add(Duration::from_secs(1));

/// Gap between the known end of the log and the repaired store. It exceeds the number of records
/// that any process may have written without a trace. A writer that is suspended during the repair
/// therefore never finds the log to end at the sequence that it remembers.
const UNKNOWN: u64 = 1 << 16;

/// Why a store is not repaired.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RepairError {
    /// A process writes to the store.
    #[error("repair the store: a process writes to it; stop all processes of this stream first")]
    Alive,
    /// Nothing of the store can be read.
    #[error("repair the store: nothing of it can be read; restore the streams from a backup")]
    Nothing(#[source] RecoverError),
    /// The operator did not accept the loss.
    #[error("repair the store: nothing was changed; run again with --accept-loss to continue with what can be read")]
    NotAccepted(#[source] RecoverError),
    /// The store cannot be read now.
    #[error("repair the store: read it")]
    Read(#[from] RecoverError),
    /// The snapshot cannot be stored.
    #[error("repair the store: store what can be read")]
    Snapshot(#[from] SnapshotError),
    /// The log cannot be used.
    #[error("repair the store: use the log")]
    Log(#[from] LogError),
    /// The server did not empty the log as requested.
    #[error("repair the store: the log ends at sequence {last} instead of {wanted}; run the repair again")]
    NotEmptied {
        /// Last sequence of the log.
        last: u64,
        /// Last sequence that it should have.
        wanted: u64,
    },
}

/// The outcome of a repair.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Repaired {
    /// The store is complete and was not changed.
    Nothing,
    /// The store continues at this sequence and revision.
    Bumped { sequence: u64, revision: i64 },
}

/// Runs the repair command with its arguments.
pub async fn repair(args: RepairArgs) -> anyhow::Result<()> {
    crate::process::run::init(args.log_format);
    let (client, _) = nats::connect(&args.nats).await?;
    let (log, _acks) = JetStream::open(
        Stream::new(client.clone(), args.nats.stream.log()),
        args.nats.stream.log_subject(),
    )
    .await?;
    let log = Arc::new(log);
    let snapshots = snapshots(&args.nats, &client, &log);
    let repaired = repair_store(&*log, &snapshots, args.bump, args.accept_loss).await;
    match repaired.with_context(|| format!("repair {}", args.nats.stream.log()))? {
        Repaired::Nothing => tracing::info!("The store is complete; nothing was changed"),
        Repaired::Bumped { sequence, revision } => {
            tracing::warn!(
                sequence,
                revision,
                "Repaired the store; it continues here, and everything before is compacted"
            );
        }
    }
    Ok(())
}

/// Repairs a store that no process writes to.
pub(crate) async fn repair_store<L: Log, M: Messages>(
    log: &L,
    snapshots: &Snapshots<M, L>,
    bump: i64,
    accept_loss: bool,
) -> Result<Repaired, RepairError> {
    let before = retry(|| log.info()).await?.last;
    sleep(SILENCE).await;
    if retry(|| log.info()).await?.last != before {
        return Err(RepairError::Alive);
    }
    let Salvage { replica, problem } = retry(|| Replica::salvage(log, snapshots)).await?;
    let Some(problem) = problem else {
        return Ok(Repaired::Nothing);
    };
    let Replica { tail, state } = replica;
    if tail.fencing.epoch == 0 {
        return Err(RepairError::Nothing(problem));
    }
    tracing::warn!(
        dropped = tail.info.lost.bytes,
        sequence = tail.fencing.sequence,
        revision = state.mvcc.visible(),
        keys = state.mvcc.keys(),
        log_first = tail.info.first,
        log_last = tail.info.last,
        error = format!("{:#}", anyhow::anyhow!("{problem}")),
        "The readable part of the store ends here; acknowledged records behind it are lost"
    );
    if !accept_loss {
        return Err(RepairError::NotAccepted(problem));
    }
    let highest = snapshots.highest().await?.max(tail.low_watermark.sequence);
    let sequence = tail.info.last.max(tail.fencing.sequence).max(highest) + 1 + UNKNOWN;
    let (fencing, state) = continue_above(tail.fencing, state, sequence, bump);
    let leases = state.leases.terms();
    let state = RwLock::new(state);
    let pin = SnapshotPoint::new(&state, fencing, leases);
    snapshots.save(&state, &pin).await?;
    log.purge(sequence + 1).await?;
    let LogInfo { last, lost, .. } = log.info().await?;
    if last != sequence {
        return Err(RepairError::NotEmptied { last, wanted: sequence });
    }
    let revision = pin.revision;
    let low_watermark = LowWatermark {
        sequence,
        revision,
        lost,
    };
    snapshots.set_low_watermark(&low_watermark).await?;
    Ok(Repaired::Bumped { sequence, revision })
}

/// Builds the state of the repaired store: behind all records, far above every revision, and
/// without history.
fn continue_above(fencing: FencingState, mut state: State, sequence: u64, bump: i64) -> (FencingState, State) {
    let revision = state.mvcc.head().max(state.mvcc.visible()).saturating_add(bump);
    state.mvcc.set_head(revision);
    state.mvcc.publish(revision);
    state.mvcc.compact(revision);
    state.compacting = revision;
    while state.mvcc.trim(10_000) {}
    let fencing = FencingState {
        sequence,
        epoch: fencing.epoch + 1,
        writer: 0,
        // The next record follows this hash, which no earlier record has.
        hash: rand::random(),
        resigned: true,
        between: (0, 0),
        ..fencing
    };
    (fencing, state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mvcc::Mvcc;

    #[test]
    fn a_bumped_store_has_its_keys_and_no_history() {
        let mut state = State::new(Mvcc::new());
        for key in ["a", "b", "a"] {
            state.mvcc.advance();
            state.put(key.as_bytes(), b"v", 0);
        }
        state.mvcc.advance();
        state.delete(b"b");
        state.mvcc.publish(5);
        let fencing = FencingState {
            sequence: 4,
            epoch: 2,
            writer: 9,
            incarnation: 3,
            cluster: 7,
            ..FencingState::default()
        };
        let (fencing, state) = continue_above(fencing, state, 11, 1000);
        assert_eq!((fencing.sequence, fencing.epoch, fencing.incarnation), (11, 3, 3));
        assert_eq!((fencing.cluster, fencing.writer, fencing.resigned), (7, 0, true));
        let mvcc = &state.mvcc;
        assert_eq!((mvcc.head(), mvcc.visible(), mvcc.compacted()), (1005, 1005, 1005));
        assert_eq!((mvcc.keys(), mvcc.history_len()), (1, 0));
        assert_eq!(
            mvcc.latest(b"a").map(|item| (item.modified, item.version)),
            Some((4, 2))
        );
    }
}
