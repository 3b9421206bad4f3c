//! Life cycle of accounts: how they are pushed, what they have room for, and how they end.

use std::time::{Duration, Instant};

use async_nats::{ConnectErrorKind, jetstream};
use futures::{FutureExt as _, StreamExt as _};
use tokio::time::timeout;
use yoke_nats_auth::token::disk_storage_of;
use yoke_operator::nats::streams::Provisioner;
use yoke_operator::nats::{ClusterUser, NatsError};

use crate::support::Server;
use crate::{Connection, LIMIT, OTHER, OWN, Store, connect, id, now, plan};

#[tokio::test(flavor = "multi_thread")]
async fn closed_account_cuts_a_live_connection() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let mut store = Store::new(&nats, OWN).await;
    let mut connection = store.open(&server).await;
    assert_eq!(connection.count_records(OWN).await, 0);
    nats.close_account(&id(OWN), store.account.clone()).await.unwrap();
    // The server may report either first: the missing permissions of the removed scope, or its
    // limits.
    while connection.next_said("the end").await != "disconnected" {}
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
    let former = store.user().clone();
    store.account.renew_user(&id(OWN), now()).unwrap();
    store.ensure().await.unwrap();
    assert_eq!(store.open(&server).await.count_records(OWN).await, 0);
    refused(&former).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_is_limited_to_what_its_streams_reserve() {
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
        assert_eq!(promised(&store).await, reserved);
        let client = nats.connect_account(&store.account.public_key).await.unwrap();
        let found = jetstream::new(client).get_stream(format!("KINE_{OWN}")).await.unwrap();
        assert_eq!(found.cached_info().config.max_bytes, 2 * quota + (64 << 20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_is_not_lowered_below_what_the_streams_hold() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let mut store = Store::new(&nats, OWN).await;
    let own = promised(&store).await;
    let mut connection = store.open(&server).await;
    let snapshot = "x".repeat(600_000);
    assert!(connection.ask("kine.bcdfghjk24.snap.m", &snapshot).await.is_reply());
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
        matches!(&refused, NatsError::InUse { stream, quota: 524_288, held: 600_000.., most: 524_288 } if stream == "KINE_SNAP_bcdfghjk24"),
        "{refused:?}"
    );
    assert!(refused.is_limit());
    assert_eq!(
        (limits().await, promised(&store).await),
        (before, own),
        "nothing is changed"
    );
    store.account.size.quota = 768 << 10;
    store.ensure().await.unwrap();
    let reserve = 64 << 20;
    assert_eq!(limits().await, ((1536 << 10) + reserve, (2304 << 10) + reserve));
}

/// Returns the storage limit in the claims of a store's account.
async fn promised(store: &Store) -> i64 {
    let claims = store.nats.find_account(&store.account.public_key).await.unwrap();
    disk_storage_of(&claims.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_has_no_room_for_is_not_promised() {
    // Room for two stores, but not for three.
    let mut server = Server::start_with_room("450MB").await;
    let nats = connect(&server).await;
    let (mut one, two) = (Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await);
    let own = promised(&one).await;
    let three = Store::draw(&nats, "dfghjklm24");
    let refused = async |store: &Store, expected: i64| {
        let error = store.ensure().await.unwrap_err();
        assert!(
            matches!(error, NatsError::NoRoom { given, .. } if given == expected),
            "{error:?}"
        );
        assert!(error.is_limit());
        assert_eq!(promised(store).await, expected);
    };
    for _ in 0..2 {
        refused(&three, 0).await;
    }
    one.account.size.quota = 30 << 20;
    for _ in 0..2 {
        refused(&one, own).await;
    }
    // The state after an operator that stopped right after it had pushed the claims.
    for (store, given) in [(&one, own), (&three, 0)] {
        nats.ensure_account(&store.plan.id, &store.account).await.unwrap();
        assert_ne!(promised(store).await, given);
        refused(store, given).await;
    }
    server.stop();
    server.start_again();
    let deadline = Instant::now() + Duration::from_secs(20);
    while two.ensure().await.is_err() {
        assert!(Instant::now() < deadline, "the neighbour has its streams again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for (store, subject) in [(&one, "kine.bcdfghjk24.log"), (&two, "kine.cdfghjkl24.log")] {
        assert!(
            store.open(&server).await.ask(subject, "x").await.is_reply(),
            "{subject}"
        );
    }
    refused(&one, own).await;
    nats.delete_account(&two.plan.id, &two.account.public_key)
        .await
        .unwrap();
    one.ensure().await.unwrap();
    one.account.size.quota = 1 << 20;
    one.ensure().await.unwrap();
    assert_eq!(promised(&one).await, own);
}

/// Data that is not reachable now retains its claim, and gets its room as soon as there is some.
#[tokio::test(flavor = "multi_thread")]
async fn data_without_room_waits_for_it() {
    let mut server = Server::start_with_room("450MB").await;
    let nats = connect(&server).await;
    let stores = [Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await];
    let own = promised(&stores[0]).await;
    for store in &stores {
        let log = store.plan.id.log_subject();
        assert!(store.open(&server).await.ask(&log, "x").await.is_reply());
    }
    server.stop();
    server.set_room("250MB");
    server.start_again();
    let deadline = Instant::now() + Duration::from_secs(20);
    let lost = loop {
        let [one, two] = [&stores[0], &stores[1]].map(Store::ensure_what_it_had);
        match tokio::join!(one, two) {
            (Ok(_), Err(NatsError::NoRoom { given: 0, .. })) => break 1,
            (Err(NatsError::NoRoom { given: 0, .. }), Ok(_)) => break 0,
            other => assert!(Instant::now() < deadline, "one of two has room: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let (lost, other) = (&stores[lost], &stores[1 - lost]);
    lost.ensure_what_it_had().await.unwrap_err();
    assert_eq!(promised(lost).await, own);
    let key = &other.account.public_key;
    nats.delete_account(&other.plan.id, key).await.unwrap();
    // Claims with the same second of issue are identical to the server, which then ignores them.
    while lost.ensure_what_it_had().await.is_err() {
        assert!(Instant::now() < deadline, "there is room");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let records = lost.open(&server).await.count_records(lost.plan.id.as_str()).await;
    assert_eq!(records, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_takes_the_data_and_only_its_own() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    let key = store.account.public_key.clone();
    assert!(
        store
            .open(&server)
            .await
            .ask("kine.bcdfghjk24.log", "x")
            .await
            .is_reply()
    );
    // An account with another's name is neither changed, closed nor deleted.
    let other = id(OTHER);
    let taken = nats.ensure_account(&other, &store.account).await.unwrap_err();
    assert!(matches!(taken, NatsError::Foreign { .. }), "{taken:?}");
    nats.close_account(&other, store.account.clone()).await.unwrap();
    nats.delete_account(&other, &key).await.unwrap();
    assert_eq!(store.open(&server).await.count_records(OWN).await, 1);
    assert!(server.holds(&key));
    for _ in 0..2 {
        nats.delete_account(&id(OWN), &key).await.unwrap();
        assert_eq!(nats.find_account(&key).await.unwrap(), None);
        assert!(!server.holds(&key), "no file is left");
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
    assert!(
        purge.is_none(),
        "the server hears nothing for as long as it asks others"
    );
    // Another process has not recorded the deletion.
    connect(&server).await.delete_account(&id(OWN), &key).await.unwrap();
    let purge = timeout(LIMIT, purges.next()).await.unwrap();
    assert!(purge.is_some(), "one that is sent is heard here");
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
async fn spare_stream_stays_in_step_with_a_store_that_was_given_replicas() {
    let server = Server::start_cluster().await;
    let nats = connect(&server).await;
    let mut store = Store::draw(&nats, OWN);
    let deadline = Instant::now() + Duration::from_secs(20);
    // The servers first elect a leader.
    let ensure = async |store: &Store| loop {
        match store.ensure().await {
            Ok(bytes) => break bytes,
            Err(error) => assert!(Instant::now() < deadline, "streams are made: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(ensure(&store).await, 0);
    let spare = "kine.bcdfghjk24.spare.m";
    assert!(store.open(&server).await.ask(spare, "x").await.is_reply());
    store.account.size.replicas = 3;
    // A larger quota, and one that is smaller than the first.
    for quota in [2 << 20, 1 << 19] {
        store.account.size.quota = quota;
        assert!(ensure(&store).await > 0, "what it holds is counted");
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
async fn lost_log_is_not_made_anew_for_a_cluster_that_has_state() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    store.ensure_what_it_had().await.unwrap();
    server.lose_streams(&store.account.public_key).await;
    let log = store.plan.id.stream();
    for _ in 0..2 {
        let lost = store.ensure_what_it_had().await.unwrap_err();
        assert!(
            matches!(&lost, NatsError::LogLost { stream } if *stream == log),
            "{lost:?}"
        );
    }
    store.ensure().await.unwrap();
    store.ensure_what_it_had().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_server_keeps_nobody_waiting() {
    let mut server = Server::start().await;
    let store = Store::new(&connect(&server).await, OWN).await;
    let key = store.account.public_key.clone();
    server.stop();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !matches!(store.nats.find_account(&key).await, Err(NatsError::Lost)) {
        assert!(Instant::now() < deadline, "the loss is not told");
    }
    let began = Instant::now();
    for _ in 0..20 {
        let (found, made) = tokio::join!(store.nats.find_account(&key), store.ensure());
        assert!(matches!(found, Err(NatsError::Lost)), "{found:?}");
        assert!(matches!(made, Err(NatsError::Lost)), "{made:?}");
    }
    let late = connect(&server).await;
    // Less than the time in which four calls wait until NATS counts as lost.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    server.start_again();
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.ensure().await.is_err() || late.find_account(&key).await.is_err() {
        assert!(Instant::now() < deadline, "it is not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
