//! Tenancy on a real nats-server: what a Cluster's user may do, what it may not, and how it ends.

// The lint spares tests, and not what they are helped by.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::{self, stream};
use async_nats::{ConnectErrorKind, Event, ServerError};
use futures::StreamExt as _;
use support::Server;
use tokio::sync::mpsc;
use tokio::time::timeout;
use yoke_api::ClusterId;
use yoke_operator::nats::claims::same_claims;
use yoke_operator::nats::limits::account_limits;
use yoke_operator::nats::streams::{Provisioner, StreamsPlan};
use yoke_operator::nats::{AccountKeys, ClusterUser, Nats, NatsError};

const QUOTA: i64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(5);

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
        Provisioner::connect(&self.nats, &self.keys).await.unwrap()
    }

    /// Makes a Cluster's streams, as a reconciliation does.
    async fn ensure(&self, cluster: &str) -> Result<i64, NatsError> {
        let provisioner = Provisioner::connect(&self.nats, &self.keys).await?;
        provisioner.ensure(&plan(cluster)).await
    }

    fn user(&self, text: &str) -> ClusterUser {
        ClusterUser::mint(&id(text), &self.keys, now()).unwrap()
    }
}

/// What comes of a request.
#[derive(Debug, PartialEq)]
enum Answer {
    Reply(String),
    /// The server's own words.
    Refused(String),
    /// It was carried, and nobody listens there.
    NobodyThere,
}

impl Answer {
    fn is_reply(&self) -> bool {
        matches!(self, Self::Reply(_))
    }
}

/// A connection that keeps what the server says about it.
struct Connection {
    client: async_nats::Client,
    said: mpsc::UnboundedReceiver<String>,
}

impl Connection {
    async fn open(server: &Server, user: &ClusterUser, id: &str) -> Result<Self, async_nats::ConnectError> {
        let (sender, said) = mpsc::unbounded_channel();
        let client = server
            .connect_options(&user.credentials)
            .custom_inbox_prefix(format!("_INBOX_{id}"))
            .event_callback(move |event| {
                if let Event::ServerError(ServerError::Other(text)) = event {
                    let _ = sender.send(text);
                }
                async {}
            })
            .connect(server.url())
            .await?;
        Ok(Self { client, said })
    }

    /// A request that is neither answered nor refused fails the test.
    async fn ask(&mut self, subject: &str, payload: &str) -> Answer {
        let client = self.client.clone();
        let request = client.request(subject.to_owned(), payload.to_owned().into());
        tokio::select! {
            answer = request => match answer {
                Ok(message) => Answer::Reply(String::from_utf8_lossy(&message.payload).into_owned()),
                Err(error) if error.kind() == RequestErrorKind::NoResponders => Answer::NobodyThere,
                Err(error) => panic!("{subject}: neither an answer nor a refusal: {error}"),
            },
            said = self.next_said(subject) => Answer::Refused(said),
        }
    }

    async fn next_said(&mut self, about: &str) -> String {
        let said = timeout(LIMIT, self.said.recv()).await;
        said.unwrap_or_else(|_| panic!("the server says nothing about {about}"))
            .expect("the client holds the sender")
    }

    /// Subscribes, and waits until the server knows: an answer comes on the same connection. A flush would only empty our
    /// own buffer.
    async fn listen(&mut self, subject: &'static str) -> async_nats::Subscriber {
        let subscription = self.client.subscribe(subject).await.unwrap();
        assert!(self.ask("$JS.API.INFO", "").await.is_reply());
        subscription
    }

    /// Number of messages in the log.
    async fn count_records(&mut self, id: &str) -> u64 {
        let Answer::Reply(info) = self.ask(&format!("$JS.API.STREAM.INFO.KINE_{id}"), "").await else {
            panic!("no answer about the log of {id}");
        };
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["state"]["messages"].as_u64().unwrap_or_else(|| panic!("{info}"))
    }
}

/// Answers whatever is asked of a store's instance.
async fn serve(connection: &mut Connection, subject: &'static str) -> tokio::task::JoinHandle<()> {
    let mut questions = connection.listen(subject).await;
    let client = connection.client.clone();
    tokio::spawn(async move {
        while let Some(question) = questions.next().await {
            client.publish(question.reply.unwrap(), "here".into()).await.unwrap();
        }
    })
}

const OWN: &str = "bcdfghjk24";
const OTHER: &str = "cdfghjkl24";

