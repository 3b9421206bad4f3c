//! A store for which the host's NATS has no room.

use yoke_test_support::nats::Server;

use crate::harness::{Host, condition};

/// Each check for room pushes claims twice, and there may be five reconciliations per second.
#[tokio::test(flavor = "multi_thread")]
async fn room_is_asked_for_rarely_unless_less_is_enough() {
    // Room for the host's own store, and for less than the default size of a Cluster's.
    let host = Host::start_on(Server::start_with_room("3GB").await).await;
    host.make_cluster("a").await;
    let store = async || condition(&host.cluster("a").await, "StoreReady");
    host.bring("a", "there is no room", async || {
        store().await == "False/StoreQuotaExceeded"
    })
    .await;
    let id = host.cluster("a").await.id().unwrap();
    let asked = || {
        host.context
            .memory
            .seen(&id)
            .store
            .map(|(_, when, found)| (when, found.is_ok()))
    };
    let first = asked();
    assert!(matches!(first, Some((_, false))), "{first:?}");
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
        assert_eq!(asked(), first);
        assert_eq!(store().await, "False/StoreQuotaExceeded");
    }
    host.patch_cluster("a", serde_json::json!({"spec": {"storage": {"quota": "16Mi"}}}))
        .await;
    host.bring("a", "less has room at once", async || {
        store().await == "True/AsExpected"
    })
    .await;
}
