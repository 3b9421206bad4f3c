//! The log as a JetStream stream. All acks arrive on one subscription. Only the writer
//! notices a lost ack.

use crate::log::stream::{ApiError, PubAck, Stream};
use crate::log::{Ack, Log, LogError, LogInfo, Rejection, until_hole};
use async_nats::client::PublishErrorKind;
use async_nats::connection::State as Connection;
use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use futures::StreamExt;
use serde_json::json;
use tokio::sync::mpsc;

/// The stream that holds the records.
#[derive(Debug)]
pub(crate) struct JetStream {
    stream: Stream,
    subject: String,
    acks: String,
}

impl JetStream {
    /// Subscribes to the acks.
    pub(crate) async fn open(stream: Stream, subject: String) -> Result<(Self, mpsc::Receiver<Ack>), LogError> {
        let acks = stream.client.new_inbox();
        let mut subscription = stream
            .client
            .subscribe(format!("{acks}.*"))
            .await
            .map_err(|_| LogError::Disconnected)?;
        let (sender, receiver) = mpsc::channel(256);
        tokio::spawn(async move {
            loop {
                let message = tokio::select! {
                    message = subscription.next() => message,
                    // The receiver was dropped: this process no longer writes.
                    () = sender.closed() => None,
                };
                let Some(message) = message else { return };
                if let Some(ack) = to_ack(&message) {
                    // The writer may have ended just now.
                    let _ = sender.send(ack).await;
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
    let outcome = to_outcome(serde_json::from_slice(&message.payload).ok()?);
    Some(Ack { token, outcome })
}

fn to_outcome(ack: PubAck) -> Result<u64, Rejection> {
    match ack.error {
        None => Ok(ack.seq),
        Some(ApiError {
            err_code: 10071 | 10164,
            ..
        }) => Err(Rejection::Conflict),
        Some(ApiError {
            err_code: 10002 | 10023 | 10047 | 10077,
            ..
        }) => Err(Rejection::Full),
        Some(error) => Err(Rejection::Other {
            code: error.err_code,
            description: error.description,
        }),
    }
}

impl Log for JetStream {
    async fn publish(&self, token: u64, record: Bytes, expected: u64) -> Result<(), LogError> {
        self.stream.check_connection()?;
        let bytes = record.len();
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Sequence", expected.to_string());
        headers.insert("Nats-Expected-Stream", self.stream.name.as_str());
        let reply = format!("{}.{token}", self.acks);
        let sent = self
            .stream
            .client
            .publish_with_reply_and_headers(self.subject.clone(), reply, headers, record)
            .await;
        sent.map_err(|error| match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => LogError::TooLarge { bytes },
            _ => LogError::Disconnected,
        })
    }

    async fn read(&self, from: u64) -> Result<Vec<(u64, Bytes)>, LogError> {
        let mut messages = Vec::new();
        match self.stream.read(from, None, &mut messages).await {
            // Return the messages that arrived; the next read starts behind them.
            Err(error) if messages.is_empty() => return Err(error),
            Ok(()) | Err(_) => {}
        }
        until_hole(from, messages)
    }

    async fn get(&self, sequence: u64) -> Result<Option<Bytes>, LogError> {
        let message = self.stream.message(&json!({ "seq": sequence })).await?;
        Ok(message.map(|(_, record)| record))
    }

    async fn info(&self) -> Result<LogInfo, LogError> {
        self.stream.info().await
    }

    async fn purge(&self, below: u64) -> Result<(), LogError> {
        self.stream.purge_below(below).await
    }

    fn is_connected(&self) -> bool {
        self.stream.client.connection_state() == Connection::Connected
    }

    async fn reconnect(&self) {
        let _ = self.stream.client.force_reconnect().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_cause_of_a_rejected_record() {
        for (code, expected) in [
            (10071, "Conflict"),
            (10164, "Conflict"),
            (10077, "Full"),
            (10047, "Full"),
            (10023, "Full"),
            // The limit of the account.
            (10002, "Full"),
            (10003, "Other"),
        ] {
            let answer = json!({ "error": { "code": 400, "err_code": code, "description": "d" } });
            let outcome = to_outcome(serde_json::from_value(answer).unwrap());
            let found = format!("{:?}", outcome.unwrap_err());
            assert_eq!(found.split(' ').next(), Some(expected), "{code}");
        }
        assert!(matches!(
            to_outcome(serde_json::from_value(json!({ "seq": 7 })).unwrap()),
            Ok(7)
        ));
    }
}
