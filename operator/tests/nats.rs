//! Tenancy on a real nats-server: what a Cluster's user may do, what it may not, and how it ends.

// The lint spares tests, and not what they are helped by.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use std::time::{Duration, Instant};

use async_nats::client::RequestErrorKind;
use async_nats::jetstream;
use async_nats::{ConnectErrorKind, Event, ServerError};
use futures::StreamExt as _;
use support::Server;
use tokio::sync::mpsc;
use tokio::time::timeout;
use yoke_api::ClusterId;
use yoke_operator::nats::claims::disk_storage_of;
use yoke_operator::nats::streams::{self, Provisioner, StreamsPlan, build_log};
use yoke_operator::nats::{Account, ClusterUser, Nats, NatsError, Size};

const LIMIT: Duration = Duration::from_secs(5);

fn now() -> i64 {
    k8s_openapi::jiff::Timestamp::now().as_second()
}

fn id(text: &str) -> ClusterId {
    text.parse().unwrap()
}

fn plan(text: &str) -> StreamsPlan {
    StreamsPlan {
        id: id(text),
        size: Size {
            quota: 1 << 20,
            replicas: 1,
        },
    }
}

/// A Cluster's account and streams, as the operator makes them.
struct Store {
    nats: Nats,
    plan: StreamsPlan,
    account: Account,
}

impl Store {
    async fn new(nats: &Nats, cluster: &str) -> Self {
        let store = Self::draw(nats, cluster);
        store.ensure().await.unwrap();
        store
    }

    /// One that the server does not know yet.
    fn draw(nats: &Nats, cluster: &str) -> Self {
        let plan = plan(cluster);
        Self {
            nats: nats.clone(),
            account: Account::draw(&plan.id, plan.size, now()).unwrap(),
            plan,
        }
    }

    /// Makes what is missing, as a reconciliation does.
    async fn ensure(&self) -> Result<i64, NatsError> {
        streams::ensure(&self.nats, &self.plan.id, &self.account, false).await
    }

    fn user(&self) -> &ClusterUser {
        self.account.user.as_ref().unwrap()
    }

    async fn open(&self, server: &Server) -> Connection {
        Connection::open(server, self.user(), self.plan.id.as_str())
            .await
            .unwrap()
    }
}

async fn connect(server: &Server) -> Nats {
    Nats::connect(&server.config()).await.unwrap()
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

/// A connection that keeps what the server says about it; its end is said as `disconnected`.
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
                let said = match event {
                    Event::ServerError(ServerError::Other(text)) => Some(text),
                    Event::Disconnected => Some("disconnected".to_owned()),
                    _ => None,
                };
                let _ = said.map(|said| sender.send(said));
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
        self.count(&format!("KINE_{id}")).await
    }

    async fn count(&mut self, stream: &str) -> u64 {
        let Answer::Reply(info) = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), "").await else {
            panic!("no answer about {stream}");
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
    let nats = connect(&server).await;
    let (own, other) = (Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await);
    let (mut user, mut peer) = (own.open(&server).await, own.open(&server).await);
    let mut neighbour = other.open(&server).await;
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
        ("write a spare snapshot", format!("kine.{OWN}.spare.1.a.0"), "x"),
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
        ("ask about the account", api("INFO"), ""),
    ] {
        let answer = user.ask(&subject, payload).await;
        assert!(answer.is_reply(), "{rule}: {subject}: {answer:?}");
    }
    for (rule, subject, payload) in [
        ("append to another log", format!("kine.{OTHER}.log"), "x"),
        ("write another's snapshot", format!("kine.{OTHER}.snap.1.a.1"), "x"),
        (
            "write another's spare snapshot",
            format!("kine.{OTHER}.spare.1.a.1"),
            "x",
        ),
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
            "purge others' spare snapshots",
            api(&format!("STREAM.PURGE.KINE_SPARE_{OTHER}")),
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

/// What a store's user may send, with answers that it asks to be sent to a neighbour's log: one to each is an attack.
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

/// Sends everything that the user may, with a reply subject of the neighbour's.
async fn attack(user: &mut Connection, reply: &'static str) {
    for (subject, payload) in requests() {
        let sent = user.client.publish_with_reply(subject, reply, payload.into());
        sent.await.unwrap();
    }
    // What answers by the way of a message and what answers by the way of the API have both come to these.
    for (subject, payload) in requests() {
        assert!(user.ask(&subject, payload).await.is_reply(), "{subject}");
    }
}

/// The server sends answers wherever a request asks, whatever its user may publish to.
#[tokio::test(flavor = "multi_thread")]
async fn answers_reach_no_neighbour() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let (own, other) = (Store::new(&nats, OWN).await, Store::new(&nats, OTHER).await);
    let (mut user, mut neighbour) = (own.open(&server).await, other.open(&server).await);
    let mut inbox = neighbour.listen("_INBOX_cdfghjkl24.x").await;
    let mut questions = neighbour.listen("kine.cdfghjkl24.rpc.>").await;
    for reply in [
        "kine.cdfghjkl24.log",
        "kine.cdfghjkl24.snap.1.a.0",
        "_INBOX_cdfghjkl24.x",
        "kine.cdfghjkl24.rpc.x",
        "$JS.API.STREAM.PURGE.KINE_cdfghjkl24",
    ] {
        attack(&mut user, reply).await;
    }
    assert!(neighbour.ask("kine.cdfghjkl24.log", "mine").await.is_reply());
    assert_eq!(neighbour.count_records(OTHER).await, 1);
    for (subject, messages) in [
        ("_INBOX_cdfghjkl24.x", &mut inbox),
        ("kine.cdfghjkl24.rpc.x", &mut questions),
    ] {
        neighbour.client.publish(subject, "mine".into()).await.unwrap();
        let message = timeout(LIMIT, messages.next()).await.unwrap().unwrap();
        assert_eq!(message.payload, "mine", "{subject}");
    }
    // Were the neighbour's log in the same account, it would hold the answers: so it was while Tenants had the accounts.
    let client = nats.connect_account(&own.account.public_key).await.unwrap();
    let log = jetstream::stream::Config {
        name: format!("KINE_SNAP_{OWN}"),
        ..build_log(&other.plan)
    };
    jetstream::new(client).update_stream(log).await.unwrap();
    attack(&mut user, "kine.cdfghjkl24.log").await;
    assert!(user.count(&format!("KINE_SNAP_{OWN}")).await > 0);
}

