//! Encodes and decodes a record. A record is one message of the log: a header, a batch of
//! operations, and a hash at the end.
//!
//! ```text
//! magic 4 | format 2 | zero 2 | cluster 8 | epoch 8 | writer 8 | incarnation 8 | previous hash 8 | base revision 8
//! | operations 4 | body length 4 | { kind 1, length 4, bytes }* | xxh3 of all before 8          (little endian)
//! ```
//!
//! Snapshot chunks hold operations in the same encoding. All functions here accept hostile bytes.

use crate::mvcc::{InvalidItem, Item};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 4] = *b"KNL1";
const FORMAT: u16 = 1;
const HEADER: usize = 64;
const HASH: usize = 8;

/// Why bytes are not a record.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// The bytes are too short, or the lengths do not add up.
    #[error("decode a record: its length is wrong")]
    Length,
    /// The magic number is not that of this program.
    #[error("decode a record: it does not start with the magic number")]
    Magic,
    /// A later version wrote the record.
    #[error("decode a record: its format {0} is unknown")]
    Format(u16),
    /// The bytes are not those that were written.
    #[error("decode a record: its hash does not match")]
    Hash,
    /// An operation is invalid.
    #[error("decode a record: an operation of kind {0} is invalid")]
    Operation(u8),
}

/// The header of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    /// Id of the store; random, created with its first record.
    pub(crate) cluster: u64,
    /// Number of the writer; each writer starts with an epoch record.
    pub(crate) epoch: u64,
    /// Number of the process that wrote the record; random.
    pub(crate) writer: u64,
    /// Generation of the process, assigned by the operator.
    pub(crate) incarnation: u64,
    /// Hash of the record before it.
    pub(crate) previous: u64,
    /// Revision of the store before it.
    pub(crate) base: i64,
}

/// One operation of a record.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    /// A key was put or deleted: its encoded version.
    Change(Item),
    /// All keys of a range were deleted at a revision.
    DeleteRange { revision: i64, start: Bytes, end: Bytes },
    /// A lease was granted.
    Grant { id: i64, ttl: i64 },
    /// A lease ended. Its keys were deleted at the revision; 0 means that it had none.
    Revoke { id: i64, revision: i64 },
    /// History below the revision is compacted.
    Compact { revision: i64 },
    /// A writer starts, with this lease duration.
    Epoch { lease_ms: u32, name: String },
    /// The writer ends and gives up its lease.
    Resign,
}

/// A decoded record.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) header: Header,
    pub(crate) operations: Vec<Operation>,
    /// Hash of the record, which the next record names.
    pub(crate) hash: u64,
}

/// Collects operations in encoded form.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    bytes: Vec<u8>,
    count: u32,
    leases: Vec<(i64, Option<i64>)>,
}

impl Operations {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Takes the leases that the operations grant (with their seconds) or end, in order.
    pub(crate) fn take_leases(&mut self) -> Vec<(i64, Option<i64>)> {
        std::mem::take(&mut self.leases)
    }

    pub(crate) fn change(&mut self, kv: &[u8]) {
        self.push(1, &[kv]);
    }

    pub(crate) fn delete_range(&mut self, revision: i64, start: &[u8], end: &[u8]) {
        self.push(
            2,
            &[&revision.to_le_bytes(), &(start.len() as u32).to_le_bytes(), start, end],
        );
    }

    pub(crate) fn grant(&mut self, id: i64, ttl: i64) {
        self.leases.push((id, Some(ttl)));
        self.push(3, &[&id.to_le_bytes(), &ttl.to_le_bytes()]);
    }

    pub(crate) fn revoke(&mut self, id: i64, revision: i64) {
        self.leases.push((id, None));
        self.push(4, &[&id.to_le_bytes(), &revision.to_le_bytes()]);
    }

    pub(crate) fn compact(&mut self, revision: i64) {
        self.push(5, &[&revision.to_le_bytes()]);
    }

    pub(crate) fn epoch(&mut self, lease_ms: u32, name: &str) {
        self.push(6, &[&lease_ms.to_le_bytes(), name.as_bytes()]);
    }

    pub(crate) fn resign(&mut self) {
        self.push(7, &[]);
    }

    fn push(&mut self, kind: u8, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&(length as u32).to_le_bytes());
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.count += 1;
    }
}

