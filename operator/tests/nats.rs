//! Tenancy on a real nats-server: what a Cluster's user may do, what it may not, and how it ends.

// The lint spares tests, and not what they are helped by.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use support::Server;
use tokio::time::timeout;
use yoke_api::ClusterId;
use yoke_operator::nats::claims::same_claims;
use yoke_operator::nats::limits::account_limits;
use yoke_operator::nats::streams::{Provisioner, StreamsPlan};
use yoke_operator::nats::{AccountKeys, ClusterUser, Nats, NatsError};

const QUOTA: i64 = 1 << 20;

fn now() -> i64 {
    i64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs(),
    )
    .unwrap()
}

fn id(text: &str) -> ClusterId {
    text.parse().unwrap()
}

fn plan(text: &str) -> StreamsPlan {
    StreamsPlan {
        id: id(text),
        quota: QUOTA,
        replicas: 1,
    }
}

struct Tenant {
    nats: Nats,
    keys: AccountKeys,
    clusters: i32,
}

impl Tenant {
    async fn new(server: &Server, clusters: i32) -> Self {
        let nats = Nats::connect(&server.config()).await.unwrap();
        let tenant = Self {
            nats,
            keys: AccountKeys::generate(),
            clusters,
        };
        tenant.push(BTreeMap::new()).await;
        tenant
    }

    fn jwt(&self, revocations: BTreeMap<String, i64>) -> String {
        let limits = account_limits(self.clusters, QUOTA * i64::from(self.clusters), 1);
        self.keys
            .account_jwt("tenant-a", limits, revocations, now(), self.nats.signer())
            .unwrap()
    }

    async fn push(&self, revocations: BTreeMap<String, i64>) {
        self.nats.push_account(&self.jwt(revocations)).await.unwrap();
    }

    async fn provisioner(&self) -> Provisioner {
        let credentials = self.keys.provisioner_credentials(now()).unwrap();
        Provisioner::connect(&self.nats, &credentials).await.unwrap()
    }

    fn user(&self, text: &str) -> ClusterUser {
        ClusterUser::mint(&id(text), &self.keys, now()).unwrap()
    }
}

