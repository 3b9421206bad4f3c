//! Multi-tenancy on a real nats-server: what a Cluster's user may do, what it may not do, and how
//! its access ends.

// Clippy exempts test functions, but not their helpers.
#![allow(clippy::unwrap_used, clippy::panic)]

mod accounts;
mod log_end;
mod rights;

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Event, ServerError};
use futures::StreamExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;
use yoke_api::ClusterId;
use yoke_operator::testing::nats::streams::{self, StreamsPlan};
use yoke_operator::testing::nats::{Account, ClusterUser, Nats, NatsError, Size};
use yoke_operator::testing::nats_config;
use yoke_test_support::nats::Server;

/// Timeout of every wait. Longer than a request's own timeout, whose error says more.
const LIMIT: Duration = Duration::from_secs(20);

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

/// A Cluster's account and streams, as the operator creates them.
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

    /// A store that the server does not know yet.
    fn draw(nats: &Nats, cluster: &str) -> Self {
        let plan = plan(cluster);
        Self {
            nats: nats.clone(),
            account: Account::draw(&plan.id, plan.size, now()).unwrap(),
            plan,
        }
    }

    /// Creates what is missing, as a reconciliation does.
    async fn ensure(&self) -> Result<i64, NatsError> {
        streams::ensure(&self.nats, &self.plan.id, &self.account, false).await
    }

    /// Creates what is missing for a Cluster that has data.
    async fn ensure_existing(&self) -> Result<i64, NatsError> {
        streams::ensure(&self.nats, &self.plan.id, &self.account, true).await
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
    Nats::connect(&nats_config(server.port(), server.secret_dir()))
        .await
        .unwrap()
}

/// Outcome of a request.
#[derive(Debug, PartialEq)]
enum Answer {
    Reply(String),
    /// The server's message.
    Refused(String),
    /// The request was delivered, but has no subscriber.
    NoResponder,
}

impl Answer {
    fn is_reply(&self) -> bool {
        matches!(self, Self::Reply(_))
    }
}

/// A connection that records the server's messages about it. Its end is recorded as `disconnected`.
struct Connection {
    client: async_nats::Client,
    messages: mpsc::UnboundedReceiver<String>,
}

impl Connection {
    async fn open(server: &Server, user: &ClusterUser, id: &str) -> Result<Self, async_nats::ConnectError> {
        let (sender, messages) = mpsc::unbounded_channel();
        let client = server
            .connect_options(&user.credentials)
            .custom_inbox_prefix(format!("_INBOX_{id}"))
            .event_callback(move |event| {
                let message = match event {
                    Event::ServerError(ServerError::Other(text)) => Some(text),
                    Event::Disconnected => Some("disconnected".to_owned()),
                    _ => None,
                };
                let _ = message.map(|message| sender.send(message));
                async {}
            })
            .connect(server.url())
            .await?;
        Ok(Self { client, messages })
    }

    /// Sends a request. The test fails if it is neither answered nor refused.
    async fn request(&mut self, subject: &str, payload: &str) -> Answer {
        let client = self.client.clone();
        let request = client.request(subject.to_owned(), payload.to_owned().into());
        tokio::select! {
            answer = request => match answer {
                Ok(message) => Answer::Reply(String::from_utf8_lossy(&message.payload).into_owned()),
                Err(error) if error.kind() == RequestErrorKind::NoResponders => Answer::NoResponder,
                Err(error) => panic!("{subject}: neither an answer nor a refusal: {error}"),
            },
            message = self.next_message(subject) => Answer::Refused(message),
        }
    }

    async fn next_message(&mut self, about: &str) -> String {
        let message = timeout(LIMIT, self.messages.recv()).await;
        message
            .unwrap_or_else(|_| panic!("no message of the server about {about}"))
            .expect("the client holds the sender")
    }

    /// Subscribes, and waits until the server has processed that: an answer on the same connection
    /// proves it. A flush would only empty our own buffer.
    async fn listen(&mut self, subject: &'static str) -> async_nats::Subscriber {
        let subscription = self.client.subscribe(subject).await.unwrap();
        assert!(self.request("$JS.API.INFO", "").await.is_reply());
        subscription
    }

    /// Returns the number of messages in the log.
    async fn count_records(&mut self, id: &str) -> u64 {
        self.count(&format!("KINE_{id}")).await
    }

    async fn count(&mut self, stream: &str) -> u64 {
        let Answer::Reply(info) = self.request(&format!("$JS.API.STREAM.INFO.{stream}"), "").await else {
            panic!("no answer about {stream}");
        };
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["state"]["messages"].as_u64().unwrap_or_else(|| panic!("{info}"))
    }
}

/// Answers every request to a store's instance.
async fn serve(connection: &mut Connection, subject: &'static str) -> tokio::task::JoinHandle<()> {
    let mut requests = connection.listen(subject).await;
    let client = connection.client.clone();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            client.publish(request.reply.unwrap(), "here".into()).await.unwrap();
        }
    })
}

const OWN: &str = "bcdfghjk24";
const OTHER: &str = "cdfghjkl24";
