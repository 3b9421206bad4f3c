//! The log as a JetStream stream, spoken to with plain requests: acks come through one subscription for all records, so
//! that a record costs no allocation for its answer and a lost ack is noticed by the writer alone.

use super::{Ack, Log, LogError, LogInfo, Rejection};
use async_nats::connection::State as Connection;
use async_nats::{Client, HeaderMap, Message};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a request to the server may take.
const REQUEST: Duration = Duration::from_secs(5);
/// Bytes and messages of one batched read.
const READ_BYTES: usize = 4 << 20;
const READ_MESSAGES: usize = 2000;

/// One stream.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    client: Client,
    name: String,
}

/// What a stream is made with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamLimits {
    pub(crate) replicas: usize,
    pub(crate) max_bytes: i64,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    code: u64,
    #[serde(default)]
    description: String,
}

impl ApiError {
    fn into_error(self) -> LogError {
        let code = if self.err_code == 0 { self.code } else { self.err_code };
        LogError::Refused {
            code,
            description: self.description,
        }
    }
}

#[derive(Deserialize)]
struct PubAck {
    #[serde(default)]
    seq: u64,
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct StreamInfo {
    config: StreamConfig,
    state: StreamState,
}

#[derive(Deserialize)]
struct StreamConfig {
    max_bytes: i64,
}

#[derive(Deserialize)]
struct StreamState {
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
}

impl Stream {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    /// Makes the stream unless it is there.
    pub(crate) async fn create(&self, subjects: &str, limits: StreamLimits) -> Result<(), LogError> {
        let config = json!({
            "name": self.name,
            "subjects": [subjects],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "num_replicas": limits.replicas,
            "max_bytes": limits.max_bytes,
            "max_msgs": -1,
            "max_age": 0,
            "max_msg_size": -1,
            "max_consumers": -1,
            "deny_delete": true,
            "deny_purge": false,
            "allow_direct": true,
            "duplicate_window": 100_000_000,
        });
        match self.api(&format!("$JS.API.STREAM.CREATE.{}", self.name), &config).await {
            Ok(_) => Ok(()),
            // In use with another configuration: the one that is there counts.
            Err(LogError::Refused { code: 10058, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Where the stream begins and ends.
    pub(crate) async fn info(&self) -> Result<LogInfo, LogError> {
        let answer = self
            .api(&format!("$JS.API.STREAM.INFO.{}", self.name), &Value::Null)
            .await?;
        let info: StreamInfo = serde_json::from_value(answer).map_err(|_| LogError::Answer("STREAM.INFO"))?;
        Ok(LogInfo {
            first: info.state.first_seq,
            last: info.state.last_seq,
            bytes: info.state.bytes,
            limit: u64::try_from(info.config.max_bytes).ok().filter(|limit| *limit > 0),
        })
    }

    /// Stores a message and answers its sequence.
    pub(crate) async fn store(&self, subject: String, payload: Bytes) -> Result<u64, LogError> {
        let message = self.request(subject, payload).await?;
        let ack: PubAck = serde_json::from_slice(&message.payload).map_err(|_| LogError::Answer("a publish"))?;
        match ack.error {
            None => Ok(ack.seq),
            Some(error) => Err(error.into_error()),
        }
    }

    /// The newest message of a subject, from the leader, with its sequence.
    pub(crate) async fn last(&self, subject: &str) -> Result<Option<(u64, Bytes)>, LogError> {
        self.message(&json!({ "last_by_subj": subject })).await
    }

    /// Messages from a sequence on, only those of a subject when one is given.
    pub(crate) async fn batch(&self, from: u64, subject: Option<&str>) -> Result<Vec<(u64, Bytes)>, LogError> {
        let mut query = json!({ "seq": from, "batch": READ_MESSAGES, "max_bytes": READ_BYTES });
        if let (Some(subject), Some(fields)) = (subject, query.as_object_mut()) {
            fields.insert("next_by_subj".into(), subject.into());
        }
        self.check_connection()?;
        let inbox = self.client.new_inbox();
        let mut answers = self
            .client
            .subscribe(inbox.clone())
            .await
            .map_err(|_| LogError::Disconnected)?;
        let target = format!("$JS.API.DIRECT.GET.{}", self.name);
        let sent = self
            .client
            .publish_with_reply(target, inbox, query.to_string().into())
            .await;
        sent.map_err(|_| LogError::Disconnected)?;
        let mut messages = Vec::new();
        loop {
            let answer = timeout(REQUEST, answers.next()).await.map_err(|_| LogError::Timeout)?;
            let answer = answer.ok_or(LogError::Disconnected)?;
            match answer.status.map(|status| status.as_u16()) {
                None => messages.push((sequence(&answer)?, answer.payload)),
                Some(204 | 404) => return Ok(messages),
                Some(code) => {
                    let description = answer.description.unwrap_or_default();
                    return Err(LogError::Refused {
                        code: u64::from(code),
                        description,
                    });
                }
            }
        }
    }

    async fn message(&self, query: &Value) -> Result<Option<(u64, Bytes)>, LogError> {
        let answer = match self.api(&format!("$JS.API.STREAM.MSG.GET.{}", self.name), query).await {
            Err(LogError::Refused { code: 10037, .. }) => return Ok(None),
            answer => answer?,
        };
        let message = answer.get("message").ok_or(LogError::Answer("MSG.GET"))?;
        let sequence = message
            .get("seq")
            .and_then(Value::as_u64)
            .ok_or(LogError::Answer("MSG.GET"))?;
        let data = message.get("data").and_then(Value::as_str).unwrap_or_default();
        let data = data_encoding::BASE64
            .decode(data.as_bytes())
            .map_err(|_| LogError::Answer("MSG.GET"))?;
        Ok(Some((sequence, data.into())))
    }

    async fn api(&self, subject: &str, body: &Value) -> Result<Value, LogError> {
        let payload = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let message = self.request(subject.to_owned(), payload).await?;
        let mut answer: Value = serde_json::from_slice(&message.payload).map_err(|_| LogError::Answer("the API"))?;
        match answer.get_mut("error").map(Value::take) {
            None | Some(Value::Null) => Ok(answer),
            Some(error) => {
                let error: ApiError = serde_json::from_value(error).map_err(|_| LogError::Answer("the API"))?;
                Err(error.into_error())
            }
        }
    }

    async fn request(&self, subject: String, payload: Bytes) -> Result<Message, LogError> {
        self.check_connection()?;
        match timeout(REQUEST, self.client.request(subject, payload)).await {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) if error.kind() == async_nats::RequestErrorKind::NoResponders => Err(LogError::Refused {
                code: 503,
                description: "no responders".into(),
            }),
            Ok(Err(_)) | Err(_) => Err(LogError::Timeout),
        }
    }

    fn check_connection(&self) -> Result<(), LogError> {
        if self.client.connection_state() == Connection::Connected {
            Ok(())
        } else {
            Err(LogError::Disconnected)
        }
    }

    /// Drops what lies below a sequence.
    pub(crate) async fn purge(&self, below: u64) -> Result<(), LogError> {
        let subject = format!("$JS.API.STREAM.PURGE.{}", self.name);
        self.api(&subject, &json!({ "seq": below })).await.map(|_| ())
    }
}

fn sequence(message: &Message) -> Result<u64, LogError> {
    let header = message
        .headers
        .as_ref()
        .and_then(|headers| headers.get("Nats-Sequence"));
    header
        .and_then(|value| value.as_str().parse().ok())
        .ok_or(LogError::Answer("DIRECT.GET"))
}

/// The stream that holds the records.
#[derive(Debug)]
pub(crate) struct JetStream {
    stream: Stream,
    subject: String,
    acks: String,
}

impl JetStream {
    /// Begins to listen for acks.
    pub(crate) async fn open(stream: Stream, subject: String) -> Result<(Self, mpsc::Receiver<Ack>), LogError> {
        let acks = stream.client.new_inbox();
        let mut subscription = stream
            .client
            .subscribe(format!("{acks}.*"))
            .await
            .map_err(|_| LogError::Disconnected)?;
        let (sender, receiver) = mpsc::channel(256);
        tokio::spawn(async move {
            while let Some(message) = subscription.next().await {
                if let Some(ack) = to_ack(&message)
                    && sender.send(ack).await.is_err()
                {
                    return;
                }
            }
        });
        Ok((Self { stream, subject, acks }, receiver))
    }
}

fn to_ack(message: &Message) -> Option<Ack> {
    let token = message.subject.rsplit('.').next()?.parse().ok()?;
    if let Some(status) = message.status {
        let code = u64::from(status.as_u16());
        return Some(Ack {
            token,
            outcome: Err(Rejection::Other {
                code,
                description: "no responders".into(),
            }),
        });
    }
    let ack: PubAck = serde_json::from_slice(&message.payload).ok()?;
    let outcome = match ack.error {
        None => Ok(ack.seq),
        Some(ApiError {
            err_code: 10071 | 10164,
            ..
        }) => Err(Rejection::Conflict),
        Some(ApiError {
            err_code: 10077 | 10023 | 10047,
            ..
        }) => Err(Rejection::Full),
        Some(error) => Err(Rejection::Other {
            code: error.err_code,
            description: error.description,
        }),
    };
    Some(Ack { token, outcome })
}

impl Log for JetStream {
    async fn publish(&self, token: u64, record: Bytes, expected: u64) -> Result<(), LogError> {
        self.stream.check_connection()?;
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Sequence", expected.to_string());
        headers.insert("Nats-Expected-Stream", self.stream.name.as_str());
        let reply = format!("{}.{token}", self.acks);
        let sent = self
            .stream
            .client
            .publish_with_reply_and_headers(self.subject.clone(), reply, headers, record)
            .await;
        sent.map_err(|_| LogError::Disconnected)
    }

    async fn read(&self, from: u64) -> Result<Vec<(u64, Bytes)>, LogError> {
        let messages = self.stream.batch(from, None).await?;
        for (offset, (sequence, _)) in messages.iter().enumerate() {
            let wanted = from + offset as u64;
            if *sequence != wanted {
                return Err(LogError::Gap(wanted));
            }
        }
        Ok(messages)
    }

    async fn get(&self, sequence: u64) -> Result<Option<Bytes>, LogError> {
        let message = self.stream.message(&json!({ "seq": sequence })).await?;
        Ok(message.map(|(_, record)| record))
    }

    async fn info(&self) -> Result<LogInfo, LogError> {
        self.stream.info().await
    }

    async fn purge(&self, below: u64) -> Result<(), LogError> {
        self.stream.purge(below).await
    }

    fn is_connected(&self) -> bool {
        self.stream.client.connection_state() == Connection::Connected
    }

    async fn reconnect(&self) {
        let _ = self.stream.client.force_reconnect().await;
    }
}
