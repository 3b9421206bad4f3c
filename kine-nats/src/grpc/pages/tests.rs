//! Long ranges of stores that change meanwhile.

use super::*;
use crate::metrics::Metrics;
use crate::mvcc::Mvcc;
use crate::quota::Quota;
use crate::range::gather::SLICE;
use crate::range::range;

const KEYS: usize = 3 * SLICE;

fn name(key: usize) -> Vec<u8> {
    format!("/r/{key:06}").into_bytes()
}

fn state() -> State {
    let mut state = State::new(Mvcc::new());
    for key in 0..KEYS {
        state.mvcc.advance();
        state.put(&name(key), b"old", 0);
    }
    state.mvcc.publish(state.mvcc.head());
    state
}

fn store() -> Store {
    Store::new(state(), Quota::new(None, None), Metrics::new(), None)
}

/// A serializable request: there is no writer.
fn all(revision: i64) -> pb::RangeRequest {
    pb::RangeRequest {
        key: "/r/".into(),
        range_end: "/r0".into(),
        revision,
        serializable: true,
        ..Default::default()
    }
}

/// Overwrites half of the keys and deletes the others, then compacts and trims as far as pins
/// allow.
fn rewrite(store: &Store) -> i64 {
    let mut state = store.write();
    let revision = state.mvcc.advance();
    for key in 0..KEYS {
        if key % 2 == 0 {
            state.put(&name(key), b"new", 0);
        } else {
            state.delete(&name(key));
        }
    }
    state.mvcc.publish(revision);
    state.mvcc.compact(revision);
    while state.mvcc.trim(1000) {}
    revision
}

#[tokio::test]
async fn a_long_range_keeps_its_revision_during_compactions() {
    let store = store();
    let head = store.read().mvcc.visible();
    for requested in [0, head - 5] {
        let expected = {
            let mvcc = &store.read().mvcc;
            range(
                mvcc,
                &all(requested),
                if requested == 0 { mvcc.visible() } else { requested },
            )
        };
        let (request, visible) = (all(requested), store.read().mvcc.visible());
        // At this point some keys are not read yet, and the store is not locked.
        let (mut answer, ()) = tokio::join!(
            biased;
            async { read_complete(&store, &request).await.unwrap() },
            async { assert!(store.state().try_write().is_ok()) }
        );
        assert_eq!(answer.header.take().unwrap().revision, visible);
        assert!(answer == expected && answer.count > 0);
    }
    let request = all(0);
    let reading = async {
        let mut answer = read_complete(&store, &request).await.unwrap();
        (answer.header.take().unwrap().revision, answer)
    };
    let expected = range(&store.read().mvcc, &all(0), head);
    let ((revision, answer), rewritten) = tokio::join!(biased; reading, async { rewrite(&store) });
    assert!(revision == head && answer == expected);
    assert_eq!(
        read_complete(&store, &all(head)).await.unwrap_err(),
        RpcError::Compacted
    );
    {
        let mut state = store.write();
        assert!(state.mvcc.may_trim(), "the compaction waited for the range");
        while state.mvcc.trim(1000) {}
    }
    let answer = read_complete(&store, &all(rewritten)).await.unwrap();
    assert_eq!(answer.count, (KEYS / 2) as i64);
}

#[tokio::test]
async fn a_read_continues_in_a_reread_state_if_possible() {
    for (compacted, expected) in [(0, Ok(KEYS as i64)), (1, Err(RpcError::LeaderChanged))] {
        let store = store();
        let head = store.read().mvcc.visible();
        let mut reread = state();
        let later = reread.mvcc.advance();
        reread.delete(&name(KEYS - 1));
        reread.mvcc.publish(later);
        reread.mvcc.compact(head + compacted);
        let request = all(0);
        let install = async { store.install_state(reread, 9) };
        let (answer, ()) = tokio::join!(biased; read_complete(&store, &request), install);
        assert_eq!(answer.map(|answer| answer.kvs.len() as i64), expected);
    }
}