/// Encodes a record; returns it with its hash.
pub(crate) fn encode(header: &Header, operations: &Operations) -> (Bytes, u64) {
    let mut out = Vec::with_capacity(HEADER + operations.bytes.len() + HASH);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    for number in [
        header.cluster,
        header.epoch,
        header.writer,
        header.incarnation,
        header.previous,
    ] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&header.base.to_le_bytes());
    out.extend_from_slice(&operations.count.to_le_bytes());
    out.extend_from_slice(&(operations.bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&operations.bytes);
    let hash = seal(&mut out);
    (Bytes::from(out), hash)
}

/// Whether bytes were never a record of the store `cluster`. A corrupt record of the store still
/// counts as its record.
pub(crate) fn is_of_other_store(bytes: &[u8], cluster: Option<u64>) -> bool {
    let other = cluster.is_some_and(|cluster| bytes.get(8..16) != Some(cluster.to_le_bytes().as_slice()));
    if bytes.starts_with(&MAGIC) {
        return other && unseal(bytes).is_ok();
    }
    // If only the first bytes of a record are corrupt, its hash still matches.
    let rest = bytes.get(MAGIC.len()..).unwrap_or_default();
    other || unseal(&[&MAGIC, rest].concat()).is_err()
}

/// Decodes a record.
pub(crate) fn decode(bytes: &[u8]) -> Result<Record, CodecError> {
    let (body, hash) = unseal(bytes)?;
    let mut reader = Reader(body);
    if reader.take(4)? != MAGIC {
        return Err(CodecError::Magic);
    }
    let format = reader.u32()?;
    if format != u32::from(FORMAT) {
        return Err(CodecError::Format(format as u16));
    }
    let header = Header {
        cluster: reader.u64()?,
        epoch: reader.u64()?,
        writer: reader.u64()?,
        incarnation: reader.u64()?,
        previous: reader.u64()?,
        base: reader.i64()?,
    };
    let count = reader.u32()?;
    if reader.u32()? as usize != reader.0.len() {
        return Err(CodecError::Length);
    }
    let operations = decode_operations(reader.0, count)?;
    Ok(Record {
        header,
        operations,
        hash,
    })
}

/// Appends the hash of the bytes, and returns it.
pub(crate) fn seal(out: &mut Vec<u8>) -> u64 {
    let hash = xxh3_64(out);
    out.extend_from_slice(&hash.to_le_bytes());
    hash
}

/// Splits off the hash after checking it.
pub(crate) fn unseal(bytes: &[u8]) -> Result<(&[u8], u64), CodecError> {
    let at = bytes.len().checked_sub(HASH).ok_or(CodecError::Length)?;
    let (body, hash) = bytes.split_at(at);
    let hash = Reader(hash).u64()?;
    if xxh3_64(body) == hash {
        Ok((body, hash))
    } else {
        Err(CodecError::Hash)
    }
}

/// The encoded operations, for a snapshot chunk.
pub(crate) fn operation_bytes(operations: &Operations) -> &[u8] {
    &operations.bytes
}

/// Decodes operations; there must be exactly `count`.
pub(crate) fn decode_operations(bytes: &[u8], count: u32) -> Result<Vec<Operation>, CodecError> {
    let mut reader = Reader(bytes);
    // An operation takes at least five bytes. A count that claims more must not reserve memory.
    let mut operations = Vec::with_capacity((count as usize).min(bytes.len() / 5));
    while !reader.0.is_empty() {
        let kind = reader.take(1)?.first().copied().unwrap_or_default();
        let length = reader.u32()? as usize;
        operations.push(decode_operation(kind, reader.take(length)?)?);
    }
    if operations.len() == count as usize {
        Ok(operations)
    } else {
        Err(CodecError::Length)
    }
}

