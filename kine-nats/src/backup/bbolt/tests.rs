//! Reads files with a parser that follows only the description of the format.

use super::*;
use crate::fuzz::seeded;
use rand::RngExt;
use rand::rngs::StdRng;
use std::collections::BTreeSet;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// A file, and its pages that were visited.
struct Reader {
    file: Vec<u8>,
    met: BTreeSet<u64>,
}

impl Reader {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(&self.file[at..at + bytes]);
        u64::from_le_bytes(number)
    }

    /// Offset, kind and number of elements of a page.
    fn page(&mut self, page: u64) -> (usize, u64, usize) {
        let at = page as usize * 4096;
        assert_eq!(self.number(at, 8), page, "the number of the page");
        let overflow = self.number(at + 12, 4);
        for page in page..=page + overflow {
            assert!(self.met.insert(page), "page {page} is met twice");
        }
        (at, self.number(at + 8, 2), self.number(at + 10, 2) as usize)
    }

    /// The slices of a page with entries: flags, keys and values.
    fn leaf(&self, at: usize, count: usize) -> Vec<(u64, Vec<u8>, Vec<u8>)> {
        let element = |number: usize| {
            let element = at + 16 + 16 * number;
            let field = |field: usize| self.number(element + 4 * field, 4) as usize;
            let (begin, key, value) = (element + field(1), field(2), field(3));
            let key = self.file[begin..begin + key].to_vec();
            let value = self.file[begin + key.len()..][..value].to_vec();
            (self.number(element, 4), key, value)
        };
        (0..count).map(element).collect()
    }

    fn walk(&mut self, page: u64, into: &mut Entries) {
        let (at, kind, count) = self.page(page);
        if kind == 2 {
            for (flags, key, value) in self.leaf(at, count) {
                assert_eq!(flags, 0);
                into.push((key, value));
            }
            return;
        }
        assert_eq!(kind, 1, "page {page}");
        for number in 0..count {
            let element = at + 16 + 16 * number;
            let begin = element + self.number(element, 4) as usize;
            let key = self.file[begin..begin + self.number(element + 4, 4) as usize].to_vec();
            let first = into.len();
            self.walk(self.number(element + 8, 8), into);
            assert_eq!(into[first].0, key, "what a branch says of a page");
        }
    }
}

fn read(file: File) -> Vec<(String, Entries)> {
    let size = file.size();
    let file: Vec<u8> = file.into_pieces().flatten().collect();
    assert_eq!(file.len() as u64, size);
    let met = BTreeSet::new();
    let mut reader = Reader { file, met };
    for page in [0, 1] {
        let (at, kind, _) = reader.page(page);
        assert_eq!((kind, reader.number(at + 16, 4)), (4, 0xED0C_DAED));
        assert_eq!(reader.number(at + 20, 4), 2, "version");
        assert_eq!(reader.number(at + 24, 4), 4096);
        assert_eq!((reader.number(at + 32, 8), reader.number(at + 48, 8)), (3, 2));
        assert_eq!(reader.number(at + 56, 8) * 4096, size);
        assert_eq!(reader.number(at + 64, 8), page, "transaction");
        assert_eq!(reader.number(at + 72, 8), fnv(&reader.file[at + 16..at + 72]));
    }
    let (_, kind, count) = reader.page(2);
    assert_eq!((kind, count), (16, 0));
    let (at, kind, count) = reader.page(3);
    assert_eq!(kind, 2);
    let mut buckets = Vec::new();
    for (flags, name, place) in reader.leaf(at, count) {
        assert_eq!((flags, place.len()), (1, 16));
        let mut entries = Vec::new();
        let page = u64::from_le_bytes(place[..8].try_into().unwrap());
        reader.walk(page, &mut entries);
        assert!(entries.is_sorted_by(|(one, _), (two, _)| one < two));
        buckets.push((String::from_utf8(name).unwrap(), entries));
    }
    assert_eq!(reader.met, (0..size / 4096).collect(), "every page is used");
    buckets
}

fn entry(number: u64, value: Bytes) -> Entry {
    let key = Key::new(&number.to_be_bytes());
    Entry { key, value }
}

#[test]
fn a_file_contains_all_entries() {
    let mut random = seeded();
    for round in 0..60 {
        let bucket = |random: &mut StdRng, name: &'static str, most: usize| {
            let count = random.random_range(0..=most);
            let largest = [0, 30, 3000, 40_000][random.random_range(0..4)];
            let entries = (0..count as u64).map(|number| {
                let value: Vec<u8> = vec![number as u8; random.random_range(0..=largest)];
                entry(number * 3, value.into())
            });
            Bucket::new(name, entries.collect())
        };
        let buckets = vec![
            bucket(&mut random, "meta", 3),
            bucket(&mut random, "key", if round == 0 { 2000 } else { 300 }),
            bucket(&mut random, "members", 0),
        ];
        let put: Vec<(String, Entries)> = [1, 2, 0]
            .map(|at: usize| {
                let Bucket { name, entries } = &buckets[at];
                let entries = entries.iter();
                let entries = entries.map(|entry| (entry.key.as_slice().to_vec(), entry.value.to_vec()));
                (name.to_string(), entries.collect())
            })
            .into();
        assert!(read(File::new(buckets)) == put, "round {round}");
    }
}

#[test]
fn a_large_bucket_has_several_branch_levels() {
    // One entry fits into a page of the lowest level, and a branch has about a hundred of those.
    let value = Bytes::from(vec![7; 8200]);
    let entries: Vec<_> = (0..11_000).map(|number| entry(number, value.clone())).collect();
    let file = File::new(vec![Bucket::new("key", entries)]);
    assert_eq!(file.trees[0].levels.len(), 4);
    let buckets = read(file);
    assert_eq!(buckets[0].1.len(), 11_000);
    assert_eq!(buckets[0].1[10_999], (10_999u64.to_be_bytes().to_vec(), value.to_vec()));
}

#[test]
fn keys_are_ordered_as_their_bytes_are() {
    let keys = [
        Key::new(b"a"),
        Key::new(b"a\0"),
        Key::new(b"a\0t"),
        Key::new(b"aa"),
        Key::new(b"b"),
    ];
    assert!(keys.is_sorted_by(|one, two| one < two));
    assert!(keys.is_sorted_by(|one, two| one.as_slice() < two.as_slice()));
}

/// From <http://www.isthe.com/chongo/src/fnv/test_fnv.c>.
#[test]
fn the_checksum_is_fnv() {
    for (bytes, hash) in [
        ("", 0xcbf2_9ce4_8422_2325),
        ("a", 0xaf63_dc4c_8601_ec8c),
        ("foobar", 0x8594_4171_f739_67e8),
    ] {
        assert_eq!(fnv(bytes.as_bytes()), hash, "{bytes}");
    }
}
