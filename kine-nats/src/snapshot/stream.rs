//! Snapshots in a stream of their own.

use super::chunk::Chunks;
use super::{Chunk, Manifest, Messages, Pin, Snapshot, SnapshotError, Written};
use crate::log::Log;
use crate::session::Session;
use crate::state::State;
use std::sync::{Arc, RwLock};
use xxhash_rust::xxh3::Xxh3;

/// The snapshot stream, and the log that snapshots shorten.
#[derive(Debug)]
pub(crate) struct Snapshots<M, L> {
    pub(super) stream: M,
    pub(super) prefix: String,
    log: Arc<L>,
}

impl<M: Clone, L> Clone for Snapshots<M, L> {
    fn clone(&self) -> Self {
        Self {
            stream: self.stream.clone(),
            prefix: self.prefix.clone(),
            log: Arc::clone(&self.log),
        }
    }
}

impl<M: Messages, L: Log> Snapshots<M, L> {
    /// `prefix` is `kine.<id>.snap`.
    pub(crate) fn new(stream: M, prefix: String, log: Arc<L>) -> Self {
        Self { stream, prefix, log }
    }

    fn manifests(&self) -> String {
        format!("{}.m", self.prefix)
    }

    fn chunks(&self, name: &str) -> String {
        format!("{}.c.{name}", self.prefix)
    }

    /// Stores a snapshot of what is pinned, then drops what it makes superfluous. Answers the bytes it took.
    pub(crate) async fn keep(&self, state: &RwLock<State>, pin: &Pin) -> Result<u64, SnapshotError> {
        let manifest = self.save(state, pin).await?;
        self.tidy(&manifest).await?;
        Ok(manifest.bytes)
    }

    /// Stores a snapshot of what is pinned.
    pub(crate) async fn save(&self, state: &RwLock<State>, pin: &Pin) -> Result<Manifest, SnapshotError> {
        let Session { sequence, writer, .. } = pin.session;
        self.remove_strays(sequence).await?;
        let name = format!("{sequence}.{writer:x}-{:x}", rand::random::<u32>());
        let subject = self.chunks(&name);
        let saved = self.write(state, pin, name).await;
        if saved.is_err()
            && let Err(error) = self.stream.purge_subject(&subject).await
        {
            // The next snapshot removes them.
            tracing::debug!(error = %error, "The chunks of a failed snapshot stay for now");
        }
        saved
    }

    async fn write(&self, state: &RwLock<State>, pin: &Pin, name: String) -> Result<Manifest, SnapshotError> {
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
        }
        written.digest = digest.digest();
        let manifest = Manifest::new(pin, written);
        self.stream.store(self.manifests(), manifest.encode()?.into()).await?;
        Ok(manifest)
    }

    /// Removes chunks below a sequence that no manifest names. One at or above a writer's own may still become a snapshot.
    pub(crate) async fn remove_strays(&self, sequence: u64) -> Result<(), SnapshotError> {
        let begin = self.chunks("");
        let counts = self.stream.subjects(&self.chunks(">")).await?;
        let manifests = self.list().await?;
        for subject in counts.keys() {
            let name = subject.strip_prefix(&begin).unwrap_or_default();
            let below = name
                .split('.')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .is_some_and(|number| number < sequence);
            if below && manifests.iter().all(|(_, manifest)| manifest.name != name) {
                self.stream.purge_subject(subject).await?;
            }
        }
        Ok(())
    }

    /// Manifests that can be read, by what they hold, oldest first, with their sequences in the stream.
    async fn list(&self) -> Result<Vec<(u64, Manifest)>, SnapshotError> {
        let mut messages = self.stream.batch(1, &self.manifests()).await?;
        // Direct reads may come from a replica that is behind; the leader knows the newest.
        if let Some(last) = self.stream.last(&self.manifests()).await?
            && messages.last().is_none_or(|(sequence, _)| *sequence < last.0)
        {
            messages.push(last);
        }
        let mut manifests = Vec::new();
        for (sequence, message) in messages {
            match Manifest::decode(&message) {
                Ok(manifest) => manifests.push((sequence, manifest)),
                Err(error) => tracing::error!(sequence, error = %error, "A snapshot's manifest is damaged"),
            }
        }
        // A writer that slept may store an older one behind a newer one.
        manifests.sort_by_key(|(_, manifest)| manifest.place());
        Ok(manifests)
    }

    /// The highest sequence that any of them stands at, whole or not; 0 without one.
    pub(crate) async fn highest(&self) -> Result<u64, SnapshotError> {
        let manifests = self.list().await?;
        Ok(manifests
            .iter()
            .map(|(_, manifest)| manifest.sequence)
            .max()
            .unwrap_or(0))
    }

    async fn read(&self, manifest: &Manifest) -> Result<Snapshot, SnapshotError> {
        let mut snapshot = manifest.begin();
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
                snapshot.load(chunk);
                next = sequence + 1;
                number += 1;
            }
        }
        if digest.digest() == manifest.digest {
            Ok(snapshot.finish())
        } else {
            Err(SnapshotError::Incomplete)
        }
    }

    /// Keeps the two newest snapshots, and the log behind the older of them.
    async fn tidy(&self, newest: &Manifest) -> Result<(), SnapshotError> {
        let counts = self.stream.subjects(&self.chunks(">")).await?;
        let mut manifests = self.list().await?;
        manifests.retain(|(_, manifest)| {
            let count = counts.get(&self.chunks(&manifest.name)).copied().unwrap_or(0);
            count == u64::from(manifest.chunks)
        });
        match manifests.last() {
            Some((_, last)) if last == newest => {}
            Some((_, last)) if last.place() >= newest.place() => {
                return Err(SnapshotError::Stale { newest: last.sequence });
            }
            _ => return Err(SnapshotError::ReadBack),
        }
        let [.., older, last] = manifests.as_slice() else {
            return Ok(());
        };
        let first = |(sequence, manifest): &(u64, Manifest)| match manifest.chunks {
            0 => *sequence,
            _ => manifest.first,
        };
        let (below, older) = (first(older).min(first(last)), &older.1);
        let end = self.log.info().await?.last;
        if end < older.sequence {
            tracing::error!(
                end,
                sequence = older.sequence,
                "The log ends before its snapshots; nothing is dropped"
            );
            return Ok(());
        }
        self.lift_floor(below).await?;
        self.stream.purge_below(below).await?;
        self.log.purge(older.sequence + 1).await?;
        Ok(())
    }

    /// The newest one that is whole.
    pub(crate) async fn newest(&self) -> Result<Option<Snapshot>, SnapshotError> {
        for (_, manifest) in self.list().await?.into_iter().rev() {
            match self.read(&manifest).await {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(SnapshotError::Log(error)) => return Err(error.into()),
                Err(error) => {
                    tracing::error!(sequence = manifest.sequence, error = %error, "A snapshot is damaged");
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
