//! One line of a ledger. Pure.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// What an object bears of what was applied of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The digest that it bears.
    pub(super) digest: [u8; 8],
    /// Whether it is what that is the digest of.
    pub(super) is_so: bool,
}

/// One line: a single piece of memory, for there are hundreds of thousands. In order of their keys.
///
/// ```text
/// length of the key (2) │ key │ 0: no mark, 1: a mark, 2: and it is so (1) │ digest (8) │ example (1) │ what is packed
/// ```
#[derive(Clone, Debug)]
pub(super) struct Line(Box<[u8]>);

impl Line {
    /// A line of a key of at most 64 KiB, of which names of objects have a part.
    pub(super) fn new(key: &str, mark: Option<Mark>, (example, packed): (u8, &[u8])) -> Self {
        let length = u16::try_from(key.len()).expect("a namespace and a name have 253 characters each at most");
        let state = mark.map_or(0, |mark| if mark.is_so { 2 } else { 1 });
        let digest = mark.map_or([0; 8], |mark| mark.digest);
        let mut bytes = Vec::with_capacity(12 + key.len() + packed.len());
        bytes.extend(length.to_be_bytes());
        bytes.extend(key.as_bytes());
        bytes.push(state);
        bytes.extend(digest);
        bytes.push(example);
        bytes.extend(packed);
        Self(bytes.into_boxed_slice())
    }

    /// `NAMESPACE/NAME`.
    pub(super) fn key(&self) -> &str {
        std::str::from_utf8(self.key_bytes()).expect("it was a text")
    }

    /// What the object bears.
    pub(super) fn mark(&self) -> Option<Mark> {
        let (state, rest) = self.rest().split_first()?;
        let digest = rest.first_chunk().copied()?;
        (*state > 0).then_some(Mark {
            digest,
            is_so: *state == 2,
        })
    }

    /// What is packed, and by which example.
    pub(super) fn packed(&self) -> (u8, &[u8]) {
        let packed = &self.rest()[9..];
        (packed[0], &packed[1..])
    }

    fn key_bytes(&self) -> &[u8] {
        &self.0[2..self.end_of_key()]
    }

    fn rest(&self) -> &[u8] {
        &self.0[self.end_of_key()..]
    }

    fn end_of_key(&self) -> usize {
        2 + usize::from(u16::from_be_bytes([self.0[0], self.0[1]]))
    }
}

impl Borrow<[u8]> for Line {
    fn borrow(&self) -> &[u8] {
        self.key_bytes()
    }
}

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        self.key_bytes() == other.key_bytes()
    }
}

impl Eq for Line {}

impl PartialOrd for Line {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Line {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key_bytes().cmp(other.key_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_line_says_what_it_was_made_of_and_is_found_by_its_key() {
        let digest = [1, 2, 3, 4, 5, 6, 7, 8];
        for mark in [None, Some(false), Some(true)] {
            let mark = mark.map(|is_so| Mark { digest, is_so });
            let line = Line::new("n/a", mark, (7, b"text"));
            assert_eq!(line.key(), "n/a");
            assert_eq!(line.mark(), mark);
            assert_eq!(line.packed(), (7, b"text".as_slice()));
        }
        let lines: BTreeSet<_> = ["n/b", "m/a", "n/a"].map(|key| Line::new(key, None, (0, b""))).into();
        assert_eq!(lines.iter().map(Line::key).collect::<Vec<_>>(), ["m/a", "n/a", "n/b"]);
        assert!(lines.contains(b"n/b".as_slice()) && !lines.contains(b"n".as_slice()));
    }
}
