//! Writes files of bbolt, etcd's database, from front to back.
//!
//! Buckets with their entries come in, and the pages of a file go out in order. Only the entries
//! and a plan of the pages are in memory. Every page is in use, so the list of free pages is empty.
//!
//! ```text
//! page 0, 1   meta: the page of the root bucket, the number of pages, a checksum
//! page 2      list of free pages: empty
//! page 3      root bucket: a leaf with the first page of each bucket
//! page 4 …    for each bucket: its leaves, then the branches above them, the root last
//! ```
//!
//! The format is that of bbolt 1.4 on a little-endian machine
//! (<https://github.com/etcd-io/bbolt/tree/v1.4.3/internal/common>: `page.go`, `meta.go`,
//! `bucket.go`, `inode.go`). The crate `bbolt-rs` 1.3.10 is not used: it builds a database in
//! place, in a mapped file or in memory, and this is a stream.

use bytes::Bytes;

const PAGE: usize = 4096;
const PAGE_HEADER: usize = 16;
/// Header bytes of each entry, before the keys and values; the same in leaves and branches.
const ELEMENT: usize = 16;
const META_BYTES: usize = 64;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREE_LIST: u16 = 0x10;
/// Flag of an entry whose value is the location of a bucket.
const IS_BUCKET: u32 = 0x01;
const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const FREE_LIST_PAGE: u64 = 2;
const ROOT_PAGE: u64 = 3;
const FIRST_PAGE: u64 = 4;
/// Target bytes of a page that holds several entries. It is more than one page, so that less space
/// is lost at the ends.
const LEAF_BYTES: usize = 4 * PAGE;
const KEY_BYTES: usize = 23;

/// A key of at most 23 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    // The derived order needs this field order: of two keys with the same padded bytes, the shorter
    // sorts first.
    bytes: [u8; KEY_BYTES],
    length: u8,
}

impl Key {
    pub(crate) fn new<const N: usize>(key: &[u8; N]) -> Self {
        const { assert!(N <= KEY_BYTES) };
        let mut bytes = [0; KEY_BYTES];
        bytes[..N].copy_from_slice(key);
        let length = N as u8;
        Self { bytes, length }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// A key with its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Bytes,
}

impl Entry {
    fn size(&self) -> usize {
        ELEMENT + self.key.as_slice().len() + self.value.len()
    }
}

/// A bucket without nested buckets.
#[derive(Debug)]
pub(crate) struct Bucket {
    name: &'static str,
    entries: Vec<Entry>,
}

impl Bucket {
    /// Takes entries in any order; each key must be unique.
    pub(crate) fn new(name: &'static str, mut entries: Vec<Entry>) -> Self {
        entries.sort_unstable_by_key(|entry| entry.key);
        Self { name, entries }
    }

    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// A page together with its overflow pages.
#[derive(Debug, Clone, Copy)]
struct Node {
    page: u64,
    pages: u32,
    /// Index of its first entry, or of its first child in the level below.
    first: usize,
    count: u16,
}

#[derive(Debug)]
struct Tree {
    bucket: Bucket,
    /// Leaves first; the last level has one page.
    levels: Vec<Vec<Node>>,
}

/// A file whose pages are planned.
#[derive(Debug)]
pub(crate) struct File {
    trees: Vec<Tree>,
    pages: u64,
}

impl File {
    pub(crate) fn new(mut buckets: Vec<Bucket>) -> Self {
        buckets.sort_unstable_by_key(|bucket| bucket.name);
        let mut pages = FIRST_PAGE;
        let trees = buckets.into_iter().map(|bucket| Tree::new(bucket, &mut pages));
        let trees = trees.collect();
        Self { trees, pages }
    }

    /// Size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.pages * PAGE as u64
    }

    /// Returns the content of the file, a few pages at a time.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Bytes> + Send {
        let head = Bytes::from(self.head());
        let tree = self.trees.into_iter().flat_map(Tree::into_pieces);
        std::iter::once(head).chain(tree)
    }

    fn head(&self) -> Vec<u8> {
        let mut out = [self.meta(0), self.meta(1)].concat();
        out.extend(page(FREE_LIST_PAGE, FREE_LIST, 0, 1));
        let bucket_values = self
            .trees
            .iter()
            .map(|tree| (tree.bucket.name.as_bytes(), tree.bucket_value()));
        let bucket_values: Vec<_> = bucket_values.collect();
        let entries = bucket_values
            .iter()
            .map(|(name, bucket_value)| (*name, bucket_value.as_slice()));
        out.extend(leaf(ROOT_PAGE, 1, IS_BUCKET, entries.collect()));
        out
    }

