//! A JetStream stream that stores snapshots.

use crate::log::LogError;
use crate::log::stream::{PubAck, Stream};
use crate::snapshot::messages::Messages;
use bytes::Bytes;
use serde_json::json;
use std::collections::BTreeMap;

impl Messages for Stream {
    async fn store(&self, subject: String, payload: Bytes) -> Result<u64, LogError> {
        let message = self.request(subject, payload).await?;
        let ack: PubAck = serde_json::from_slice(&message.payload).map_err(|_| LogError::Answer("a publish"))?;
        match ack.error {
            None => Ok(ack.seq),
            Some(error) => Err(error.into_error()),
        }
    }

    async fn last(&self, subject: &str) -> Result<Option<(u64, Bytes)>, LogError> {
        self.message(&json!({ "last_by_subj": subject })).await
    }

    async fn first(&self, from: u64, subject: &str) -> Result<Option<(u64, Bytes)>, LogError> {
        self.message(&json!({ "seq": from, "next_by_subj": subject })).await
    }

    async fn batch(&self, from: u64, subject: &str) -> Result<Vec<(u64, Bytes)>, LogError> {
        let mut messages = Vec::new();
        self.read(from, Some(subject), &mut messages).await?;
        Ok(messages)
    }

    async fn subjects(&self, filter: &str) -> Result<BTreeMap<String, u64>, LogError> {
        let info = self.stream_info(&json!({ "subjects_filter": filter })).await?;
        Ok(info.state.subjects.unwrap_or_default())
    }

    async fn purge_below(&self, sequence: u64) -> Result<(), LogError> {
        self.purge_below(sequence).await
    }

    async fn purge_subject(&self, subject: &str) -> Result<(), LogError> {
        self.purge(&json!({ "filter": subject })).await
    }
}
