//! Permissions of a Cluster's user.

use async_nats::jetstream;
use futures::StreamExt as _;
use tokio::time::timeout;
use yoke_operator::testing::nats::streams::build_log;
use yoke_test_support::nats::Server;

use crate::{Answer, Connection, LIMIT, OTHER, OWN, Store, connect, id, serve};

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_user_reaches_only_its_own_streams() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let (own, other) = (Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await);
    let (mut user, mut peer) = (own.open(&server).await, own.open(&server).await);
    let mut neighbour = other.open(&server).await;
    // Both stores answer, and the neighbor has data: a failure below is due to a missing
    // permission.
    let own_store = serve(&mut peer, "kine.bcdfghjk24.rpc.>").await;
    let other_store = serve(&mut neighbour, "kine.cdfghjkl24.rpc.>").await;
    for subject in [format!("kine.{OTHER}.log"), format!("kine.{OTHER}.snap.1.a.0")] {
        assert!(neighbour.request(&subject, "x").await.is_reply());
    }
    let first = r#"{"seq":1}"#;
    let new_stream = r#"{"name":"NEW","subjects":["new"],"max_bytes":1024}"#;
    let consumer = r#"{"stream_name":"KINE_bcdfghjk24","config":{"ack_policy":"none","mem_storage":true,"inactive_threshold":5000000000}}"#;
    let api = |request: &str| format!("$JS.API.{request}");
    for (rule, subject, payload) in [
        ("append to the log", format!("kine.{OWN}.log"), "x"),
        ("write a snapshot", format!("kine.{OWN}.snap.1.a.0"), "x"),
        ("write a spare snapshot", format!("kine.{OWN}.spare.1.a.0"), "x"),
        ("send a request to its store", format!("kine.{OWN}.rpc.x"), "x"),
        ("inspect the log", api(&format!("STREAM.INFO.KINE_{OWN}")), ""),
        ("inspect snapshots", api(&format!("STREAM.INFO.KINE_SNAP_{OWN}")), ""),
        ("read by sequence", api(&format!("STREAM.MSG.GET.KINE_{OWN}")), first),
        ("read directly", api(&format!("DIRECT.GET.KINE_{OWN}")), first),
        (
            "read last by subject",
            api(&format!("DIRECT.GET.KINE_{OWN}.kine.{OWN}.log")),
            "",
        ),
        ("read a snapshot", api(&format!("DIRECT.GET.KINE_SNAP_{OWN}")), first),
        (
            "read a spare snapshot",
            api(&format!("DIRECT.GET.KINE_SPARE_{OWN}")),
            first,
        ),
        (
            "purge spare snapshots",
            api(&format!("STREAM.PURGE.KINE_SPARE_{OWN}")),
            first,
        ),
        ("purge the log", api(&format!("STREAM.PURGE.KINE_{OWN}")), first),
        ("inspect the account", api("INFO"), ""),
    ] {
        let answer = user.request(&subject, payload).await;
        assert!(answer.is_reply(), "{rule}: {subject}: {answer:?}");
    }
    for (rule, subject, payload) in [
        ("append to another log", format!("kine.{OTHER}.log"), "x"),
        (
            "write a snapshot of another store",
            format!("kine.{OTHER}.snap.1.a.1"),
            "x",
        ),
        (
            "write a spare snapshot of another store",
            format!("kine.{OTHER}.spare.1.a.1"),
            "x",
        ),
        ("send a request to another store", format!("kine.{OTHER}.rpc.x"), "x"),
        ("inspect another log", api(&format!("STREAM.INFO.KINE_{OTHER}")), ""),
        (
            "inspect snapshots of another store",
            api(&format!("STREAM.INFO.KINE_SNAP_{OTHER}")),
            "",
        ),
        ("read another log", api(&format!("STREAM.MSG.GET.KINE_{OTHER}")), first),
        (
            "read snapshots of another store",
            api(&format!("STREAM.MSG.GET.KINE_SNAP_{OTHER}")),
            first,
        ),
        (
            "read another log directly",
            api(&format!("DIRECT.GET.KINE_{OTHER}")),
            first,
        ),
        (
            "read snapshots of another store directly",
            api(&format!("DIRECT.GET.KINE_SNAP_{OTHER}")),
            first,
        ),
        (
            "read the last record of another log",
            api(&format!("DIRECT.GET.KINE_{OTHER}.kine.{OTHER}.log")),
            "",
        ),
        ("purge another log", api(&format!("STREAM.PURGE.KINE_{OTHER}")), ""),
        (
            "purge snapshots of another store",
            api(&format!("STREAM.PURGE.KINE_SNAP_{OTHER}")),
            "",
        ),
        (
            "purge spare snapshots of another store",
            api(&format!("STREAM.PURGE.KINE_SPARE_{OTHER}")),
            "",
        ),
        (
            "delete snapshots of another store",
            api(&format!("STREAM.MSG.DELETE.KINE_SNAP_{OTHER}")),
            first,
        ),
        (
            "delete a record of another log",
            api(&format!("STREAM.MSG.DELETE.KINE_{OTHER}")),
            first,
        ),
        ("delete another stream", api(&format!("STREAM.DELETE.KINE_{OTHER}")), ""),
        (
            "consume another log",
            api(&format!("CONSUMER.CREATE.KINE_{OTHER}")),
            consumer,
        ),
        (
            "consume its own log",
            api(&format!("CONSUMER.CREATE.KINE_{OWN}")),
            consumer,
        ),
        (
            "delete a message of a snapshot",
            api(&format!("STREAM.MSG.DELETE.KINE_SNAP_{OWN}")),
            first,
        ),
        (
            "delete a log record",
            api(&format!("STREAM.MSG.DELETE.KINE_{OWN}")),
            first,
        ),
        ("delete its stream", api(&format!("STREAM.DELETE.KINE_{OWN}")), ""),
        ("change its stream", api(&format!("STREAM.UPDATE.KINE_{OWN}")), "{}"),
        ("restore a stream", api(&format!("STREAM.RESTORE.KINE_{OWN}")), "{}"),
        ("create a stream", api("STREAM.CREATE.NEW"), new_stream),
        ("list streams", api("STREAM.NAMES"), ""),
        ("push claims", "$SYS.REQ.CLAIMS.UPDATE".into(), "x"),
        (
            "send a request to the system account",
            "$SYS.REQ.SERVER.PING".into(),
            "",
        ),
    ] {
        let answer = user.request(&subject, payload).await;
        assert_eq!(answer, Answer::Refused(no_publish(&subject)), "{rule}");
    }
    assert_eq!(neighbour.count_records(OTHER).await, 1);
    own_store.abort();
    other_store.abort();
    assert_subscriptions(&mut user, &mut peer, &mut neighbour).await;
}

