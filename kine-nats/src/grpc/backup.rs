//! `etcdctl snapshot save`: sends the store as etcd's database file, in pieces, followed by its
//! SHA-256.

use crate::backup::bbolt::File;
use crate::backup::buckets;
use crate::backup::collect::collect;
use crate::error::RpcError;
use crate::grpc::node::{Node, unavailable_error};
use crate::limits::STORAGE_VERSION;
use crate::proto::etcdserverpb as pb;
use crate::store::Store;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, unfold};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::Status;

/// Bytes of one response.
const PIECE: usize = 64 * 1024;
/// A client that accepts nothing for this long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// Longest duration of a backup.
const LIMIT: Duration = Duration::from_secs(3600);

type Answer = Result<pb::SnapshotResponse, Status>;

/// The responses of one backup.
pub(super) type Pieces = BoxStream<'static, Answer>;

impl Node {
    /// Starts a backup of the current content of a store.
    pub(super) async fn back_up(&self, store: Arc<Store>, needs_leader: bool) -> Result<Pieces, Status> {
        let permit = Arc::clone(&self.backups).try_acquire_owned();
        let permit = permit.map_err(|_| RpcError::TooManyRequests)?;
        let mut parts = collect(&store).await?;
        parts.members = self.members(&store);
        let revision = parts.revision;
        let planned = spawn_blocking(move || File::new(buckets(parts))).await;
        let file = planned.map_err(|_| Status::internal("the backup could not be planned"))?;
        let (answers, receiver) = mpsc::channel(2);
        let sending = Sending {
            left: file.size(),
            sent: 0,
            header: Some(store.header(revision)),
            hash: Sha256::new(),
            answers,
            store,
            needs_leader,
        };
        tokio::spawn(sending.run(file, permit));
        Ok(require_last(receiver))
    }
}

/// A backup that is being sent.
struct Sending {
    left: u64,
    sent: u64,
    /// Part of the first response only.
    header: Option<pb::ResponseHeader>,
    hash: Sha256,
    answers: mpsc::Sender<Answer>,
    store: Arc<Store>,
    needs_leader: bool,
}

/// Why a backup ends early.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("the client disconnected")]
    Disconnected,
    #[error("the client accepts no data")]
    Stalled,
    #[error("the backup takes too long")]
    Late,
    #[error(transparent)]
    Refused(#[from] RpcError),
}

impl Sending {
    async fn run(mut self, file: File, _permit: OwnedSemaphorePermit) {
        let sent = timeout(LIMIT, self.send(file)).await;
        match sent.unwrap_or(Err(Unsent::Late)) {
            Ok(()) => tracing::info!(bytes = self.sent, "Sent a backup"),
            Err(Unsent::Refused(error)) => {
                let _ = timeout(STALLED, self.answers.send(Err(error.into()))).await;
            }
            Err(error) => tracing::warn!(error = %error, bytes = self.sent, "Stopped sending a backup early"),
        }
    }

    async fn send(&mut self, file: File) -> Result<(), Unsent> {
        let mut buffered = Vec::with_capacity(2 * PIECE);
        for pages in file.into_pieces() {
            if buffered.is_empty() && pages.len() >= PIECE {
                self.send_pieces(pages).await?;
                continue;
            }
            buffered.extend_from_slice(&pages);
            if buffered.len() >= PIECE {
                self.send_pieces(std::mem::take(&mut buffered).into()).await?;
            }
        }
        self.send_pieces(buffered.into()).await?;
        let digest = std::mem::take(&mut self.hash).finalize();
        self.answer(Bytes::copy_from_slice(&digest)).await
    }

    async fn send_pieces(&mut self, mut pages: Bytes) -> Result<(), Unsent> {
        while !pages.is_empty() {
            let piece = pages.split_to(PIECE.min(pages.len()));
            self.hash.update(&piece);
            self.left = self.left.saturating_sub(piece.len() as u64);
            self.answer(piece).await?;
        }
        Ok(())
    }

    async fn answer(&mut self, blob: Bytes) -> Result<(), Unsent> {
        if let Some(error) = unavailable_error(&self.store, self.needs_leader) {
            return Err(error.into());
        }
        self.sent += blob.len() as u64;
        let answer = pb::SnapshotResponse {
            header: self.header.take(),
            remaining_bytes: self.left,
            blob,
            version: STORAGE_VERSION.to_owned(),
        };
        let sent = timeout(STALLED, self.answers.send(Ok(answer))).await;
        sent.map_err(|_| Unsent::Stalled)?.map_err(|_| Unsent::Disconnected)
    }
}

/// The responses, followed by an error if the last response is missing: the client must not take a
/// part for the complete backup.
fn require_last(receiver: mpsc::Receiver<Answer>) -> Pieces {
    let next = |(mut receiver, done): (mpsc::Receiver<Answer>, bool)| async move {
        if done {
            return None;
        }
        let answer = receiver.recv().await.unwrap_or(Err(RpcError::Timeout.into()));
        let digest = |answer: &pb::SnapshotResponse| answer.remaining_bytes == 0 && answer.blob.len() == 32;
        let done = answer.as_ref().map_or(true, digest);
        Some((answer, (receiver, done)))
    };
    unfold((receiver, false), next).boxed()
}

#[cfg(test)]
mod tests;
