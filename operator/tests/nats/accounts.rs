//! Life cycle of accounts: how they are pushed, what they have room for, and how they end.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use async_nats::{ConnectErrorKind, jetstream};
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::timeout;
use yoke_nats_auth::token::disk_storage_of;
use yoke_operator::testing::nats::streams::Provisioner;
use yoke_operator::testing::nats::{ClusterUser, NatsError};
use yoke_test_support::eventually;
use yoke_test_support::nats::Server;

use crate::{Connection, LIMIT, OTHER, OWN, Store, connect, id, now, plan};

#[tokio::test(flavor = "multi_thread")]
async fn closing_an_account_disconnects_its_user() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let mut store = Store::new(&nats, OWN).await;
    let mut connection = store.open(&server).await;
    assert_eq!(connection.count_records(OWN).await, 0);
    nats.close_account(&id(OWN), store.account.clone()).await.unwrap();
    // The server may report either first: the missing permissions of the removed scope, or its
    // limits.
    while connection.next_message("the end").await != "disconnected" {}
    let refused = async |user: &ClusterUser| {
        let refusal = Connection::open(&server, user, OWN).await.err();
        assert_eq!(
            refusal.map(|error| error.kind()),
            Some(ConnectErrorKind::AuthorizationViolation)
        );
    };
    refused(store.user()).await;
    // The account is opened again for another user. The data is still there, and the previous user
    // is refused.
    let previous = store.user().clone();
    store.account.renew_user(&id(OWN), now()).unwrap();
    store.ensure().await.unwrap();
    assert_eq!(store.open(&server).await.count_records(OWN).await, 0);
    refused(&previous).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_limit_is_the_reserved_storage_of_its_streams() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let mut store = Store::new(&nats, OWN).await;
    // A repetition changes nothing.
    assert_eq!(store.ensure().await.unwrap(), 0);
    let provisioner = Provisioner::connect(&nats, &store.account.public_key).await.unwrap();
    let refused = provisioner.ensure(&plan(OTHER), false).await.unwrap_err();
    assert!(refused.is_limit(), "{refused:?}");
    // A larger quota, and one that is smaller than the first.
    for (quota, reserved) in [(4 << 20, 220 << 20), (1 << 19, (195 << 20) + (1 << 19))] {
        store.account.size.quota = quota;
        store.ensure().await.unwrap();
        assert_eq!(reserved_storage(&store).await, reserved);
        let client = nats.connect_account(&store.account.public_key).await.unwrap();
        let found = jetstream::new(client).get_stream(format!("KINE_{OWN}")).await.unwrap();
        assert_eq!(found.cached_info().config.max_bytes, 2 * quota + (64 << 20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_is_not_lowered_below_the_data_in_the_streams() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let mut store = Store::new(&nats, OWN).await;
    let own = reserved_storage(&store).await;
    let mut connection = store.open(&server).await;
    let snapshot = "x".repeat(600_000);
    assert!(connection.request("kine.bcdfghjk24.snap.m", &snapshot).await.is_reply());
    let key = store.account.public_key.clone();
    let limits = async || {
        let client = nats.connect_account(&key).await.unwrap();
        let context = jetstream::new(client);
        let of = async |name: &str| context.get_stream(name).await.unwrap().cached_info().config.max_bytes;
        (of("KINE_bcdfghjk24").await, of("KINE_SNAP_bcdfghjk24").await)
    };
    let before = limits().await;
    store.account.size.quota = 512 << 10;
    let refused = store.ensure().await.unwrap_err();
    assert!(
        matches!(&refused, NatsError::InUse { stream, quota: 524_288, bytes: 600_000.., most: 524_288 } if stream == "KINE_SNAP_bcdfghjk24"),
        "{refused:?}"
    );
    assert!(refused.is_limit());
    assert_eq!(
        (limits().await, reserved_storage(&store).await),
        (before, own),
        "a refused quota changed something"
    );
    store.account.size.quota = 768 << 10;
    store.ensure().await.unwrap();
    let reserve = 64 << 20;
    assert_eq!(limits().await, ((1536 << 10) + reserve, (2304 << 10) + reserve));
}

/// Returns the storage limit in the claims of a store's account.
async fn reserved_storage(store: &Store) -> i64 {
    let claims = store.nats.find_account(&store.account.public_key).await.unwrap();
    disk_storage_of(&claims.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_that_the_server_lacks_is_not_reserved() {
    // Room for two stores, but not for three.
    let mut server = Server::start_with_room("450MB").await;
    let nats = connect(&server).await;
    let (mut one, two) = (Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await);
    let own = reserved_storage(&one).await;
    let three = Store::draw(&nats, "dfghjklm24");
    let assert_refused = async |store: &Store, expected: i64| {
        let error = store.ensure().await.unwrap_err();
        assert!(
            matches!(error, NatsError::NoRoom { granted, .. } if granted == expected),
            "{error:?}"
        );
        assert!(error.is_limit());
        assert_eq!(reserved_storage(store).await, expected);
    };
    for _ in 0..2 {
        assert_refused(&three, 0).await;
    }
    one.account.size.quota = 30 << 20;
    for _ in 0..2 {
        assert_refused(&one, own).await;
    }
    // The state after an operator that stopped right after it had pushed the claims.
    for (store, reserved) in [(&one, own), (&three, 0)] {
        nats.ensure_account(&store.plan.id, &store.account).await.unwrap();
        assert_ne!(reserved_storage(store).await, reserved);
        assert_refused(store, reserved).await;
    }
    server.stop();
    server.start_again();
    eventually("the neighbour's streams", LIMIT, async || two.ensure().await, |_| true)
        .await
        .unwrap();
    for (store, subject) in [(&one, "kine.bcdfghjk24.log"), (&two, "kine.cdfghjkl24.log")] {
        assert!(
            store.open(&server).await.request(subject, "x").await.is_reply(),
            "{subject}"
        );
    }
    assert_refused(&one, own).await;
    nats.delete_account(&two.plan.id, &two.account.public_key)
        .await
        .unwrap();
    one.ensure().await.unwrap();
    one.account.size.quota = 1 << 20;
    one.ensure().await.unwrap();
    assert_eq!(reserved_storage(&one).await, own);
}

/// Data that is not reachable now retains its claim, and gets its room as soon as there is some.
#[tokio::test(flavor = "multi_thread")]
async fn data_without_storage_is_restored_when_storage_is_free() {
    let mut server = Server::start_with_room("450MB").await;
    let nats = connect(&server).await;
    let stores = [Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await];
    let own = reserved_storage(&stores[0]).await;
    for store in &stores {
        let log = store.plan.id.log_subject();
        assert!(store.open(&server).await.request(&log, "x").await.is_reply());
    }
    server.stop();
    server.set_room("250MB");
    server.start_again();
    let start = Instant::now();
    let ensure_both = async || {
        let [one, two] = [&stores[0], &stores[1]].map(Store::ensure_existing);
        Ok::<_, Infallible>(tokio::join!(one, two))
    };
    let outcomes = eventually("room for one of two stores", LIMIT, ensure_both, |outcomes| {
        matches!(
            outcomes,
            (Ok(_), Err(NatsError::NoRoom { granted: 0, .. })) | (Err(NatsError::NoRoom { granted: 0, .. }), Ok(_))
        )
    })
    .await
    .unwrap();
    let (lost, other) = match outcomes {
        (Ok(_), _) => (&stores[1], &stores[0]),
        _ => (&stores[0], &stores[1]),
    };
    lost.ensure_existing().await.unwrap_err();
    assert_eq!(reserved_storage(lost).await, own);
    let key = &other.account.public_key;
    nats.delete_account(&other.plan.id, key).await.unwrap();
    // Claims with the same second of issue are identical to the server, which then ignores them.
    let limit = LIMIT.saturating_sub(start.elapsed());
    eventually(
        "room for the lost store",
        limit,
        async || lost.ensure_existing().await,
        |_| true,
    )
    .await
    .unwrap();
    let records = lost.open(&server).await.count_records(lost.plan.id.as_str()).await;
    assert_eq!(records, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_an_account_deletes_only_its_own_data() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    let key = store.account.public_key.clone();
    assert!(
        store
            .open(&server)
            .await
            .request("kine.bcdfghjk24.log", "x")
            .await
            .is_reply()
    );
    // An account with another's name is neither changed, closed nor deleted.
    let other = id(OTHER);
    let refused = nats.ensure_account(&other, &store.account).await.unwrap_err();
    assert!(matches!(refused, NatsError::Foreign { .. }), "{refused:?}");
    nats.close_account(&other, store.account.clone()).await.unwrap();
    nats.delete_account(&other, &key).await.unwrap();
    assert_eq!(store.open(&server).await.count_records(OWN).await, 1);
    assert!(server.has_data(&key));
    for _ in 0..2 {
        nats.delete_account(&id(OWN), &key).await.unwrap();
        assert_eq!(nats.find_account(&key).await.unwrap(), None);
        assert!(!server.has_data(&key), "files are left");
    }
    let system = server.connect_system().await;
    let subject = format!("$JS.API.ACCOUNT.PURGE.{key}");
    let mut purges = system.subscribe(subject).await.unwrap();
    // The answer arrives after everything that was sent on this connection before.
    let catch_up = async || system.request("$SYS.REQ.USER.INFO", "".into()).await.unwrap();
    catch_up().await;
    nats.delete_account(&id(OWN), &key).await.unwrap();
    catch_up().await;
    let purge = purges.next().now_or_never();
    assert!(purge.is_none(), "a purge was sent although the data is deleted");
    // Another process has not recorded the deletion.
    connect(&server).await.delete_account(&id(OWN), &key).await.unwrap();
    let purge = timeout(LIMIT, purges.next()).await.unwrap();
    assert!(purge.is_some(), "no purge was received");
    assert!(matches!(
        Provisioner::connect(&nats, &key).await,
        Err(NatsError::Connect(_))
    ));
    // A Cluster with the same identity gets another account, without the data.
    let successor = Store::new(&nats, OWN).await;
    assert_eq!(successor.open(&server).await.count_records(OWN).await, 0);
}

/// The class of a store gets replicas. The spare stream is not replicated, and follows the quota.
#[tokio::test(flavor = "multi_thread")]
async fn the_spare_stream_follows_the_quota_but_not_the_replicas() {
    let server = Server::start_cluster().await;
    let nats = connect(&server).await;
    let mut store = Store::draw(&nats, OWN);
    // The servers first elect a leader.
    let ensure = async |store: &Store| {
        eventually("the streams", LIMIT, async || store.ensure().await, |_| true)
            .await
            .unwrap()
    };
    assert_eq!(ensure(&store).await, 0);
    let spare = "kine.bcdfghjk24.spare.m";
    assert!(store.open(&server).await.request(spare, "x").await.is_reply());
    store.account.size.replicas = 3;
    // A larger quota, and one that is smaller than the first.
    for quota in [2 << 20, 1 << 19] {
        store.account.size.quota = quota;
        assert!(ensure(&store).await > 0, "the data of the spare stream is not counted");
        let client = nats.connect_account(&store.account.public_key).await.unwrap();
        let context = jetstream::new(client);
        for (name, bytes, replicas) in [
            ("KINE_bcdfghjk24", 2 * quota + (64 << 20), 3),
            ("KINE_SPARE_bcdfghjk24", 2 * quota + (64 << 20), 1),
        ] {
            let config = context.get_stream(name).await.unwrap().cached_info().config.clone();
            assert_eq!((config.max_bytes, config.num_replicas), (bytes, replicas), "{name}");
        }
    }
    // A store without a spare stream does not get one.
    let mut other = Store::draw(&nats, OTHER);
    other.account.size.replicas = 3;
    ensure(&other).await;
    let client = nats.connect_account(&other.account.public_key).await.unwrap();
    assert!(
        jetstream::new(client)
            .get_stream("KINE_SPARE_cdfghjkl24")
            .await
            .is_err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_is_not_created_again_for_a_cluster_with_data() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    store.ensure_existing().await.unwrap();
    server.lose_streams(&store.account.public_key).await;
    let log = store.plan.id.stream();
    for _ in 0..2 {
        let lost = store.ensure_existing().await.unwrap_err();
        assert!(
            matches!(&lost, NatsError::LogLost { stream } if *stream == log),
            "{lost:?}"
        );
    }
    store.ensure().await.unwrap();
    store.ensure_existing().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_a_lost_server_fail_fast() {
    let mut server = Server::start().await;
    let store = Store::new(&connect(&server).await, OWN).await;
    let key = store.account.public_key.clone();
    server.stop();
    let find = async || Ok::<_, Infallible>(store.nats.find_account(&key).await);
    eventually("the loss of NATS", LIMIT, find, |found| {
        matches!(found, Err(NatsError::Lost))
    })
    .await
    .unwrap()
    .unwrap_err();
    let start = Instant::now();
    for _ in 0..20 {
        let (found, ensured) = tokio::join!(store.nats.find_account(&key), store.ensure());
        assert!(matches!(found, Err(NatsError::Lost)), "{found:?}");
        assert!(matches!(ensured, Err(NatsError::Lost)), "{ensured:?}");
    }
    let late = connect(&server).await;
    // Less than the time in which four calls wait until NATS counts as lost.
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    server.start_again();
    let observe = async || {
        store.ensure().await?;
        late.find_account(&key).await
    };
    eventually("the recovery of NATS", LIMIT, observe, |_| true)
        .await
        .unwrap();
}