    /// Builds a meta page. bbolt writes the two of them by turns, and the one with the higher
    /// transaction number counts.
    fn meta(&self, transaction: u64) -> Vec<u8> {
        let mut meta = Vec::with_capacity(META_BYTES);
        for number in [MAGIC, VERSION, PAGE as u32, 0] {
            meta.extend_from_slice(&number.to_le_bytes());
        }
        for number in [ROOT_PAGE, 0, FREE_LIST_PAGE, self.pages, transaction] {
            meta.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = fnv(&meta);
        meta.extend_from_slice(&checksum.to_le_bytes());
        let mut out = page(transaction, META, 0, 1);
        out[PAGE_HEADER..][..META_BYTES].copy_from_slice(&meta);
        out
    }
}

impl Tree {
    /// Plans the pages of a bucket behind the pages planned so far.
    fn new(bucket: Bucket, pages: &mut u64) -> Self {
        let sizes = bucket.entries.iter().map(Entry::size);
        let mut levels = vec![plan(sizes, LEAF_BYTES, pages)];
        while let [.., level] = levels.as_slice()
            && level.len() > 1
        {
            let sizes = level.iter().map(|_| ELEMENT + KEY_BYTES);
            let above = plan(sizes, PAGE, pages);
            levels.push(above);
        }
        Self { bucket, levels }
    }

    /// The value of the bucket in the root bucket: its root page, and a counter that etcd does not
    /// use.
    fn bucket_value(&self) -> Vec<u8> {
        let top = self.levels.last().and_then(|level| level.first());
        let page = top.map_or(0, |node| node.page);
        [page.to_le_bytes(), [0; 8]].concat()
    }

    fn into_pieces(self) -> impl Iterator<Item = Bytes> + Send {
        let nodes: Vec<(usize, Node)> = self
            .levels
            .iter()
            .enumerate()
            .flat_map(|(level, nodes)| nodes.iter().map(move |node| (level, *node)))
            .collect();
        nodes
            .into_iter()
            .map(move |(level, node)| self.piece(level, node).into())
    }

    fn piece(&self, level: usize, node: Node) -> Vec<u8> {
        let range = node.first..node.first + usize::from(node.count);
        let Some(below) = level.checked_sub(1) else {
            let entries = self.bucket.entries[range].iter();
            let entries = entries.map(|entry| (entry.key.as_slice(), entry.value.as_ref()));
            return leaf(node.page, node.pages, 0, entries.collect());
        };
        let children = self.levels[below][range].iter();
        let children: Vec<_> = children
            .map(|child| (self.first_key(below, child), child.page))
            .collect();
        branch(node.page, &children)
    }

    fn first_key(&self, level: usize, node: &Node) -> &[u8] {
        match level.checked_sub(1) {
            Some(below) => self.first_key(below, &self.levels[below][node.first]),
            None => self.bucket.entries[node.first].key.as_slice(),
        }
    }
}

/// Cuts a level into pages of at most `limit` bytes, or of one element. A level without elements is
/// an empty page.
fn plan(sizes: impl Iterator<Item = usize>, limit: usize, pages: &mut u64) -> Vec<Node> {
    let mut nodes = Vec::new();
    let (mut first, mut count, mut bytes) = (0, 0, PAGE_HEADER);
    let mut close = |first: usize, count: u16, bytes: usize| {
        let length = bytes.div_ceil(PAGE) as u32;
        nodes.push(Node {
            page: *pages,
            pages: length,
            first,
            count,
        });
        *pages += u64::from(length);
    };
    for size in sizes {
        if count > 0 && bytes + size > limit {
            close(first, count, bytes);
            first += usize::from(count);
            (count, bytes) = (0, PAGE_HEADER);
        }
        count += 1;
        bytes += size;
    }
    close(first, count, bytes);
    nodes
}

/// Builds an empty page with its header.
fn page(number: u64, kind: u16, count: usize, pages: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(pages as usize * PAGE);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&(count as u16).to_le_bytes());
    out.extend_from_slice(&(pages - 1).to_le_bytes());
    out.resize(pages as usize * PAGE, 0);
    out
}

fn leaf(number: u64, pages: u32, flags: u32, entries: Vec<(&[u8], &[u8])>) -> Vec<u8> {
    let mut out = page(number, LEAF, entries.len(), pages);
    let mut free = PAGE_HEADER + ELEMENT * entries.len();
    for (at, (key, value)) in entries.into_iter().enumerate() {
        let element = PAGE_HEADER + ELEMENT * at;
        for (field, number) in [flags, (free - element) as u32, key.len() as u32, value.len() as u32]
            .into_iter()
            .enumerate()
        {
            put(&mut out, element + 4 * field, &number.to_le_bytes());
        }
        put(&mut out, free, key);
        put(&mut out, free + key.len(), value);
        free += key.len() + value.len();
    }
    out
}

fn branch(number: u64, children: &[(&[u8], u64)]) -> Vec<u8> {
    let mut out = page(number, BRANCH, children.len(), 1);
    let mut free = PAGE_HEADER + ELEMENT * children.len();
    for (at, (key, child)) in children.iter().enumerate() {
        let element = PAGE_HEADER + ELEMENT * at;
        put(&mut out, element, &((free - element) as u32).to_le_bytes());
        put(&mut out, element + 4, &(key.len() as u32).to_le_bytes());
        put(&mut out, element + 8, &child.to_le_bytes());
        put(&mut out, free, key);
        free += key.len();
    }
    out
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