/// Two Clusters that have even the same identity, so that no permission tells them apart.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_share_nothing_but_the_server() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let (one, two) = (Store::new(&nats, OWN).await, Store::new(&nats, OWN).await);
    let (mut first, mut peer) = (one.open(&server).await, one.open(&server).await);
    let mut second = two.open(&server).await;
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
    nats.delete_account(&id(OWN), &two.account.public_key).await.unwrap();
    assert_eq!(first.count_records(OWN).await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_account_cuts_a_live_connection() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let mut store = Store::new(&nats, OWN).await;
    let mut connection = store.open(&server).await;
    assert_eq!(connection.count_records(OWN).await, 0);
    nats.close_account(&id(OWN), store.account.clone()).await.unwrap();
    assert_eq!(connection.next_said("the end").await, "disconnected");
    let refused = async |user: &ClusterUser| {
        let refusal = Connection::open(&server, user, OWN).await.err();
        assert_eq!(
            refusal.map(|error| error.kind()),
            Some(ConnectErrorKind::AuthorizationViolation)
        );
    };
    refused(store.user()).await;
    // Opened again for another user, the data is there, and the former user is not let in.
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
    // Again is no change.
    assert_eq!(store.ensure().await.unwrap(), 0);
    let provisioner = Provisioner::connect(&nats, &store.account.public_key).await.unwrap();
    let refused = provisioner.ensure(&plan(OTHER), false).await.unwrap_err();
    assert!(refused.is_limit(), "{refused:?}");
    // Larger, and smaller than at first.
    for (quota, reserved) in [(4 << 20, 220 << 20), (1 << 19, (195 << 20) + (1 << 19))] {
        store.account.size.quota = quota;
        store.ensure().await.unwrap();
        assert_eq!(promised(&store).await, reserved);
        let client = nats.connect_account(&store.account.public_key).await.unwrap();
        let found = jetstream::new(client).get_stream(format!("KINE_{OWN}")).await.unwrap();
        assert_eq!(found.cached_info().config.max_bytes, 2 * quota + (64 << 20));
    }
}

/// The bytes that the claims of a store's account promise.
async fn promised(store: &Store) -> i64 {
    let claims = store.nats.find_account(&store.account.public_key).await.unwrap();
    disk_storage_of(&claims.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_has_no_room_for_is_not_promised() {
    // Two stores, and not three.
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
    // An operator that ended after it had pushed the claims.
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
    three.ensure().await.unwrap();
    assert_eq!(promised(&three).await, own);
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
    // What is named after somebody else is neither changed, closed nor deleted.
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
    assert!(matches!(
        Provisioner::connect(&nats, &key).await,
        Err(NatsError::Connect(_))
    ));
    // A Cluster of the same identity has another account, and none of the data.
    let successor = Store::new(&nats, OWN).await;
    assert_eq!(successor.open(&server).await.count_records(OWN).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_log_is_not_made_anew_for_a_cluster_that_has_state() {
    let server = Server::start().await;
    let nats = connect(&server).await;
    let store = Store::new(&nats, OWN).await;
    let ensure = async |has_state| streams::ensure(&nats, &store.plan.id, &store.account, has_state).await;
    ensure(true).await.unwrap();
    server.lose_streams(&store.account.public_key).await;
    let log = store.plan.id.stream();
    for _ in 0..2 {
        let lost = ensure(true).await.unwrap_err();
        assert!(
            matches!(&lost, NatsError::LogLost { stream } if *stream == log),
            "{lost:?}"
        );
    }
    ensure(false).await.unwrap();
    ensure(true).await.unwrap();
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
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    server.start_again();
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.ensure().await.is_err() || late.find_account(&key).await.is_err() {
        assert!(Instant::now() < deadline, "it is not found again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