/// The answer to a request, `None` if the server refused to carry it.
async fn ask(client: &async_nats::Client, subject: &str, payload: &str) -> Option<String> {
    let answer = client
        .request(subject.to_owned(), payload.to_owned().into())
        .await
        .ok()?;
    Some(String::from_utf8_lossy(&answer.payload).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_user_reaches_its_own_streams_and_nothing_else() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 2).await;
    let provisioner = tenant.provisioner().await;
    for cluster in ["bcdfghjk24", "cdfghjkl24"] {
        provisioner.ensure(&plan(cluster)).await.unwrap();
    }
    let user = tenant.user("bcdfghjk24");
    let client = server
        .connect_options(&user.credentials)
        .custom_inbox_prefix("_INBOX_bcdfghjk24")
        .connect(server.url())
        .await
        .unwrap();
    let (own, other) = ("bcdfghjk24", "cdfghjkl24");
    let stream_config = r#"{"name":"NEW","subjects":["new"],"max_bytes":1024}"#;
    for (rule, subject, payload, allowed) in [
        ("append to the log", format!("kine.{own}.log"), "x", true),
        ("write a snapshot", format!("kine.{own}.snap.1.a.0"), "x", true),
        ("inspect the log", format!("$JS.API.STREAM.INFO.KINE_{own}"), "", true),
        (
            "inspect snapshots",
            format!("$JS.API.STREAM.INFO.KINE_SNAP_{own}"),
            "",
            true,
        ),
        (
            "read by sequence",
            format!("$JS.API.STREAM.MSG.GET.KINE_{own}"),
            r#"{"seq":1}"#,
            true,
        ),
        (
            "read directly",
            format!("$JS.API.DIRECT.GET.KINE_{own}"),
            r#"{"seq":1}"#,
            true,
        ),
        (
            "read last by subject",
            format!("$JS.API.DIRECT.GET.KINE_{own}.kine.{own}.log"),
            "",
            true,
        ),
        (
            "make a consumer",
            format!("$JS.API.CONSUMER.CREATE.KINE_{own}"),
            r#"{"stream_name":"KINE_bcdfghjk24","config":{"ack_policy":"none","mem_storage":true,"inactive_threshold":5000000000}}"#,
            false,
        ),
        (
            "purge the log",
            format!("$JS.API.STREAM.PURGE.KINE_{own}"),
            r#"{"seq":1}"#,
            true,
        ),
        ("ask about the account", "$JS.API.INFO".into(), "", true),
        ("append to another log", format!("kine.{other}.log"), "x", false),
        (
            "inspect another stream",
            format!("$JS.API.STREAM.INFO.KINE_{other}"),
            "",
            false,
        ),
        (
            "read another stream",
            format!("$JS.API.DIRECT.GET.KINE_{other}"),
            r#"{"seq":1}"#,
            false,
        ),
        (
            "purge another stream",
            format!("$JS.API.STREAM.PURGE.KINE_{other}"),
            "",
            false,
        ),
        (
            "consume another stream",
            format!("$JS.API.CONSUMER.CREATE.KINE_{other}"),
            "{}",
            false,
        ),
        ("speak to another store", format!("kine.{other}.rpc.x"), "x", false),
        (
            "delete a log record",
            format!("$JS.API.STREAM.MSG.DELETE.KINE_{own}"),
            r#"{"seq":1}"#,
            false,
        ),
        (
            "delete its stream",
            format!("$JS.API.STREAM.DELETE.KINE_{own}"),
            "",
            false,
        ),
        (
            "change its stream",
            format!("$JS.API.STREAM.UPDATE.KINE_{own}"),
            "{}",
            false,
        ),
        (
            "restore a stream",
            format!("$JS.API.STREAM.RESTORE.KINE_{own}"),
            "{}",
            false,
        ),
        (
            "make a stream",
            "$JS.API.STREAM.CREATE.NEW".into(),
            stream_config,
            false,
        ),
        ("list streams", "$JS.API.STREAM.NAMES".into(), "", false),
        ("push claims", "$SYS.REQ.CLAIMS.UPDATE".into(), "x", false),
        ("ask the system", "$SYS.REQ.SERVER.PING".into(), "", false),
    ] {
        let answer = ask(&client, &subject, payload).await;
        assert_eq!(answer.is_some(), allowed, "{rule}: {subject}: {answer:?}");
    }
    assert_subscriptions(&server, &client, &tenant).await;
}

