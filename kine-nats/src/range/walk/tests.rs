//! Compares all pages together with a Range, over random stores.

use super::*;
use crate::fuzz::seeded;
use crate::mvcc::key_of;
use rand::RngExt;
use rand::rngs::StdRng;

fn store(random: &mut StdRng) -> Mvcc {
    let mut mvcc = Mvcc::new();
    for _ in 0..300 {
        let revision = mvcc.advance();
        for _ in 0..random.random_range(1..40) {
            let key = format!("k{:04}", random.random_range(0..6000));
            if random.random_ratio(2, 5) {
                mvcc.delete(key.as_bytes());
            } else {
                let length = [0, 100, 5000][random.random_range(0..3usize)];
                mvcc.put(key.as_bytes(), &vec![b'v'; length], 0);
            }
        }
        mvcc.publish(revision);
    }
    mvcc
}

/// All pages as one response, and their number.
fn walk(mvcc: &Mvcc, request: &RangeRequest) -> (RangeResponse, usize) {
    let (mut walk, mut step) = Walk::start(mvcc, request).unwrap();
    let (mut kvs, mut pages) = (Vec::new(), 1);
    loop {
        match step {
            Step::Pending => {}
            Step::Page(page) => {
                let size: usize = page.iter().map(Bytes::len).sum();
                assert!((PAGE..PAGE + 6000).contains(&size), "{size}");
                pages += 1;
                kvs.extend(page);
            }
            Step::Last(mut last) => {
                assert!(pages == 1 || !last.kvs.is_empty());
                kvs.append(&mut last.kvs);
                last.kvs = kvs;
                return (last, pages);
            }
        }
        step = walk.step(mvcc).unwrap();
    }
}

#[test]
fn pages_form_a_range() {
    let mut random = seeded();
    let mvcc = store(&mut random);
    let mut most = 0;
    for _ in 0..200 {
        let request = RangeRequest {
            key: format!("k{:04}", random.random_range(0..2000)).into(),
            range_end: ["\0", "z", "k4000", "k0", ""][random.random_range(0..5usize)].into(),
            limit: [0, -1, 1, 10, 500, 2000, i64::MAX][random.random_range(0..7usize)],
            revision: random.random_range(-1..=301),
            keys_only: random.random_ratio(1, 4),
            count_only: random.random_ratio(1, 8),
            sort_target: [0, 0, 0, 4][random.random_range(0..4usize)],
            ..RangeRequest::default()
        };
        let (together, pages) = walk(&mvcc, &request);
        let expected = range(&mvcc, &request, revision(&request, mvcc.visible()));
        assert!(together == expected, "{request:?}");
        most = most.max(pages);
    }
    assert!(most > 5, "{most} pages");
}

fn all() -> RangeRequest {
    RangeRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        ..RangeRequest::default()
    }
}

#[test]
fn many_deleted_keys_are_skipped_in_slices() {
    let mut mvcc = Mvcc::new();
    for number in 0..2 * SLICE {
        mvcc.advance();
        mvcc.put(format!("k{number:08}").as_bytes(), b"", 0);
        mvcc.delete(format!("k{number:08}").as_bytes());
    }
    let head = mvcc.advance();
    mvcc.put(b"last", b"", 0);
    mvcc.publish(head);
    let limited = RangeRequest { limit: 1, ..all() };
    let (mut walk, first) = Walk::start(&mvcc, &limited).unwrap();
    assert!(matches!(first, Step::Pending));
    assert!(matches!(walk.step(&mvcc), Ok(Step::Pending)));
    let Ok(Step::Last(last)) = walk.step(&mvcc) else {
        panic!("the keys end");
    };
    assert_eq!((key_of(&last.kvs[0]), last.more, last.count), (&b"last"[..], false, 1));
}

#[test]
fn a_walk_stays_at_its_revision_until_that_is_compacted() {
    let mut mvcc = Mvcc::new();
    for number in 0..3 {
        mvcc.advance();
        mvcc.put(format!("k{number}").as_bytes(), &[0; PAGE], 0);
    }
    mvcc.publish(4);
    let (mut walk, first) = Walk::start(&mvcc, &all()).unwrap();
    assert!(matches!(first, Step::Page(page) if page.len() == 1));
    mvcc.advance();
    mvcc.put(b"k1", b"new", 0);
    mvcc.delete(b"k2");
    mvcc.publish(5);
    mvcc.compact(4);
    mvcc.trim(usize::MAX);
    assert!(matches!(walk.step(&mvcc), Ok(Step::Page(page)) if page[0].len() > PAGE));
    assert_eq!(walk.visible(), 4);
    mvcc.compact(5);
    assert_eq!(walk.step(&mvcc).err(), Some(RpcError::Compacted));
}
