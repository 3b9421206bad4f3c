//! A store for which the host's NATS has no room.

use yoke_test_support::nats::Server;

use crate::harness::{Host, condition};

/// Each check for room pushes claims twice, and there may be five reconciliations per second.
#[tokio::test(flavor = "multi_thread")]
async fn the_store_quota_is_requested_again_only_after_a_change() {
    // Room for the host's own store, and for less than the default size of a Cluster's.
    let host = Host::start_on(Server::start_with_room("3GB").await).await;
    host.create_cluster("a").await;
    let store = async || condition(&host.cluster("a").await, "StoreReady");
    host.reconcile_until_condition("a", "StoreReady", "False/StoreQuotaExceeded")
        .await;
    let id = host.cluster("a").await.id().unwrap();
    let last_check = || {
        host.context
            .memory
            .seen(&id)
            .store
            .map(|(_, when, found)| (when, found.is_ok()))
    };
    let first = last_check();
    assert!(matches!(first, Some((_, false))), "{first:?}");
    for _ in 0..3 {
        host.reconcile("a").await.unwrap();
        assert_eq!(last_check(), first);
        assert_eq!(store().await, "False/StoreQuotaExceeded");
    }
    host.patch_cluster("a", serde_json::json!({"spec": {"storage": {"quota": "16Mi"}}}))
        .await;
    host.reconcile_until_condition("a", "StoreReady", "True/AsExpected")
        .await;
}
