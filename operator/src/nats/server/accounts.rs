//! The accounts that the server knows: looked up, pushed, closed and deleted, as a user of the system account.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use yoke_api::ClusterId;

use super::{Nats, NatsError};
use crate::nats::account::Account;
use crate::nats::claims::{self, DeleteClaims, Envelope};
use crate::nats::limits;

/// Servers that replicate a stream hear of each other each second (`hbIntervalDefault` of nats-server 2.15).
const UNHEARD: Duration = Duration::from_secs(3);

impl Nats {
    /// The token of an account as the server has it; `None` if it has none.
    pub async fn find_account(&self, account: &str) -> Result<Option<String>, NatsError> {
        let subject = format!("$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP");
        let answer = self.request(subject, String::new()).await?;
        let text = String::from_utf8_lossy(&answer.payload).into_owned();
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Gives the server the claims of a Cluster's account, if it has others or none. Connections that there are feel it at
    /// once. A limit that is to become lower stays as it is, for streams that are above theirs cannot be changed: says whether
    /// [`Self::limit_account`] must follow.
    ///
    /// A server that has no room for a limit keeps the claims all the same, and uses what it had: see
    /// [`streams::ensure`](crate::nats::streams::ensure).
    pub async fn ensure_account(&self, id: &ClusterId, account: &Account) -> Result<bool, NatsError> {
        let found = self.find_own(id, &account.public_key).await?;
        let floor = found.as_deref().map_or(0, claims::disk_storage_of);
        let own = limits::disk_storage(account.size);
        self.update(id, account, own.max(floor), found).await?;
        Ok(floor > own)
    }

    /// Gives the server an account's claims with a limit of so many bytes, though it may have them; with none, the account
    /// has no JetStream.
    pub async fn limit_account(&self, id: &ClusterId, account: &Account, disk_storage: i64) -> Result<(), NatsError> {
        self.find_own(id, &account.public_key).await?;
        self.update(id, account, disk_storage, None).await
    }

    /// Gives the server the claims of an account that lets nobody in, if it knows the account.
    pub async fn close_account(&self, id: &ClusterId, account: Account) -> Result<(), NatsError> {
        match self.find_own(id, &account.public_key).await {
            Ok(Some(found)) => {
                let disk_storage = claims::disk_storage_of(&found);
                self.update(id, &account.closed(), disk_storage, Some(found)).await
            }
            Ok(None) | Err(NatsError::Foreign { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the account of a Cluster, its streams first; also if there is none. What is another's stays.
    ///
    /// One that this process has deleted is not asked for again: a server that is to purge an account without claims looks for those at
    /// the other servers, and for 1.9 s hears nothing of whoever asked (nats-server 2.15). Of another without claims there may be
    /// streams: servers can lose the one and keep the other.
    ///
    /// An account that was deleted is never pushed again: a Cluster of the same identity draws another. The server keeps
    /// what it knew of one in memory, and refuses its users for a while after it came back.
    pub async fn delete_account(&self, id: &ClusterId, account: &str) -> Result<(), NatsError> {
        let found = match self.find_own(id, account).await {
            Err(error @ NatsError::Foreign { .. }) => {
                tracing::warn!(cluster = %id, error = %crate::chain(&error), "account is left");
                return Ok(());
            }
            found => found?,
        };
        if found.is_none() && self.deleted().get(id).is_some_and(|known| known == account) {
            return Ok(());
        }
        let answer = self
            .request(format!("$JS.API.ACCOUNT.PURGE.{account}"), String::new())
            .await?;
        check_purge(&answer.payload)?;
        if found.is_some() {
            self.delete_claims(account).await?;
        }
        self.deleted().insert(id.clone(), account.to_owned());
        Ok(())
    }

    /// Forgets which account of a Cluster was deleted, when nobody asks for that any more.
    pub fn forget(&self, id: &ClusterId) {
        self.deleted().remove(id);
    }

    async fn delete_claims(&self, account: &str) -> Result<(), NatsError> {
        let subject = self.signer.public_key();
        let envelope = Envelope {
            subject: &subject,
            name: "yoke-operator",
            issued: Timestamp::now().as_second(),
            expires: None,
        };
        let jwt = claims::sign(&DeleteClaims::new(vec![account.to_owned()]), &envelope, &self.signer)?;
        let answer = self.request("$SYS.REQ.CLAIMS.DELETE".into(), jwt).await?;
        check_answer("the deletion of the account", &answer.payload)
    }

    fn deleted(&self) -> MutexGuard<'_, BTreeMap<ClusterId, String>> {
        // Each entry is whole by itself.
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the log of a Cluster ends, by the server that leads its stream; `None` if none says so, or if that one does not
    /// hear most of the others. The answer may never come: the caller limits the time.
    pub async fn find_log_end(&self, id: &ClusterId, account: &str) -> Option<u64> {
        if !self.is_connected() {
            return None;
        }
        let inbox = self.system.new_inbox();
        let mut answers = self.system.subscribe(inbox.clone()).await.ok()?;
        let subject = format!("$SYS.REQ.ACCOUNT.{account}.JSZ");
        let asked = r#"{"streams":true,"stream_leader_only":true}"#;
        let published = self.system.publish_with_reply(subject, inbox, asked.into()).await;
        published.ok()?;
        let stream = id.stream();
        // Each server answers for itself.
        while let Some(answer) = answers.next().await {
            if let Some(end) = read_log_end(&answer.payload, &stream) {
                return Some(end);
            }
        }
        None
    }

    /// The token of an account that is a Cluster's or nobody's.
    async fn find_own(&self, id: &ClusterId, account: &str) -> Result<Option<String>, NatsError> {
        let found = self.find_account(account).await?;
        let name = found.as_deref().map(claims::name_of).transpose()?;
        match name.filter(|name| name != id.as_str()) {
            None => Ok(found),
            Some(name) => Err(NatsError::Foreign {
                account: account.to_owned(),
                name,
            }),
        }
    }

    async fn update(
        &self,
        id: &ClusterId,
        account: &Account,
        disk_storage: i64,
        found: Option<String>,
    ) -> Result<(), NatsError> {
        let now = Timestamp::now().as_second();
        let jwt = account.jwt(id, disk_storage, &self.provisioner.public_key(), now, &self.signer)?;
        if found.is_some_and(|found| claims::same_claims(&found, &jwt)) {
            return Ok(());
        }
        let answer = self.request("$SYS.REQ.CLAIMS.UPDATE".into(), jwt).await?;
        check_answer("the account's claims", &answer.payload)?;
        tracing::info!(cluster = %id, "account is pushed to NATS");
        Ok(())
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Option<AnswerData>,
    error: Option<AnswerError>,
}

#[derive(Deserialize)]
struct AnswerData {
    code: i64,
}

#[derive(Deserialize)]
struct AnswerError {
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct Inventory {
    data: Option<InventoryData>,
}

#[derive(Deserialize)]
struct InventoryData {
    #[serde(default)]
    stream_detail: Vec<StreamDetail>,
}

#[derive(Deserialize)]
struct StreamDetail {
    name: String,
    state: StreamState,
    cluster: Option<StreamCluster>,
}

#[derive(Deserialize)]
struct StreamCluster {
    /// The others, as the one that leads knows them.
    #[serde(default)]
    replicas: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    /// Nanoseconds since it was last heard.
    #[serde(default)]
    active: u64,
}

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
}

/// Where a stream ends, out of a server's answer about an account, if the server has it and it can be written.
fn read_log_end(payload: &[u8], stream: &str) -> Option<u64> {
    let answer: Inventory = serde_json::from_slice(payload).ok()?;
    let mut streams = answer.data?.stream_detail.into_iter();
    let found = streams.find(|found| found.name == stream)?;
    has_majority(&found).then_some(found.state.last_seq)
}

/// Whether the server that leads a stream has heard most of the others lately. Without them nothing is stored, and it goes on
/// leading for up to ten seconds.
fn has_majority(stream: &StreamDetail) -> bool {
    let peers = stream.cluster.as_ref().map_or(&[][..], |cluster| &cluster.replicas);
    let heard = peers.iter().filter(|peer| Duration::from_nanos(peer.active) < UNHEARD);
    // With itself more than half of all.
    (1 + heard.count()) * 2 > 1 + peers.len()
}

/// The server's answer to the deletion of all streams of an account, of which it may have none.
fn check_purge(payload: &[u8]) -> Result<(), NatsError> {
    let refused = |message: String| NatsError::Refused {
        what: "the deletion of the streams",
        message,
    };
    let answer: Answer =
        serde_json::from_slice(payload).map_err(|error| refused(format!("unreadable answer: {error}")))?;
    match answer.error {
        Some(error) => Err(refused(error.description)),
        None => Ok(()),
    }
}

fn check_answer(what: &'static str, payload: &[u8]) -> Result<(), NatsError> {
    let refused = |message: String| NatsError::Refused { what, message };
    let answer: Answer =
        serde_json::from_slice(payload).map_err(|error| refused(format!("unreadable answer: {error}")))?;
    match (answer.error, answer.data) {
        (Some(error), _) => Err(refused(error.description)),
        (None, Some(data)) if data.code == 200 => Ok(()),
        (None, _) => Err(refused(String::from_utf8_lossy(payload).into_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_log_ends_where_the_one_says_that_most_follow() {
        let answer = |cluster: serde_json::Value| {
            let other = json!({"name": "other", "state": {"last_seq": 1}});
            let own = json!({"name": "log", "state": {"last_seq": 7}, "cluster": cluster});
            json!({"data": {"stream_detail": [other, own]}}).to_string()
        };
        let peers = |seconds: &[u64]| {
            let peers: Vec<_> = seconds
                .iter()
                .map(|seconds| json!({"active": seconds * 1_000_000_000}))
                .collect();
            json!({"leader": "a", "replicas": peers})
        };
        for (rule, cluster, expected) in [
            ("one server", json!(null), Some(7)),
            ("one server that tells of itself", json!({"leader": "a"}), Some(7)),
            ("all are heard", peers(&[0, 1]), Some(7)),
            ("most are heard", peers(&[0, 60]), Some(7)),
            ("it is alone", peers(&[5, 60]), None),
            ("two of four", peers(&[0, 60, 60]), None),
        ] {
            assert_eq!(read_log_end(answer(cluster).as_bytes(), "log"), expected, "{rule}");
        }
        assert_eq!(read_log_end(answer(json!(null)).as_bytes(), "none"), None);
        assert_eq!(read_log_end(b"x", "log"), None);
    }
}