#[tokio::test(flavor = "multi_thread")]
async fn cluster_user_reaches_its_own_streams_and_nothing_else() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 2).await;
    let provisioner = tenant.provisioner().await;
    for cluster in [OWN, OTHER] {
        provisioner.ensure(&plan(cluster)).await.unwrap();
    }
    let mut user = Connection::open(&server, &tenant.user(OWN), OWN).await.unwrap();
    let mut peer = Connection::open(&server, &tenant.user(OWN), OWN).await.unwrap();
    let mut neighbour = Connection::open(&server, &tenant.user(OTHER), OTHER).await.unwrap();
    // Both stores answer, and the neighbour has data: what fails below fails for want of a permission.
    let own_store = serve(&mut peer, "kine.bcdfghjk24.rpc.>").await;
    let other_store = serve(&mut neighbour, "kine.cdfghjkl24.rpc.>").await;
    for subject in [format!("kine.{OTHER}.log"), format!("kine.{OTHER}.snap.1.a.0")] {
        assert!(neighbour.ask(&subject, "x").await.is_reply());
    }
    let first = r#"{"seq":1}"#;
    let new_stream = r#"{"name":"NEW","subjects":["new"],"max_bytes":1024}"#;
    let consumer = r#"{"stream_name":"KINE_bcdfghjk24","config":{"ack_policy":"none","mem_storage":true,"inactive_threshold":5000000000}}"#;
    let api = |request: &str| format!("$JS.API.{request}");
    for (rule, subject, payload) in [
        ("append to the log", format!("kine.{OWN}.log"), "x"),
        ("write a snapshot", format!("kine.{OWN}.snap.1.a.0"), "x"),
        ("speak to its store", format!("kine.{OWN}.rpc.x"), "x"),
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
            "delete a snapshot",
            api(&format!("STREAM.MSG.DELETE.KINE_SNAP_{OWN}")),
            first,
        ),
        ("purge the log", api(&format!("STREAM.PURGE.KINE_{OWN}")), first),
        ("ask about the account", api("INFO"), ""),
    ] {
        let answer = user.ask(&subject, payload).await;
        assert!(answer.is_reply(), "{rule}: {subject}: {answer:?}");
    }
    for (rule, subject, payload) in [
        ("append to another log", format!("kine.{OTHER}.log"), "x"),
        ("write another's snapshot", format!("kine.{OTHER}.snap.1.a.1"), "x"),
        ("speak to another store", format!("kine.{OTHER}.rpc.x"), "x"),
        ("inspect another log", api(&format!("STREAM.INFO.KINE_{OTHER}")), ""),
        (
            "inspect others' snapshots",
            api(&format!("STREAM.INFO.KINE_SNAP_{OTHER}")),
            "",
        ),
        ("read another log", api(&format!("STREAM.MSG.GET.KINE_{OTHER}")), first),
        (
            "read others' snapshots",
            api(&format!("STREAM.MSG.GET.KINE_SNAP_{OTHER}")),
            first,
        ),
        (
            "read another log directly",
            api(&format!("DIRECT.GET.KINE_{OTHER}")),
            first,
        ),
        (
            "read others' snapshots directly",
            api(&format!("DIRECT.GET.KINE_SNAP_{OTHER}")),
            first,
        ),
        (
            "read another log's last",
            api(&format!("DIRECT.GET.KINE_{OTHER}.kine.{OTHER}.log")),
            "",
        ),
        ("purge another log", api(&format!("STREAM.PURGE.KINE_{OTHER}")), ""),
        (
            "purge others' snapshots",
            api(&format!("STREAM.PURGE.KINE_SNAP_{OTHER}")),
            "",
        ),
        (
            "delete others' snapshots",
            api(&format!("STREAM.MSG.DELETE.KINE_SNAP_{OTHER}")),
            first,
        ),
        (
            "delete another's record",
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
            "delete a log record",
            api(&format!("STREAM.MSG.DELETE.KINE_{OWN}")),
            first,
        ),
        ("delete its stream", api(&format!("STREAM.DELETE.KINE_{OWN}")), ""),
        ("change its stream", api(&format!("STREAM.UPDATE.KINE_{OWN}")), "{}"),
        ("restore a stream", api(&format!("STREAM.RESTORE.KINE_{OWN}")), "{}"),
        ("make a stream", api("STREAM.CREATE.NEW"), new_stream),
        ("list streams", api("STREAM.NAMES"), ""),
        ("push claims", "$SYS.REQ.CLAIMS.UPDATE".into(), "x"),
        ("ask the system", "$SYS.REQ.SERVER.PING".into(), ""),
    ] {
        let answer = user.ask(&subject, payload).await;
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
        // Not all of the inbox: the answers to questions go there too.
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
        let refusal = user.next_said(subject).await;
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
    let refusal = neighbour.next_said("an answer to another store").await;
    assert_eq!(refusal, no_publish("_INBOX_bcdfghjk24.x"));
}

