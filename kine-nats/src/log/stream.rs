//! A JetStream stream, used through plain NATS requests.

use crate::log::disconnects::{ReadFailures, UNREADABLE_AFTER};
use crate::log::{LogError, LogInfo, ServerLoss};
use async_nats::connection::State as Connection;
use async_nats::{Client, Message, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Timeout of a request to the server.
const REQUEST: Duration = Duration::from_secs(5);
/// Interval at which a pending read checks that its connection still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Limits of one batched read: bytes and messages.
const READ_BYTES: usize = 4 << 20;
const READ_MESSAGES: usize = 2000;

/// One stream.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(super) client: Client,
    pub(super) name: String,
    read_failures: Arc<Mutex<ReadFailures>>,
}

/// Settings of a new stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamLimits {
    pub(crate) replicas: usize,
    pub(crate) max_bytes: i64,
}

#[derive(Deserialize)]
pub(crate) struct ApiError {
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    code: u64,
    #[serde(default)]
    pub(super) description: String,
}

impl ApiError {
    pub(crate) fn into_error(self) -> LogError {
        let code = if self.err_code == 0 { self.code } else { self.err_code };
        LogError::Refused {
            code,
            description: self.description,
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct PubAck {
    #[serde(default)]
    pub(crate) seq: u64,
    pub(crate) error: Option<ApiError>,
}

#[derive(Deserialize)]
pub(crate) struct StreamInfo {
    config: StreamConfig,
    pub(crate) state: StreamState,
}

#[derive(Deserialize)]
struct StreamConfig {
    max_bytes: i64,
    #[serde(default)]
    num_replicas: u32,
}

#[derive(Deserialize)]
pub(crate) struct StreamState {
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    #[serde(default)]
    num_deleted: u64,
    #[serde(default)]
    pub(crate) subjects: Option<BTreeMap<String, u64>>,
    #[serde(default)]
    lost: Option<LostData>,
}

#[derive(Deserialize)]
struct LostData {
    #[serde(default)]
    msgs: Option<Vec<u64>>,
    #[serde(default)]
    bytes: u64,
}

impl From<LostData> for ServerLoss {
    fn from(data: LostData) -> Self {
        Self {
            messages: data.msgs.map_or(0, |messages| messages.len() as u64),
            bytes: data.bytes,
        }
    }
}

impl Stream {
    pub(crate) fn new(client: Client, name: String) -> Self {
        let read_failures = Arc::default();
        Self {
            client,
            name,
            read_failures,
        }
    }

    /// Creates the stream unless it exists.
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
            // The stream exists with another configuration, which stays in force.
            Err(LogError::Refused { code: 10058, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads the state of the stream.
    pub(crate) async fn info(&self) -> Result<LogInfo, LogError> {
        // Losses are reported only with the details. With several replicas, the leader reports what
        // it alone had lost, even after it recovered that from the others.
        let info = self.stream_info(&json!({ "deleted_details": true })).await?;
        Ok(LogInfo {
            first: info.state.first_seq,
            last: info.state.last_seq,
            holes: info.state.num_deleted,
            bytes: info.state.bytes,
            limit: u64::try_from(info.config.max_bytes).ok().filter(|limit| *limit > 0),
            lost: info
                .state
                .lost
                .filter(|_| info.config.num_replicas <= 1)
                .map(ServerLoss::from)
                .unwrap_or_default(),
        })
    }

    /// Reads messages from a sequence on, optionally of one subject only. After an error,
    /// `messages` holds those that arrived before it.
    pub(crate) async fn read(
        &self,
        from: u64,
        subject: Option<&str>,
        messages: &mut Vec<(u64, Bytes)>,
    ) -> Result<(), LogError> {
        self.check_connection()?;
        let connection = self.connection();
        let read = self.read_on(connection, from, subject, messages).await;
        let mut read_failures = self.read_failures();
        messages.iter().for_each(|(sequence, _)| read_failures.pass(*sequence));
        if read.is_ok() {
            // The message at `from` may have another subject, or may not exist.
            read_failures.pass(from);
        }
        if let Err(LogError::Disconnected | LogError::Timeout) = read {
            let sequence = messages.last().map_or(from, |(sequence, _)| sequence + 1);
            let times = read_failures.record(sequence, connection);
            if times >= UNREADABLE_AFTER {
                let stream = self.name.clone();
                return Err(LogError::Unreadable {
                    stream,
                    sequence,
                    times,
                });
            }
        }
        read
    }

    async fn read_on(
        &self,
        connection: u64,
        from: u64,
        subject: Option<&str>,
        messages: &mut Vec<(u64, Bytes)>,
    ) -> Result<(), LogError> {
        let mut query = json!({ "seq": from, "batch": READ_MESSAGES, "max_bytes": READ_BYTES });
        if let (Some(subject), Some(fields)) = (subject, query.as_object_mut()) {
            fields.insert("next_by_subj".into(), subject.into());
        }
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
        loop {
            match to_part(self.next(&mut answers, connection).await?)? {
                Some(message) => messages.push(message),
                None => return Ok(()),
            }
        }
    }

    /// Waits for the next response. None arrives after the connection of the request is gone.
    async fn next(&self, answers: &mut Subscriber, connection: u64) -> Result<Message, LogError> {
        let deadline = Instant::now() + REQUEST;
        loop {
            if let Ok(answer) = timeout(CHECK_INTERVAL, answers.next()).await {
                return answer.ok_or(LogError::Disconnected);
            }
            if self.connection() != connection {
                return Err(LogError::Disconnected);
            }
            if Instant::now() >= deadline {
                return Err(LogError::Timeout);
            }
        }
    }

    /// The number of the current connection.
    fn connection(&self) -> u64 {
        self.client.statistics().connects.load(Ordering::Relaxed)
    }

    fn read_failures(&self) -> MutexGuard<'_, ReadFailures> {
        self.read_failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn stream_info(&self, query: &Value) -> Result<StreamInfo, LogError> {
        let subject = format!("$JS.API.STREAM.INFO.{}", self.name);
        let answer = self.api(&subject, query).await?;
        serde_json::from_value(answer).map_err(|_| LogError::Answer("STREAM.INFO"))
    }

    pub(crate) async fn message(&self, query: &Value) -> Result<Option<(u64, Bytes)>, LogError> {
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

    pub(crate) async fn request(&self, subject: String, payload: Bytes) -> Result<Message, LogError> {
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

    pub(super) fn check_connection(&self) -> Result<(), LogError> {
        if self.client.connection_state() == Connection::Connected {
            Ok(())
        } else {
            Err(LogError::Disconnected)
        }
    }

    pub(crate) async fn purge(&self, query: &Value) -> Result<(), LogError> {
        let subject = format!("$JS.API.STREAM.PURGE.{}", self.name);
        self.api(&subject, query).await.map(|_| ())
    }

    /// Drops all messages below a sequence.
    pub(crate) async fn purge_below(&self, sequence: u64) -> Result<(), LogError> {
        self.purge(&json!({ "seq": sequence })).await
    }
}

/// Parses one response of a batched read; `None` marks the end. A message keeps a status that it
/// was stored with, and also headers with the server's names: the server appends its own.
fn to_part(answer: Message) -> Result<Option<(u64, Bytes)>, LogError> {
    let header = answer.headers.as_ref().and_then(|it| it.get_last("Nats-Sequence"));
    match (header, answer.status.map(|status| status.as_u16())) {
        (Some(sequence), _) => match sequence.as_str().parse() {
            Ok(sequence) => Ok(Some((sequence, answer.payload))),
            Err(_) => Err(LogError::Answer("DIRECT.GET")),
        },
        (None, None) => Err(LogError::Answer("DIRECT.GET")),
        (None, Some(204 | 404)) => Ok(None),
        (None, Some(code)) => Err(LogError::Refused {
            code: u64::from(code),
            description: answer.description.unwrap_or_default(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::{HeaderMap, StatusCode};

    fn answer(status: Option<StatusCode>, sequences: &[&str]) -> Message {
        let mut headers = HeaderMap::new();
        for sequence in sequences {
            headers.append("Nats-Sequence", *sequence);
        }
        Message {
            subject: "inbox".into(),
            reply: None,
            payload: "p".into(),
            headers: Some(headers),
            status,
            description: None,
            length: 1,
        }
    }

    #[test]
    fn an_answer_with_a_sequence_is_a_message_despite_its_headers() {
        let missing = Some(StatusCode::NOT_FOUND);
        for (status, sequences) in [(None, &["7"][..]), (missing, &["7"]), (None, &["99", "7"])] {
            let part = to_part(answer(status, sequences)).unwrap();
            assert_eq!(part, Some((7, "p".into())), "{status:?} {sequences:?}");
        }
        assert_eq!(to_part(answer(missing, &[])).unwrap(), None);
        let timeout = to_part(answer(Some(StatusCode::TIMEOUT), &[]));
        assert!(matches!(timeout, Err(LogError::Refused { code: 408, .. })));
        assert!(matches!(to_part(answer(None, &["x"])), Err(LogError::Answer(_))));
    }
}
