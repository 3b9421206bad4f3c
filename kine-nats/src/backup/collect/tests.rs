//! Backups of stores that change meanwhile.

use super::*;
use crate::metrics::Metrics;
use crate::mvcc::Mvcc;
use crate::quota::Quota;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::yield_now;

/// Two versions of each key; the second of every third key is a delete. The first half is
/// compacted.
fn state(keys: usize) -> State {
    let mut state = State::new(Mvcc::new());
    for key in 0..keys {
        state.mvcc.advance();
        state.put(format!("/r/{key:06}").as_bytes(), b"1", 0);
    }
    for key in 0..keys {
        state.mvcc.advance();
        let name = format!("/r/{key:06}");
        if key % 3 == 0 {
            state.delete(name.as_bytes());
        } else {
            state.put(name.as_bytes(), b"2", 0);
        }
    }
    state.mvcc.publish(state.mvcc.head());
    state.mvcc.compact(1 + (keys + keys / 2) as i64);
    state
}

fn store(state: State) -> Store {
    Store::new(state, Quota::new(None, None), Metrics::new(), None)
}

fn revisions(versions: &[Version]) -> Vec<i64> {
    let mut revisions: Vec<_> = versions.iter().map(|version| version.revision).collect();
    revisions.sort_unstable();
    revisions
}

#[tokio::test]
async fn a_backup_contains_everything_readable_since_the_compact_revision() {
    // More than one page of each.
    let keys = 3 * PAGE;
    let store = store(state(keys));
    let parts = collect(&store).await.unwrap();
    let (compacted, head) = (1 + (keys + keys / 2) as i64, 1 + 2 * keys as i64);
    assert_eq!((parts.compacted, parts.revision), (compacted, head));
    // Keys in the compacted half have their second version, unless it is a delete. The others have
    // their first one.
    let last = keys / 2 - 1;
    let changed = (0..last).filter(|key| key % 3 != 0).map(|key| (2 + keys + key) as i64);
    let untouched = (last + 1..keys).map(|key| 2 + key as i64);
    assert_eq!(revisions(&parts.base), untouched.chain(changed).collect::<Vec<_>>());
    assert!(parts.base.iter().all(|version| !version.delete));
    assert_eq!(revisions(&parts.history), (compacted..=head).collect::<Vec<_>>());
    let deletes = parts.history.iter().filter(|version| version.delete).count();
    assert_eq!(deletes, (last..keys).filter(|key| key % 3 == 0).count());
    assert!(store.read().mvcc.may_trim(), "no revision is pinned");
}

#[tokio::test]
async fn a_backup_has_one_revision_during_writes_and_compactions() {
    let keys = 3 * PAGE;
    let (store, quiet) = (Arc::new(store(state(keys))), store(state(keys)));
    let collecting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { collect(&store).await.unwrap() }
    });
    yield_now().await;
    let mut changes = 0;
    while !collecting.is_finished() {
        {
            let mut state = store.write();
            state.mvcc.advance();
            state.put(format!("/r/{changes:06}").as_bytes(), b"3", 0);
            let head = state.mvcc.head();
            state.mvcc.publish(head);
            state.mvcc.compact(head);
            state.mvcc.trim(1000);
        }
        changes += 1;
        yield_now().await;
    }
    assert!(changes > 3, "the store changed meanwhile: {changes}");
    let (parts, expected) = (collecting.await.unwrap(), collect(&quiet).await.unwrap());
    assert_eq!(
        (parts.revision, parts.compacted),
        (expected.revision, expected.compacted)
    );
    let pairs = [(&parts.base, &expected.base), (&parts.history, &expected.history)];
    for (found, expected) in pairs {
        let show = |versions: &[Version]| versions.iter().map(|version| version.kv.clone()).collect::<Vec<_>>();
        assert!(show(found) == show(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn a_backup_contains_leases_only_with_their_revision() {
    let mut state = state(3);
    state.leases.grant(7, 60, Duration::ZERO);
    state.mvcc.advance();
    state.put(b"/leased", b"", 7);
    let store = Arc::new(store(state));
    let collecting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { collect(&store).await }
    });
    yield_now().await;
    assert!(!collecting.is_finished(), "the head is not stored yet");
    {
        let mut state = store.write();
        let head = state.mvcc.head();
        state.mvcc.publish(head);
        // The next record, in flight, ends the lease.
        state.mvcc.advance();
        state.revoke(7);
    }
    store.set_stored(9, 8);
    let parts = collecting.await.unwrap().unwrap();
    assert_eq!((parts.revision, parts.leases, parts.sequence), (8, vec![(7, 60)], 9));
    let last = parts.history.last().unwrap();
    assert_eq!((last.revision, crate::mvcc::key_of(&last.kv)), (8, &b"/leased"[..]));
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_backup_is_an_error() {
    let unstored = || {
        let mut state = state(3);
        state.mvcc.advance();
        state.put(b"/a", b"", 0);
        Arc::new(store(state))
    };
    let late = unstored();
    assert_eq!(collect(&late).await.unwrap_err(), RpcError::Timeout);
    let stopping = unstored();
    stopping.stop();
    assert_eq!(collect(&stopping).await.unwrap_err(), RpcError::Stopped);
    let replaced = unstored();
    let collecting = tokio::spawn({
        let store = Arc::clone(&replaced);
        async move { collect(&store).await }
    });
    yield_now().await;
    replaced.install_state(state(9), 5);
    assert_eq!(collecting.await.unwrap().unwrap_err(), RpcError::LeaderChanged);
}