fn no_publish(subject: &str) -> String {
    format!("Permissions Violation for Publish to \"{subject}\"")
}

async fn assert_subscriptions(user: &mut Connection, peer: &mut Connection, neighbour: &mut Connection) {
    for (subject, published) in [
        ("kine.bcdfghjk24.rpc.>", "kine.bcdfghjk24.rpc.hello"),
        // Not the complete inbox: the answers to requests go there too.
        ("_INBOX_bcdfghjk24.x", "_INBOX_bcdfghjk24.x"),
    ] {
        let mut subscription = user.listen(subject).await;
        peer.client.publish(published, "x".into()).await.unwrap();
        let message = timeout(LIMIT, subscription.next()).await;
        assert!(message.is_ok_and(|message| message.is_some()), "{subject}");
    }
    for subject in [
        ">",
        "kine.>",
        "kine.cdfghjkl24.rpc.>",
        "kine.bcdfghjk24.log",
        "_INBOX_cdfghjkl24.>",
        "_INBOX.>",
        "$JS.>",
    ] {
        let _subscription = user.client.subscribe(subject).await.unwrap();
        let refusal = user.next_message(subject).await;
        assert_eq!(
            refusal,
            format!("Permissions Violation for Subscription to \"{subject}\"")
        );
    }
    neighbour
        .client
        .publish("_INBOX_bcdfghjk24.x", "x".into())
        .await
        .unwrap();
    let refusal = neighbour.next_message("an answer to another store").await;
    assert_eq!(refusal, no_publish("_INBOX_bcdfghjk24.x"));
}

