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
use crate::snapshot::rate_limit::Throttle;
use crate::state::State;
use std::sync::{Arc, RwLock};
use tokio::sync::{Mutex, watch};
use xxhash_rust::xxh3::Xxh3;

/// One stream for snapshots.
#[derive(Debug, Clone)]
pub(super) struct Location<M> {
    pub(super) stream: M,
    pub(super) prefix: String,
}

/// A manifest with its location.
struct StoredManifest<'a, M> {
    location: &'a Location<M>,
    sequence: u64,
    manifest: Manifest,
}

/// The streams of the snapshots, and the log that snapshots truncate.
#[derive(Debug)]
pub(crate) struct Snapshots<M, L> {
    /// Also holds the low watermark.
    pub(super) main: Location<M>,
    spare: Option<Location<M>>,
    log: Arc<L>,
    /// Locked while a low watermark is stored: one that is stored again must not land behind a
    /// higher one.
    pub(super) low_watermark: Arc<Mutex<()>>,
    /// Whether something waits for the snapshot in progress. `None` if snapshots do not pause.
    hurried: Option<watch::Receiver<bool>>,
}

impl<M: Clone, L> Clone for Snapshots<M, L> {
    fn clone(&self) -> Self {
        Self {
            main: self.main.clone(),
            spare: self.spare.clone(),
            log: Arc::clone(&self.log),
            low_watermark: Arc::clone(&self.low_watermark),
            hurried: self.hurried.clone(),
        }
    }
}

impl<M: Messages> Location<M> {
    fn manifests(&self) -> String {
        format!("{}.m", self.prefix)
    }

    fn chunks(&self, name: &str) -> String {
        format!("{}.c.{name}", self.prefix)
    }

    async fn write(
        &self,
        state: &RwLock<State>,
        pin: &SnapshotPoint,
        name: String,
        throttle: &mut Throttle,
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
            throttle.wait().await;
        }
        written.digest = digest.digest();
        let manifest = Manifest::new(pin, written);
        self.stream.store(self.manifests(), manifest.encode()?.into()).await?;
        Ok(manifest)
    }

    /// Removes chunks below a sequence that no manifest names. Does nothing if a manifest is
    /// unreadable, because it may name any of them.
    async fn remove_orphans(&self, sequence: u64) -> Result<(), SnapshotError> {
        let prefix = self.chunks("");
        let counts = self.stream.subjects(&format!("{}.>", self.prefix)).await?;
        let manifests = self.list().await?;
        if counts.get(&self.manifests()).copied().unwrap_or(0) != manifests.len() as u64 {
            return Ok(());
        }
        for subject in counts.keys() {
            let name = subject.strip_prefix(&prefix).unwrap_or_default();
            let below = name
                .split('.')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .is_some_and(|number| number < sequence);
            if below && manifests.iter().all(|stored| stored.manifest.name != name) {
                self.stream.purge_subject(subject).await?;
            }
        }
        Ok(())
    }

    /// Manifests that can be read.
    async fn list(&self) -> Result<Vec<StoredManifest<'_, M>>, SnapshotError> {
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
                Ok(manifest) => manifests.push(StoredManifest {
                    location: self,
                    sequence,
                    manifest,
                }),
                Err(error) => tracing::error!(sequence, error = %error, "The manifest of a snapshot is corrupt"),
            }
        }
    }

    async fn read(&self, manifest: &Manifest) -> Result<Snapshot, SnapshotError> {
        let mut snapshot = manifest.empty_snapshot();
        self.walk(manifest, &mut Throttle::new(None), |chunk| snapshot.load(chunk))
            .await?;
        Ok(snapshot.finish())
    }

    /// Reads the chunks of a snapshot, up to the last or to the first corrupt one.
    async fn walk(
        &self,
        manifest: &Manifest,
        throttle: &mut Throttle,
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
            throttle.wait().await;
        }
        if digest.digest() == manifest.digest {
            Ok(())
        } else {
            Err(SnapshotError::Incomplete)
        }
    }
}