/// Subscriptions that are refused stay silent: what another user sends does not arrive.
async fn assert_subscriptions(server: &Server, client: &async_nats::Client, tenant: &Tenant) {
    let peer = server
        .connect_options(&tenant.user("bcdfghjk24").credentials)
        .custom_inbox_prefix("_INBOX_bcdfghjk24")
        .connect(server.url())
        .await
        .unwrap();
    let neighbour = server
        .connect_options(&tenant.user("cdfghjkl24").credentials)
        .custom_inbox_prefix("_INBOX_cdfghjkl24")
        .connect(server.url())
        .await
        .unwrap();
    for (subject, sender, published, arrives) in [
        ("kine.bcdfghjk24.rpc.>", &peer, "kine.bcdfghjk24.rpc.hello", true),
        // Not all of the inbox: the answer to the question below goes there too.
        ("_INBOX_bcdfghjk24.x", &peer, "_INBOX_bcdfghjk24.x", true),
        ("_INBOX_bcdfghjk24.x", &neighbour, "_INBOX_bcdfghjk24.x", false),
        (">", &neighbour, "kine.cdfghjkl24.rpc.hello", false),
        ("kine.cdfghjkl24.rpc.>", &neighbour, "kine.cdfghjkl24.rpc.hello", false),
        ("kine.bcdfghjk24.log", &peer, "kine.bcdfghjk24.log", false),
        ("_INBOX_cdfghjkl24.>", &neighbour, "_INBOX_cdfghjkl24.x", false),
        ("_INBOX.>", &peer, "kine.bcdfghjk24.rpc.hello", false),
    ] {
        use futures::StreamExt as _;
        let mut subscription = client.subscribe(subject).await.unwrap();
        // An answer on the same connection: the server has seen the subscription. A flush only empties our own buffer.
        assert!(ask(client, "$JS.API.INFO", "").await.is_some());
        sender.publish(published, "x".into()).await.unwrap();
        sender.flush().await.unwrap();
        let limit = if arrives { 3000 } else { 300 };
        let message = timeout(Duration::from_millis(limit), subscription.next()).await;
        assert_eq!(message.ok().flatten().is_some(), arrives, "{subject}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_cuts_a_live_connection() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 1).await;
    tenant.provisioner().await.ensure(&plan("bcdfghjk24")).await.unwrap();
    let user = tenant.user("bcdfghjk24");
    let connect = || {
        server
            .connect_options(&user.credentials)
            .custom_inbox_prefix("_INBOX_bcdfghjk24")
            .connect(server.url())
    };
    let client = connect().await.unwrap();
    let subject = "$JS.API.STREAM.INFO.KINE_bcdfghjk24";
    assert!(ask(&client, subject, "").await.is_some());
    tenant.push(BTreeMap::from([(user.public_key.clone(), now())])).await;
    assert!(ask(&client, subject, "").await.is_none());
    assert!(connect().await.is_err());
    // Its successor is another user and is not touched.
    let successor = tenant.user("bcdfghjk24");
    let client = server
        .connect_options(&successor.credentials)
        .custom_inbox_prefix("_INBOX_bcdfghjk24")
        .connect(server.url())
        .await
        .unwrap();
    assert!(ask(&client, subject, "").await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn account_is_limited_to_what_its_clusters_reserve() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 1).await;
    let provisioner = tenant.provisioner().await;
    let first = provisioner.ensure(&plan("bcdfghjk24")).await.unwrap();
    assert_eq!(first, 0);
    // Again is no change.
    provisioner.ensure(&plan("bcdfghjk24")).await.unwrap();
    let refused = provisioner.ensure(&plan("cdfghjkl24")).await.unwrap_err();
    assert!(refused.is_limit(), "{refused:?}");
    let credentials = tenant.keys.provisioner_credentials(now()).unwrap();
    let client = tenant.nats.connect_user(&credentials).await.unwrap();
    let unbounded = jetstream::new(client)
        .create_stream(stream::Config {
            name: "UNBOUNDED".into(),
            subjects: vec!["unbounded".into()],
            ..Default::default()
        })
        .await;
    assert!(unbounded.is_err());
    provisioner.delete(&id("bcdfghjk24")).await.unwrap();
    provisioner.delete(&id("bcdfghjk24")).await.unwrap();
    provisioner.ensure(&plan("cdfghjkl24")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn account_can_be_found_compared_and_deleted() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 1).await;
    let account = tenant.keys.public_key();
    let found = tenant.nats.find_account(&account).await.unwrap().unwrap();
    assert!(same_claims(&found, &tenant.jwt(BTreeMap::new())));
    let revoked = BTreeMap::from([(tenant.user("bcdfghjk24").public_key, now())]);
    assert!(!same_claims(&found, &tenant.jwt(revoked)));
    tenant.nats.delete_account(&account, now()).await.unwrap();
    assert_eq!(tenant.nats.find_account(&account).await.unwrap(), None);
    tenant.nats.delete_account(&account, now()).await.unwrap();
    let credentials = tenant.keys.provisioner_credentials(now()).unwrap();
    assert!(matches!(
        Provisioner::connect(&tenant.nats, &credentials).await,
        Err(NatsError::Connect(_))
    ));
}
