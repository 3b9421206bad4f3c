//! Snapshots in streams of their own: all in one, or by turns in two. A server that finds a corrupt
//! message at its start drops everything behind it in that file. That may be all snapshots of one
//! stream; those in the other stream are not affected.

use crate::log::fencing::FencingState;
use crate::log::{Log, LogError, Transient};
use crate::snapshot::chunk::{Chunk, Chunks};
use crate::snapshot::error::SnapshotError;
use crate::snapshot::manifest::{Manifest, Snapshot, Written};
use crate::snapshot::messages::Messages;
use crate::snapshot::point::SnapshotPoint;
use crate::snapshot::rate_limit::Rests;
use crate::state::State;
use std::sync::{Arc, RwLock};
use tokio::sync::{Mutex, watch};
use xxhash_rust::xxh3::Xxh3;

/// One stream for snapshots.
#[derive(Debug, Clone)]
pub(super) struct Shelf<M> {
    pub(super) stream: M,
    pub(super) prefix: String,
}

/// A manifest with its location.
struct Kept<'a, M> {
    shelf: &'a Shelf<M>,
    sequence: u64,
    manifest: Manifest,
}

/// The streams of the snapshots, and the log that snapshots truncate.
#[derive(Debug)]
pub(crate) struct Snapshots<M, L> {
    /// Also holds the low watermark.
    pub(super) main: Shelf<M>,
    spare: Option<Shelf<M>>,
    log: Arc<L>,
    /// Locked while a low watermark is stored: one that is stored again must not land behind a
    /// higher one.
    pub(super) floor: Arc<Mutex<()>>,
    /// Whether something waits for the snapshot in progress. `None` if snapshots do not pause.
    hurried: Option<watch::Receiver<bool>>,
}

impl<M: Clone, L> Clone for Snapshots<M, L> {
    fn clone(&self) -> Self {
        Self {
            main: self.main.clone(),
            spare: self.spare.clone(),
            log: Arc::clone(&self.log),
            floor: Arc::clone(&self.floor),
            hurried: self.hurried.clone(),
        }
    }
}

impl<M: Messages> Shelf<M> {
    fn manifests(&self) -> String {
        format!("{}.m", self.prefix)
    }

    fn chunks(&self, name: &str) -> String {
        format!("{}.c.{name}", self.prefix)
    }

    async fn write(
        &self,
        (state, pin): (&RwLock<State>, &SnapshotPoint),
        name: String,
        rests: &mut Rests,
    ) -> Result<Manifest, SnapshotError> {
        let subject = self.chunks(&name);
        let mut written = Written {
            name,
            ..Written::default()
        };
        let mut digest = Xxh3::new();
        for (chunk, hash) in Chunks::new(state, pin) {
            written.bytes += chunk.len() as u64;
            digest.update(&hash.to_le_bytes());
            let stored = self.stream.store(subject.clone(), chunk).await?;
            if written.chunks == 0 {
                written.first = stored;
            }
            written.chunks += 1;
            rests.rest().await;
        }
        written.digest = digest.digest();
        let manifest = Manifest::new(pin, written);
        self.stream.store(self.manifests(), manifest.encode()?.into()).await?;
        Ok(manifest)
    }

    /// Removes chunks below a sequence that no manifest names. Does nothing if a manifest is
    /// unreadable, because it may name any of them.
    async fn remove_strays(&self, sequence: u64) -> Result<(), SnapshotError> {
        let begin = self.chunks("");
        let counts = self.stream.subjects(&format!("{}.>", self.prefix)).await?;
        let manifests = self.list().await?;
        if counts.get(&self.manifests()).copied().unwrap_or(0) != manifests.len() as u64 {
            return Ok(());
        }
        for subject in counts.keys() {
            let name = subject.strip_prefix(&begin).unwrap_or_default();
            let below = name
                .split('.')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .is_some_and(|number| number < sequence);
            if below && manifests.iter().all(|kept| kept.manifest.name != name) {
                self.stream.purge_subject(subject).await?;
            }
        }
        Ok(())
    }

