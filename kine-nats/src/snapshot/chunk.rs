//! The chunks of a snapshot: encoded versions in the form of a record's operations.

use crate::codec::{CodecError, Operation, Operations, Reader, decode_operations, operation_bytes, seal, unseal};
use crate::snapshot::point::SnapshotPoint;
use crate::state::State;
use bytes::Bytes;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

const MAGIC: &[u8] = b"KNS1";
/// A chunk that has reached this size is full. One more version of at most 1.5 MiB may have been
/// added to it.
const FULL: usize = 384 * 1024;
/// Keys and changes that are visited while the store is locked.
const PAGE: usize = 2048;

/// The part of the snapshot that a chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Section {
    /// Versions older than the history, by key.
    Base,
    /// Changes since the compact revision, in order.
    History,
    /// Leases; they come first, because keys are attached to them.
    Leases,
}

/// A chunk that was read.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) number: u32,
    pub(crate) section: Section,
    pub(crate) operations: Vec<Operation>,
    pub(crate) hash: u64,
}

impl Chunk {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let (body, hash) = unseal(bytes)?;
        let mut reader = Reader(body);
        if reader.take(4)? != MAGIC {
            return Err(CodecError::Magic);
        }
        let number = reader.u32()?;
        let section = match reader.u32()? {
            0 => Section::Base,
            1 => Section::History,
            2 => Section::Leases,
            _ => return Err(CodecError::Magic),
        };
        let count = reader.u32()?;
        let operations = decode_operations(reader.0, count)?;
        let belongs = |operation: &Operation| match section {
            Section::Leases => matches!(operation, Operation::Grant { .. }),
            Section::Base | Section::History => matches!(operation, Operation::Change(_)),
        };
        if !operations.iter().all(belongs) {
            return Err(CodecError::Operation(0));
        }
        Ok(Self {
            number,
            section,
            operations,
            hash,
        })
    }
}

fn encode(number: u32, section: Section, operations: &Operations) -> (Bytes, u64) {
    let body = operation_bytes(operations);
    let mut out = Vec::with_capacity(24 + body.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&(section as u32).to_le_bytes());
    out.extend_from_slice(&operations.count().to_le_bytes());
    out.extend_from_slice(body);
    let hash = seal(&mut out);
    (Bytes::from(out), hash)
}

/// Walks a store in pieces and cuts it into chunks, so that the store is never locked for long. The
/// history must not be trimmed meanwhile; trims and snapshots therefore share one job slot of the
/// writer.
#[derive(Debug)]
pub(crate) struct Chunks<'a> {
    state: &'a RwLock<State>,
    leases: &'a [(i64, i64)],
    revision: i64,
    floor: i64,
    position: Position,
    number: u32,
    buffered: Operations,
}

#[derive(Debug)]
enum Position {
    /// Number of leases that are done.
    Leases(usize),
    Base(Bytes),
    /// The next change: its revision, and how many changes of that revision are done.
    History(i64, usize),
    End,
}

impl<'a> Chunks<'a> {
    pub(crate) fn new(state: &'a RwLock<State>, pin: &'a SnapshotPoint) -> Self {
        Self {
            state,
            leases: &pin.leases,
            revision: pin.revision,
            floor: pin.compacted,
            position: Position::Leases(0),
            number: 0,
            buffered: Operations::default(),
        }
    }

    fn read(&self) -> RwLockReadGuard<'a, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn cut(&mut self, section: Section) -> Option<(Bytes, u64)> {
        if self.buffered.is_empty() {
            return None;
        }
        let chunk = encode(self.number, section, &self.buffered);
        self.number += 1;
        self.buffered = Operations::default();
        Some(chunk)
    }

    fn fill_leases(&mut self, done: usize) -> Option<(Bytes, u64)> {
        let page = self.leases.iter().skip(done).take(PAGE);
        let before = self.buffered.count();
        page.for_each(|(id, ttl)| self.buffered.grant(*id, *ttl));
        let done = done + (self.buffered.count() - before) as usize;
        self.position = if done < self.leases.len() {
            Position::Leases(done)
        } else {
            Position::Base(Bytes::from_static(&[0]))
        };
        self.cut(Section::Leases)
    }

    fn fill_base(&mut self, from: &Bytes) -> Option<(Bytes, u64)> {
        let (page, next) = self.read().mvcc.base_page(from, PAGE, self.floor);
        let mut resume = next;
        for item in page {
            self.buffered.change(&item.kv);
            if self.buffered.len() >= FULL {
                let mut after = item.key().to_vec();
                after.push(0);
                resume = Some(after.into());
                break;
            }
        }
        match resume {
            Some(key) => {
                self.position = Position::Base(key);
                if self.buffered.len() >= FULL {
                    self.cut(Section::Base)
                } else {
                    None
                }
            }
            None => {
                self.position = Position::History(self.floor, 0);
                self.cut(Section::Base)
            }
        }
    }

    fn fill_history(&mut self, mut revision: i64, mut done: usize) -> Option<(Bytes, u64)> {
        let mut visited = 0;
        let mut is_done = true;
        {
            let state = self.read();
            for change in state.mvcc.changes(revision).skip(done) {
                if change.revision > self.revision {
                    break;
                }
                if visited == PAGE || self.buffered.len() >= FULL {
                    is_done = false;
                    break;
                }
                visited += 1;
                done = if change.revision == revision { done + 1 } else { 1 };
                revision = change.revision;
                self.buffered.change(&change.kv);
            }
        }
        if is_done {
            self.position = Position::End;
            return self.cut(Section::History);
        }
        self.position = Position::History(revision, done);
        if self.buffered.len() >= FULL {
            self.cut(Section::History)
        } else {
            None
        }
    }
}

impl Iterator for Chunks<'_> {
    type Item = (Bytes, u64);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let chunk = match std::mem::replace(&mut self.position, Position::End) {
                Position::Leases(done) => self.fill_leases(done),
                Position::Base(from) => self.fill_base(&from),
                Position::History(revision, done) => self.fill_history(revision, done),
                Position::End => return None,
            };
            if chunk.is_some() {
                return chunk;
            }
        }
    }
}

#[cfg(test)]
mod tests;
