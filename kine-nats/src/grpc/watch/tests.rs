//! A watch stream with a slow client on a store that changes.

use super::events::PAGE;
use super::*;
use crate::metrics::Metrics;
use crate::mvcc::Mvcc;
use crate::proto::mvccpb;
use crate::quota::Quota;
use crate::state::State;

fn store(revisions: i64) -> Arc<Store> {
    let state = State::new(Mvcc::new());
    let store = Store::new(state, Quota::new(None, None), Metrics::new(), None);
    for _ in 1..revisions {
        commit(&store);
    }
    Arc::new(store)
}

/// Commits like the writer: visible first, then marked.
fn commit(store: &Store) -> i64 {
    let head = {
        let mut state = store.write();
        let head = state.mvcc.advance();
        state.put(b"/a/x", b"", 0);
        state.mvcc.publish(head);
        head
    };
    store.set_stored(head as u64, head);
    let state = store.read();
    store.hub.commit(state.mvcc.changes(head), head);
    head
}

fn stream(store: &Arc<Store>) -> (OpenStream, mpsc::Receiver<Result<pb::WatchResponse, Status>>) {
    let (answers, receiver) = mpsc::channel(1);
    let stream = OpenStream {
        store: Arc::clone(store),
        answers,
        notify: Arc::new(Notify::new()),
        watches: BTreeMap::new(),
        closed: BTreeSet::new(),
        next_id: 0,
        needs_leader: false,
    };
    (stream, receiver)
}

fn from(start_revision: i64) -> pb::WatchCreateRequest {
    pb::WatchCreateRequest {
        key: "/a/".into(),
        range_end: "/a0".into(),
        start_revision,
        ..Default::default()
    }
}

fn revisions(answer: &pb::WatchResponse) -> Vec<i64> {
    let decode = |bytes: &Bytes| <mvccpb::Event as prost::Message>::decode(bytes.clone()).unwrap();
    answer
        .events
        .iter()
        .map(|event| decode(event).kv.unwrap().mod_revision)
        .collect()
}

#[tokio::test]
async fn a_watch_from_the_past_gets_every_event_despite_an_earlier_commit() {
    let store = store(8);
    let (mut stream, mut receiver) = stream(&store);
    // The response waits for room; meanwhile revision 9 is committed.
    stream.answers.send(Ok(pb::WatchResponse::default())).await.unwrap();
    let working = tokio::spawn(async move {
        stream.create(from(5)).await.ok().unwrap();
        stream.send_events().await.ok().unwrap();
    });
    tokio::task::yield_now().await;
    assert_eq!(store.hub.watches().0, 1);
    assert_eq!(commit(&store), 9);
    receiver.recv().await.unwrap().unwrap();
    assert!(receiver.recv().await.unwrap().unwrap().created);
    assert_eq!(revisions(&receiver.recv().await.unwrap().unwrap()), [5, 6, 7, 8, 9]);
    working.await.unwrap();
}

#[tokio::test]
async fn watches_with_many_events_alternate() {
    let store = store(3 * PAGE as i64);
    let (mut stream, mut receiver) = stream(&store);
    let working = tokio::spawn(async move {
        for _ in 0..2 {
            stream.create(from(2)).await.ok().unwrap();
        }
        for _ in 0..3 {
            stream.send_events().await.ok().unwrap();
        }
    });
    let mut heard = Vec::new();
    while let Some(answer) = receiver.recv().await {
        let answer = answer.unwrap();
        heard.extend((!answer.created).then_some((answer.watch_id, answer.events.len())));
    }
    working.await.unwrap();
    let last = 3 * PAGE - 1 - 2 * PAGE;
    assert_eq!(
        heard,
        [(0, PAGE), (1, PAGE), (0, PAGE), (1, PAGE), (0, last), (1, last)]
    );
}

#[tokio::test]
async fn a_client_that_disconnects_during_a_create_leaves_no_watch() {
    let store = store(8);
    let (mut stream, receiver) = stream(&store);
    drop(receiver);
    assert!(stream.create(from(5)).await.is_err());
    drop(stream);
    assert_eq!(store.hub.watches().0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_from_old_revisions_get_every_revision_once_under_load() {
    let store = store(50);
    let writing = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            while commit(&store) < 3000 {
                tokio::task::yield_now().await;
            }
        }
    });
    let mut opened = 0;
    while !writing.is_finished() || opened < 20 {
        opened += 1;
        let begin = (store.revision() - 30).max(2);
        let (mut stream, mut receiver) = stream(&store);
        let until = begin + 40;
        let watching = tokio::spawn(async move {
            let _ = stream.create(from(begin)).await;
            let notify = Arc::clone(&stream.notify);
            loop {
                if stream.send_events().await.is_err() {
                    return;
                }
                tokio::select! {
                    () = notify.notified() => {}
                    () = stream.answers.closed() => return,
                }
            }
        });
        let mut next = begin;
        while next < until.min(3000) {
            let answer = receiver.recv().await.unwrap().unwrap();
            for revision in revisions(&answer) {
                assert_eq!(revision, next, "watch {opened} from {begin}");
                next += 1;
            }
        }
        drop(receiver);
        watching.await.unwrap();
    }
    println!("{opened} watches");
    assert_eq!(store.hub.watches().0, 0);
}