    /// Manifests that can be read.
    async fn list(&self) -> Result<Vec<Kept<'_, M>>, SnapshotError> {
        // A server may find nothing where it finds corruption: at the end, or from there on.
        let newest = self.stream.last(&self.manifests()).await?;
        let (mut manifests, mut from) = (Vec::new(), 1);
        loop {
            let found = self.stream.first(from, &self.manifests()).await?;
            let newest = || newest.clone().filter(|(sequence, _)| *sequence >= from);
            let Some((sequence, message)) = found.or_else(newest) else {
                return Ok(manifests);
            };
            from = sequence + 1;
            match Manifest::decode(&message) {
                Ok(manifest) => manifests.push(Kept {
                    shelf: self,
                    sequence,
                    manifest,
                }),
                Err(error) => tracing::error!(sequence, error = %error, "A snapshot's manifest is damaged"),
            }
        }
    }

    async fn read(&self, manifest: &Manifest) -> Result<Snapshot, SnapshotError> {
        let mut snapshot = manifest.begin();
        self.walk(manifest, &mut Rests::new(None), |chunk| snapshot.load(chunk))
            .await?;
        Ok(snapshot.finish())
    }

    /// Reads the chunks of a snapshot, up to the last or to the first corrupt one.
    async fn walk(
        &self,
        manifest: &Manifest,
        rests: &mut Rests,
        mut take: impl FnMut(Chunk),
    ) -> Result<(), SnapshotError> {
        let subject = self.chunks(&manifest.name);
        let (mut next, mut number) = (manifest.first, 0);
        let mut digest = Xxh3::new();
        while number < manifest.chunks {
            let messages = self.stream.batch(next, &subject).await?;
            if messages.is_empty() {
                return Err(SnapshotError::Incomplete);
            }
            for (sequence, message) in messages {
                let chunk = Chunk::decode(&message)?;
                if chunk.number != number {
                    return Err(SnapshotError::Incomplete);
                }
                digest.update(&chunk.hash.to_le_bytes());
                take(chunk);
                next = sequence + 1;
                number += 1;
            }
            rests.rest().await;
        }
        if digest.digest() == manifest.digest {
            Ok(())
        } else {
            Err(SnapshotError::Incomplete)
        }
    }
}

impl<M> Kept<'_, M> {
    /// Sequence of its first message.
    fn first(&self) -> u64 {
        match self.manifest.chunks {
            0 => self.sequence,
            _ => self.manifest.first,
        }
    }
}

impl<M: Messages, L: Log> Snapshots<M, L> {
    /// Uses one stream; `prefix` is `kine.<id>.snap`.
    pub(crate) fn new(stream: M, prefix: String, log: Arc<L>) -> Self {
        Self {
            main: Shelf { stream, prefix },
            spare: None,
            log,
            floor: Arc::default(),
            hurried: None,
        }
    }

    /// Adds a second stream for every other snapshot.
    pub(crate) fn with_spare(mut self, stream: M, prefix: String) -> Self {
        self.spare = Some(Shelf { stream, prefix });
        self
    }

    /// Lets snapshots pause as long as nothing waits for them.
    pub(crate) fn resting(&self, hurried: watch::Receiver<bool>) -> Self {
        let hurried = Some(hurried);
        Self {
            hurried,
            ..self.clone()
        }
    }

    fn shelves(&self) -> impl Iterator<Item = &Shelf<M>> {
        std::iter::once(&self.main).chain(&self.spare)
    }

    /// Stores a snapshot of the pinned state, then purges what it supersedes. Returns its size in
    /// bytes.
    pub(crate) async fn keep(&self, state: &RwLock<State>, pin: &SnapshotPoint) -> Result<u64, SnapshotError> {
        let mut rests = Rests::new(self.hurried.as_ref());
        let manifest = self.store(state, pin, &mut rests).await?;
        self.tidy(&manifest, &mut rests).await?;
        Ok(manifest.bytes)
    }

    /// Stores a snapshot of the pinned state without pauses, and purges nothing.
    pub(crate) async fn save(&self, state: &RwLock<State>, pin: &SnapshotPoint) -> Result<Manifest, SnapshotError> {
        self.store(state, pin, &mut Rests::new(None)).await
    }

    async fn store(
        &self,
        state: &RwLock<State>,
        pin: &SnapshotPoint,
        rests: &mut Rests,
    ) -> Result<Manifest, SnapshotError> {
        let FencingState { sequence, writer, .. } = pin.fencing;
        self.remove_strays(sequence).await?;
        let shelf = match (&self.spare, self.whole().await?.last()) {
            (Some(spare), Some(newest)) if std::ptr::eq(newest.shelf, &self.main) => spare,
            _ => &self.main,
        };
        let name = format!("{sequence}.{writer:x}-{:x}", rand::random::<u32>());
        let subject = shelf.chunks(&name);
        let saved = shelf.write((state, pin), name, rests).await;
        if saved.is_err()
            && let Err(error) = shelf.stream.purge_subject(&subject).await
        {
            // The next snapshot removes them.
            tracing::debug!(error = %error, "The chunks of a failed snapshot stay for now");
        }
        saved
    }