/// Requests that a store's user may send, each with a reply subject of a neighbor's log: every
/// answer would be an attack.
fn requests() -> [(String, &'static str); 7] {
    let api = |request: &str| format!("$JS.API.{request}");
    let first = r#"{"seq":1}"#;
    [
        (format!("kine.{OWN}.log"), "x"),
        (api("INFO"), ""),
        (api(&format!("STREAM.INFO.KINE_{OWN}")), ""),
        (api(&format!("STREAM.MSG.GET.KINE_{OWN}")), first),
        (api(&format!("DIRECT.GET.KINE_{OWN}")), first),
        (api(&format!("DIRECT.GET.KINE_{OWN}.kine.{OWN}.log")), ""),
        (api(&format!("STREAM.PURGE.KINE_{OWN}")), r#"{"keep":1}"#),
    ]
}

/// Sends every request that the user may send, with a reply subject of the neighbor.
async fn attack(user: &mut Connection, reply: &'static str) {
    for (subject, payload) in requests() {
        let sent = user.client.publish_with_reply(subject, reply, payload.into());
        sent.await.unwrap();
    }
    // The server handles messages and API requests separately. After these answers, both have
    // processed the attack.
    for (subject, payload) in requests() {
        assert!(user.request(&subject, payload).await.is_reply(), "{subject}");
    }
}

/// The server sends answers to any reply subject, whatever its user may publish to.
#[tokio::test(flavor = "multi_thread")]
async fn replies_do_not_reach_another_account() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let (own, other) = (Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await);
    let (mut user, mut neighbour) = (own.open(&server).await, other.open(&server).await);
    let mut inbox = neighbour.listen("_INBOX_cdfghjkl24.x").await;
    let mut requests_inbox = neighbour.listen("kine.cdfghjkl24.rpc.>").await;
    for reply in [
        "kine.cdfghjkl24.log",
        "kine.cdfghjkl24.snap.1.a.0",
        "_INBOX_cdfghjkl24.x",
        "kine.cdfghjkl24.rpc.x",
        "$JS.API.STREAM.PURGE.KINE_cdfghjkl24",
    ] {
        attack(&mut user, reply).await;
    }
    assert!(neighbour.request("kine.cdfghjkl24.log", "mine").await.is_reply());
    assert_eq!(neighbour.count_records(OTHER).await, 1);
    for (subject, messages) in [
        ("_INBOX_cdfghjkl24.x", &mut inbox),
        ("kine.cdfghjkl24.rpc.x", &mut requests_inbox),
    ] {
        neighbour.client.publish(subject, "mine".into()).await.unwrap();
        let message = timeout(LIMIT, messages.next()).await.unwrap().unwrap();
        assert_eq!(message.payload, "mine", "{subject}");
    }
    // In the account of the neighbor's log, the attack succeeds. Tenants had such a shared account
    // once.
    let client = nats.connect_account(&own.account.public_key).await.unwrap();
    let log = jetstream::stream::Config {
        name: format!("KINE_SNAP_{OWN}"),
        ..build_log(&other.plan)
    };
    jetstream::new(client).update_stream(log).await.unwrap();
    attack(&mut user, "kine.cdfghjkl24.log").await;
    assert!(user.count(&format!("KINE_SNAP_{OWN}")).await > 0);
}

/// Two Clusters with the same identity, so that no permission separates them.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_share_only_the_server() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let (one, two) = (Store::new(&nats, OWN).await, Store::new(&nats, OWN).await);
    let (mut first, mut peer) = (one.open(&server).await, one.open(&server).await);
    let mut second = two.open(&server).await;
    for _ in 0..3 {
        assert!(first.request("kine.bcdfghjk24.log", "x").await.is_reply());
    }
    let counts = (first.count_records(OWN).await, second.count_records(OWN).await);
    assert_eq!(counts, (3, 0));

    let store = serve(&mut peer, "kine.bcdfghjk24.rpc.>").await;
    let subject = "kine.bcdfghjk24.rpc.hello";
    assert_eq!(first.request(subject, "x").await, Answer::Reply("here".into()));
    assert_eq!(second.request(subject, "x").await, Answer::NoResponder);
    store.abort();

    assert!(
        second
            .request("$JS.API.STREAM.PURGE.KINE_bcdfghjk24", "")
            .await
            .is_reply()
    );
    nats.delete_account(&id(OWN), &two.account.public_key).await.unwrap();
    assert_eq!(first.count_records(OWN).await, 3);
}
