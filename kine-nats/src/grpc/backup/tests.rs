//! Backups as clients see them.

use super::*;
use crate::grpc::node::BACKUPS;
use crate::metrics::Metrics;
use crate::mvcc::Mvcc;
use crate::quota::Quota;
use crate::state::State;
use std::convert::Infallible;
use tokio::sync::watch;
use yoke_test_support::eventually;

fn node(bytes: usize) -> (Node, Arc<Store>) {
    let mut state = State::new(Mvcc::new());
    for key in 0..bytes / 10_000 {
        state.mvcc.advance();
        state.put(&key.to_be_bytes(), &[7; 10_000], 0);
    }
    state.mvcc.publish(state.mvcc.head());
    let store = Arc::new(Store::new(state, Quota::new(None, None), Metrics::new(), None));
    let (_, stores) = watch::channel(Some(Arc::clone(&store)));
    (
        Node::new(stores, Duration::from_secs(60), vec!["http://a:1".into()]),
        store,
    )
}

#[tokio::test]
async fn the_digest_covers_all_pieces() {
    let (node, store) = node(2_000_000);
    let pieces = node.back_up(store, false).await.unwrap();
    let pieces: Vec<_> = pieces.map(Result::unwrap).collect().await;
    let (digest, data) = pieces.split_last().unwrap();
    let mut left: usize = data.iter().map(|piece| piece.blob.len()).sum();
    assert!((2_000_000..2_600_000).contains(&left), "{left}");
    assert_eq!(left % 4096, 0);
    let mut hash = Sha256::new();
    for piece in data {
        assert!(piece.blob.len() <= PIECE);
        left -= piece.blob.len();
        assert_eq!(piece.remaining_bytes, left as u64);
        hash.update(&piece.blob);
    }
    assert_eq!(
        (digest.remaining_bytes, digest.blob.as_ref()),
        (0, hash.finalize().as_slice())
    );
    assert!(pieces.iter().all(|piece| piece.version == "3.6.0"));
    assert_eq!(pieces[0].header.as_ref().unwrap().revision, 201);
}

#[tokio::test]
async fn concurrent_backups_are_limited() {
    let (node, store) = node(2_000_000);
    let first = node.back_up(Arc::clone(&store), false).await.unwrap();
    let second = node.back_up(Arc::clone(&store), false).await.unwrap();
    let error = node.back_up(Arc::clone(&store), false).await.err().unwrap();
    assert_eq!(error.message(), "etcdserver: too many requests");
    drop(first);
    let permits = async || Ok::<_, Infallible>(node.backups.available_permits());
    eventually(
        "the permit of the dropped backup",
        Duration::from_secs(30),
        permits,
        |permits| *permits > 0,
    )
    .await
    .unwrap();
    let third = node.back_up(store, false).await.unwrap();
    assert!(third.all(async |piece| piece.is_ok()).await && second.all(async |piece| piece.is_ok()).await);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_gets_an_error() {
    let (node, store) = node(2_000_000);
    let pieces = node.back_up(store, false).await.unwrap();
    tokio::time::sleep(STALLED + Duration::from_secs(1)).await;
    assert_eq!(node.backups.available_permits(), BACKUPS, "the permit is released");
    let pieces: Vec<_> = pieces.collect().await;
    let error = pieces.last().unwrap().as_ref().unwrap_err();
    assert_eq!(error.message(), "etcdserver: request timed out");
    assert!(pieces.len() < 10, "{}", pieces.len());
}

#[tokio::test]
async fn a_stopping_process_ends_backups_with_an_error() {
    let (node, store) = node(2_000_000);
    let mut pieces = node.back_up(Arc::clone(&store), false).await.unwrap();
    pieces.next().await.unwrap().unwrap();
    store.stop();
    let rest: Vec<_> = pieces.collect().await;
    let error = rest.last().unwrap().as_ref().unwrap_err();
    assert!(rest.len() < 10, "{}", rest.len());
    assert_eq!(error.message(), "etcdserver: server stopped");
}

#[tokio::test]
async fn a_backup_that_requires_a_leader_ends_without_one() {
    let (node, store) = node(2_000_000);
    let mut pieces = node.back_up(Arc::clone(&store), true).await.unwrap();
    let error = pieces.next().await.unwrap().unwrap_err();
    assert_eq!(error.message(), "etcdserver: no leader");
    assert!(pieces.next().await.is_none());
    let others = node.back_up(store, false).await.unwrap();
    assert!(others.all(async |piece| piece.is_ok()).await);
}
