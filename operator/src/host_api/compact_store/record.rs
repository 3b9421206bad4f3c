//! Binary layout of one record. Pure.

/// Digest annotation of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppliedDigest {
    /// The digest in the annotation.
    pub(crate) digest: [u8; 8],
    /// Whether the object still hashes to that digest.
    pub(crate) digest_matches: bool,
}

/// One record, followed by others.
///
/// ```text
/// length of the rest (4) │ length of the key (2) │ key │ 0: no digest, 1: differs, 2: matches (1) │ digest (8) │ example (1) │
///     compressed object
/// ```
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a>(&'a [u8]);

/// Bytes before the key, and bytes between the key and the compressed object.
const BEFORE: usize = 6;
const AFTER: usize = 10;

/// Encodes a record. The key has at most 64 KiB; names of objects are much shorter.
pub(crate) fn build_record(key: &str, digest: Option<AppliedDigest>, example: u8, packed: &[u8]) -> Vec<u8> {
    let key_length = u16::try_from(key.len()).expect("a namespace and a name have 253 characters each at most");
    let length = BEFORE + key.len() + AFTER + packed.len();
    let rest = u32::try_from(length - 4).expect("an object has some megabytes at most");
    let state = digest.map_or(0, |digest| if digest.digest_matches { 2 } else { 1 });
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(rest.to_be_bytes());
    bytes.extend(key_length.to_be_bytes());
    bytes.extend(key.as_bytes());
    bytes.push(state);
    bytes.extend(digest.map_or([0; 8], |digest| digest.digest));
    bytes.push(example);
    bytes.extend(packed);
    bytes
}

impl<'a> Record<'a> {
    /// Splits off the first record; `None` if there is none.
    pub(crate) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let rest = u32::from_be_bytes(*bytes.first_chunk()?);
        let (record, following) = bytes.split_at(4 + rest as usize);
        Some((Self(record), following))
    }

    /// Length of the record in bytes.
    pub(crate) fn length(self) -> usize {
        self.0.len()
    }

    /// `NAMESPACE/NAME`.
    pub(crate) fn key(self) -> &'a str {
        std::str::from_utf8(&self.0[BEFORE..self.end_of_key()]).expect("keys are encoded from UTF-8")
    }

    /// Digest of the object, if it has one.
    pub(crate) fn digest_state(self) -> Option<AppliedDigest> {
        let (state, rest) = self.0[self.end_of_key()..].split_first()?;
        let digest = rest.first_chunk().copied()?;
        (*state > 0).then_some(AppliedDigest {
            digest,
            digest_matches: *state == 2,
        })
    }

    /// Number of the example, and the compressed object.
    pub(crate) fn packed(self) -> (u8, &'a [u8]) {
        let packed = &self.0[self.end_of_key() + AFTER - 1..];
        (packed[0], &packed[1..])
    }

    fn end_of_key(self) -> usize {
        BEFORE + usize::from(u16::from_be_bytes([self.0[4], self.0[5]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_decodes_to_its_parts() {
        let digest = [1, 2, 3, 4, 5, 6, 7, 8];
        for matches in [None, Some(false), Some(true)] {
            let state = matches.map(|digest_matches| AppliedDigest { digest, digest_matches });
            let mut bytes = build_record("n/a", state, 7, b"text");
            let length = bytes.len();
            bytes.extend(b"others");
            let (record, following) = Record::split(&bytes).unwrap();
            assert_eq!((record.length(), following), (length, b"others".as_slice()));
            assert_eq!(record.key(), "n/a");
            assert_eq!(record.digest_state(), state);
            assert_eq!(record.packed(), (7, b"text".as_slice()));
        }
        assert!(Record::split(b"").is_none());
    }
}