    /// Removes chunks below a sequence that no manifest names. Chunks at or above a writer's own
    /// sequence may still become a snapshot.
    pub(crate) async fn remove_strays(&self, sequence: u64) -> Result<(), SnapshotError> {
        for shelf in self.shelves() {
            shelf.remove_strays(sequence).await?;
        }
        Ok(())
    }

    /// Manifests that can be read, by the position that they describe, oldest first.
    async fn list(&self) -> Result<Vec<Kept<'_, M>>, SnapshotError> {
        let mut manifests = Vec::new();
        for shelf in self.shelves() {
            manifests.extend(shelf.list().await?);
        }
        // A writer that was suspended may store an older snapshot behind a newer one.
        manifests.sort_by_key(|kept| kept.manifest.place());
        Ok(manifests)
    }

    /// Manifests whose chunks all exist, oldest first.
    async fn whole(&self) -> Result<Vec<Kept<'_, M>>, SnapshotError> {
        let mut manifests = self.list().await?;
        for shelf in self.shelves() {
            let counts = shelf.stream.subjects(&shelf.chunks(">")).await?;
            manifests.retain(
                |Kept {
                     shelf: on, manifest, ..
                 }| {
                    let count = counts.get(&shelf.chunks(&manifest.name)).copied().unwrap_or(0);
                    !std::ptr::eq(*on, shelf) || count == u64::from(manifest.chunks)
                },
            );
        }
        Ok(manifests)
    }

    /// Number of snapshots with all chunks at or below a sequence.
    pub(crate) async fn count(&self, most: u64) -> Result<usize, SnapshotError> {
        let manifests = self.whole().await?;
        Ok(manifests.iter().filter(|kept| kept.manifest.sequence <= most).count())
    }

    /// The highest sequence of any snapshot, complete or not; 0 without one.
    pub(crate) async fn highest(&self) -> Result<u64, SnapshotError> {
        let manifests = self.list().await?;
        Ok(manifests.iter().map(|kept| kept.manifest.sequence).max().unwrap_or(0))
    }

    /// Retains the newest snapshot, the newest earlier one that reads back, and the log behind that
    /// one. Purges the rest.
    async fn tidy(&self, newest: &Manifest, rests: &mut Rests) -> Result<(), SnapshotError> {
        let manifests = self.whole().await?;
        match manifests.last().map(|kept| &kept.manifest) {
            Some(last) if last == newest => {}
            // Either of two snapshots at one sequence may be the last.
            Some(last) if last.place() == newest.place() && manifests.iter().any(|kept| kept.manifest == *newest) => {}
            Some(last) if last.place() >= newest.place() => {
                return Err(SnapshotError::Stale { newest: last.sequence });
            }
            _ => return Err(SnapshotError::ReadBack),
        }
        let Some((last, earlier)) = manifests.split_last() else {
            return Ok(());
        };
        let Some(older) = sound(earlier, rests).await? else {
            return Ok(());
        };
        let (end, sequence) = (self.log.info().await?.last, older.manifest.sequence);
        if end < sequence {
            tracing::error!(end, sequence, "The log ends before its snapshots; nothing is dropped");
            return Ok(());
        }
        for shelf in self.shelves() {
            let kept = [older, last].into_iter().filter(|kept| std::ptr::eq(kept.shelf, shelf));
            let Some(below) = kept.map(Kept::first).min() else {
                continue;
            };
            if std::ptr::eq(shelf, &self.main) {
                self.lift_floor(below).await?;
            }
            shelf.stream.purge_below(below).await?;
        }
        self.log.purge(sequence + 1).await?;
        Ok(())
    }

    /// Reads the newest complete snapshot.
    pub(crate) async fn newest(&self) -> Result<Option<Snapshot>, SnapshotError> {
        for Kept { shelf, manifest, .. } in self.list().await?.into_iter().rev() {
            match shelf.read(&manifest).await {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(SnapshotError::Log(error)) if !matches!(error, LogError::Unreadable { .. }) => {
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::error!(sequence = manifest.sequence, error = %error, "A snapshot is damaged");
                }
            }
        }
        Ok(None)
    }
}

/// The newest of the manifests whose snapshot reads back. Data that was stored a while ago may have
/// become corrupt, which only reading shows.
async fn sound<'a, 'b, M: Messages>(
    manifests: &'a [Kept<'b, M>],
    rests: &mut Rests,
) -> Result<Option<&'a Kept<'b, M>>, SnapshotError> {
    for kept in manifests.iter().rev() {
        match kept.shelf.walk(&kept.manifest, rests, drop).await {
            Ok(()) => return Ok(Some(kept)),
            Err(SnapshotError::Log(error)) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                tracing::error!(sequence = kept.manifest.sequence, error = %error, "A snapshot is damaged");
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