impl<M> StoredManifest<'_, M> {
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
            main: Location { stream, prefix },
            spare: None,
            log,
            low_watermark: Arc::default(),
            hurried: None,
        }
    }

    /// Adds a second stream for every other snapshot.
    pub(crate) fn with_spare(mut self, stream: M, prefix: String) -> Self {
        self.spare = Some(Location { stream, prefix });
        self
    }

    /// Lets snapshots pause as long as nothing waits for them.
    pub(crate) fn with_throttle(&self, hurried: watch::Receiver<bool>) -> Self {
        let hurried = Some(hurried);
        Self {
            hurried,
            ..self.clone()
        }
    }

    fn locations(&self) -> impl Iterator<Item = &Location<M>> {
        std::iter::once(&self.main).chain(&self.spare)
    }

    /// Stores a snapshot of the pinned state, then purges what it supersedes. Returns its size in
    /// bytes.
    pub(crate) async fn store_and_purge(
        &self,
        state: &RwLock<State>,
        pin: &SnapshotPoint,
    ) -> Result<u64, SnapshotError> {
        let mut throttle = Throttle::new(self.hurried.as_ref());
        let manifest = self.store(state, pin, &mut throttle).await?;
        self.purge_superseded(&manifest, &mut throttle).await?;
        Ok(manifest.bytes)
    }

    /// Stores a snapshot of the pinned state without pauses, and purges nothing.
    pub(crate) async fn save(&self, state: &RwLock<State>, pin: &SnapshotPoint) -> Result<Manifest, SnapshotError> {
        self.store(state, pin, &mut Throttle::new(None)).await
    }

    async fn store(
        &self,
        state: &RwLock<State>,
        pin: &SnapshotPoint,
        throttle: &mut Throttle,
    ) -> Result<Manifest, SnapshotError> {
        let FencingState { sequence, writer, .. } = pin.fencing;
        self.remove_orphans(sequence).await?;
        let location = match (&self.spare, self.complete().await?.last()) {
            (Some(spare), Some(newest)) if std::ptr::eq(newest.location, &self.main) => spare,
            _ => &self.main,
        };
        let name = format!("{sequence}.{writer:x}-{:x}", rand::random::<u32>());
        let subject = location.chunks(&name);
        let manifest_result = location.write(state, pin, name, throttle).await;
        if manifest_result.is_err()
            && let Err(error) = location.stream.purge_subject(&subject).await
        {
            // The next snapshot removes them.
            tracing::debug!(error = %error, "Cannot remove the chunks of a failed snapshot; the next snapshot removes them");
        }
        manifest_result
    }

    /// Removes chunks below a sequence that no manifest names. Chunks at or above a writer's own
    /// sequence may still become a snapshot.
    pub(crate) async fn remove_orphans(&self, sequence: u64) -> Result<(), SnapshotError> {
        for location in self.locations() {
            location.remove_orphans(sequence).await?;
        }
        Ok(())
    }

    /// Manifests that can be read, by the position that they describe, oldest first.
    async fn list(&self) -> Result<Vec<StoredManifest<'_, M>>, SnapshotError> {
        let mut manifests = Vec::new();
        for location in self.locations() {
            manifests.extend(location.list().await?);
        }
        // A writer that was suspended may store an older snapshot behind a newer one.
        manifests.sort_by_key(|stored| stored.manifest.order());
        Ok(manifests)
    }

    /// Manifests whose chunks all exist, oldest first.
    async fn complete(&self) -> Result<Vec<StoredManifest<'_, M>>, SnapshotError> {
        let mut manifests = self.list().await?;
        for location in self.locations() {
            let counts = location.stream.subjects(&location.chunks(">")).await?;
            manifests.retain(
                |StoredManifest {
                     location: on, manifest, ..
                 }| {
                    let count = counts.get(&location.chunks(&manifest.name)).copied().unwrap_or(0);
                    !std::ptr::eq(*on, location) || count == u64::from(manifest.chunks)
                },
            );
        }
        Ok(manifests)
    }

    /// Number of snapshots with all chunks at or below a sequence.
    pub(crate) async fn count(&self, most: u64) -> Result<usize, SnapshotError> {
        let manifests = self.complete().await?;
        Ok(manifests
            .iter()
            .filter(|stored| stored.manifest.sequence <= most)
            .count())
    }

    /// The highest sequence of any snapshot, complete or not; 0 without one.
    pub(crate) async fn highest(&self) -> Result<u64, SnapshotError> {
        let manifests = self.list().await?;
        Ok(manifests
            .iter()
            .map(|stored| stored.manifest.sequence)
            .max()
            .unwrap_or(0))
    }

    /// Retains the newest snapshot, the newest earlier one that reads back, and the log behind that
    /// one. Purges the rest.
    async fn purge_superseded(&self, newest: &Manifest, throttle: &mut Throttle) -> Result<(), SnapshotError> {
        let manifests = self.complete().await?;
        match manifests.last().map(|stored| &stored.manifest) {
            Some(last) if last == newest => {}
            // Either of two snapshots at one sequence may be the last.
            Some(last)
                if last.order() == newest.order() && manifests.iter().any(|stored| stored.manifest == *newest) => {}
            Some(last) if last.order() >= newest.order() => {
                return Err(SnapshotError::Stale { newest: last.sequence });
            }
            _ => return Err(SnapshotError::ReadBack),
        }
        let Some((last, earlier)) = manifests.split_last() else {
            return Ok(());
        };
        let Some(older) = newest_readable(earlier, throttle).await? else {
            return Ok(());
        };
        let (end, sequence) = (self.log.info().await?.last, older.manifest.sequence);
        if end < sequence {
            tracing::error!(end, sequence, "The log ends before its snapshots; purging nothing");
            return Ok(());
        }
        for location in self.locations() {
            let retained = [older, last]
                .into_iter()
                .filter(|stored| std::ptr::eq(stored.location, location));
            let Some(below) = retained.map(StoredManifest::first).min() else {
                continue;
            };
            if std::ptr::eq(location, &self.main) {
                self.store_low_watermark_again(below).await?;
            }
            location.stream.purge_below(below).await?;
        }
        self.log.purge(sequence + 1).await?;
        Ok(())
    }

    /// Reads the newest complete snapshot.
    pub(crate) async fn newest(&self) -> Result<Option<Snapshot>, SnapshotError> {
        for StoredManifest { location, manifest, .. } in self.list().await?.into_iter().rev() {
            match location.read(&manifest).await {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(SnapshotError::Log(error)) if !matches!(error, LogError::Unreadable { .. }) => {
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::error!(sequence = manifest.sequence, error = %error, "A snapshot is corrupt");
                }
            }
        }
        Ok(None)
    }
}

/// The newest of the manifests whose snapshot reads back. Data that was stored a while ago may have
/// become corrupt, which only reading shows.
async fn newest_readable<'a, 'b, M: Messages>(
    manifests: &'a [StoredManifest<'b, M>],
    throttle: &mut Throttle,
) -> Result<Option<&'a StoredManifest<'b, M>>, SnapshotError> {
    for stored in manifests.iter().rev() {
        match stored.location.walk(&stored.manifest, throttle, drop).await {
            Ok(()) => return Ok(Some(stored)),
            Err(SnapshotError::Log(error)) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                tracing::error!(sequence = stored.manifest.sequence, error = %error, "A snapshot is corrupt");
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