fn decode_operation(kind: u8, bytes: &[u8]) -> Result<Operation, CodecError> {
    let mut reader = Reader(bytes);
    let operation = match kind {
        1 => {
            let item = Item::decode(bytes).map_err(|InvalidItem| CodecError::Operation(kind))?;
            return Ok(Operation::Change(item));
        }
        2 => {
            let (revision, length) = (reader.i64()?, reader.u32()? as usize);
            let start = Bytes::copy_from_slice(reader.take(length)?);
            let end = Bytes::copy_from_slice(reader.take(reader.0.len())?);
            Operation::DeleteRange { revision, start, end }
        }
        3 => Operation::Grant {
            id: reader.i64()?,
            ttl: reader.i64()?,
        },
        4 => Operation::Revoke {
            id: reader.i64()?,
            revision: reader.i64()?,
        },
        5 => Operation::Compact {
            revision: reader.i64()?,
        },
        6 => {
            let lease_ms = reader.u32()?;
            let name = std::str::from_utf8(reader.take(reader.0.len())?).map_err(|_| CodecError::Operation(kind))?;
            Operation::Epoch {
                lease_ms,
                name: name.to_owned(),
            }
        }
        7 => Operation::Resign,
        _ => return Err(CodecError::Operation(kind)),
    };
    if reader.0.is_empty() {
        Ok(operation)
    } else {
        Err(CodecError::Operation(kind))
    }
}

/// Takes numbers and slices from the front, and never reads beyond the end.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
        if length > self.0.len() {
            return Err(CodecError::Length);
        }
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, CodecError> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(number))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, CodecError> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn i64(&mut self) -> Result<i64, CodecError> {
        Ok(self.u64()?.cast_signed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{fuzz_runs, mutate, seeded};

    fn header() -> Header {
        Header {
            cluster: 1,
            epoch: 2,
            writer: 3,
            incarnation: 4,
            previous: 5,
            base: 6,
        }
    }

    fn sample() -> Bytes {
        let mut operations = Operations::default();
        operations.change(&Item::put(b"/registry/a", b"value", 7, 7, 1, 0).kv);
        operations.change(&Item::tombstone(b"/registry/b", 8).kv);
        operations.delete_range(9, b"a", b"b");
        operations.grant(1, 60);
        operations.revoke(1, 10);
        operations.compact(3);
        operations.epoch(2000, "node-a");
        operations.resign();
        encode(&header(), &operations).0
    }

    #[test]
    fn an_encoded_record_decodes_to_itself() {
        let record = decode(&sample()).unwrap();
        assert_eq!(record.header, header());
        let [a, b, range, grant, revoke, compact, epoch, resign] = record.operations.as_slice() else {
            panic!("{:?}", record.operations)
        };
        assert!(matches!(a, Operation::Change(item) if item.key() == b"/registry/a" && item.value() == b"value"));
        assert!(matches!(b, Operation::Change(item) if item.is_tombstone() && item.modified == 8));
        assert!(matches!(range, Operation::DeleteRange { revision: 9, start, end } if start == "a" && end == "b"));
        assert!(matches!(grant, Operation::Grant { id: 1, ttl: 60 }));
        assert!(matches!(revoke, Operation::Revoke { id: 1, revision: 10 }));
        assert!(matches!(compact, Operation::Compact { revision: 3 }));
        assert!(matches!(epoch, Operation::Epoch { lease_ms: 2000, name } if name == "node-a"));
        assert!(matches!(resign, Operation::Resign));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = sample();
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(decode(&bad), Err(CodecError::Hash)), "bit {bit}");
        }
    }

    #[test]
    fn hostile_bytes_with_a_valid_hash_do_not_panic() {
        let mut random = seeded();
        let good = sample();
        for _ in 0..fuzz_runs(20_000) {
            let mut bad = good[..good.len() - HASH].to_vec();
            mutate(&mut bad, &mut random);
            seal(&mut bad);
            let _ = decode(&bad);
        }
    }

    #[test]
    fn a_damaged_record_is_not_a_message_of_another_store() {
        let good = sample();
        assert!(!is_of_other_store(&good, Some(1)) && !is_of_other_store(&good, None));
        assert!(is_of_other_store(&good, Some(2)), "a record of another store");
        assert!(
            is_of_other_store(b"", Some(1))
                && is_of_other_store(b"KNL", Some(1))
                && is_of_other_store(&[0; 300], Some(1))
        );
        for bit in 0..good.len() * 8 {
            let mut bad = good.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_of_other_store(&bad, Some(1)), "bit {bit}");
        }
    }

    #[test]
    fn a_later_format_is_rejected() {
        let good = sample();
        let mut bad = good[..good.len() - HASH].to_vec();
        bad[4] = 9;
        seal(&mut bad);
        assert!(matches!(decode(&bad), Err(CodecError::Format(9))));
    }
}