/// Two Tenants whose Clusters have even the same identity, so that no permission tells them apart.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_share_nothing_but_the_server() {
    let server = Server::start().await;
    let (one, two) = (Tenant::new(&server, 1).await, Tenant::new(&server, 1).await);
    for tenant in [&one, &two] {
        tenant.provisioner().await.ensure(&plan(OWN)).await.unwrap();
    }
    let mut first = Connection::open(&server, &one.user(OWN), OWN).await.unwrap();
    let mut peer = Connection::open(&server, &one.user(OWN), OWN).await.unwrap();
    let mut second = Connection::open(&server, &two.user(OWN), OWN).await.unwrap();
    for _ in 0..3 {
        assert!(first.ask("kine.bcdfghjk24.log", "x").await.is_reply());
    }
    let counts = (first.count_records(OWN).await, second.count_records(OWN).await);
    assert_eq!(counts, (3, 0));

    let store = serve(&mut peer, "kine.bcdfghjk24.rpc.>").await;
    let question = "kine.bcdfghjk24.rpc.hello";
    assert_eq!(first.ask(question, "x").await, Answer::Reply("here".into()));
    assert_eq!(second.ask(question, "x").await, Answer::NobodyThere);
    store.abort();

    assert!(second.ask("$JS.API.STREAM.PURGE.KINE_bcdfghjk24", "").await.is_reply());
    two.provisioner().await.delete(&id(OWN)).await.unwrap();
    assert_eq!(first.count_records(OWN).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn revocation_cuts_a_live_connection() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 1).await;
    tenant.provisioner().await.ensure(&plan(OWN)).await.unwrap();
    let user = tenant.user(OWN);
    let mut connection = Connection::open(&server, &user, OWN).await.unwrap();
    assert_eq!(connection.count_records(OWN).await, 0);
    tenant.push(BTreeMap::from([(user.public_key.clone(), now())])).await;
    let said = connection.next_said("the revocation").await;
    assert_eq!(said, "User Authentication Revoked");
    let refusal = Connection::open(&server, &user, OWN)
        .await
        .err()
        .map(|error| error.kind());
    assert_eq!(refusal, Some(ConnectErrorKind::AuthorizationViolation));
    // Its successor is another user and is not touched.
    let mut successor = Connection::open(&server, &tenant.user(OWN), OWN).await.unwrap();
    assert_eq!(successor.count_records(OWN).await, 0);
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
    assert!(matches!(
        Provisioner::connect(&tenant.nats, &tenant.keys).await,
        Err(NatsError::Connect(_))
    ));
}

/// Number of connections that were ever made to the server.
async fn count_connections(system: &async_nats::Client) -> u64 {
    let answer = system.request("$SYS.REQ.SERVER.PING.VARZ", "".into()).await.unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
    answer["data"]["total_connections"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_serves_all_clusters_of_a_tenant() {
    let server = Server::start().await;
    let tenant = Tenant::new(&server, 3).await;
    let system = server.system().await;
    let before = count_connections(&system).await;
    for _ in 0..5 {
        let looks = ["bcdfghjk24", "cdfghjkl24", "dfghjklm24"].map(|cluster| {
            let tenant = &tenant;
            async move { tenant.provisioner().await.ensure(&plan(cluster)).await.unwrap() }
        });
        futures::future::join_all(looks).await;
    }
    assert_eq!(count_connections(&system).await - before, 1);
    // Another account has one of its own.
    let other = Tenant {
        nats: tenant.nats.clone(),
        keys: AccountKeys::generate(),
        clusters: 1,
    };
    other.push(BTreeMap::new()).await;
    other.ensure("fghjklmn24").await.unwrap();
    assert_eq!(count_connections(&system).await - before, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_server_keeps_nobody_waiting() {
    let mut server = Server::start().await;
    let tenant = Tenant::new(&server, 1).await;
    tenant.ensure("bcdfghjk24").await.unwrap();
    let account = tenant.keys.public_key();
    server.stop();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !matches!(tenant.nats.find_account(&account).await, Err(NatsError::Lost)) {
        assert!(Instant::now() < deadline, "the loss is not told");
    }
    let began = Instant::now();
    for _ in 0..20 {
        let (found, made) = tokio::join!(tenant.nats.find_account(&account), tenant.ensure("bcdfghjk24"));
        assert!(matches!(found, Err(NatsError::Lost)), "{found:?}");
        assert!(matches!(made, Err(NatsError::Lost)), "{made:?}");
    }
    let late = Nats::connect(&server.config()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    server.start_again();
    let deadline = Instant::now() + Duration::from_secs(20);
    while tenant.ensure("bcdfghjk24").await.is_err() || late.find_account(&account).await.is_err() {
        assert!(Instant::now() < deadline, "it is not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
