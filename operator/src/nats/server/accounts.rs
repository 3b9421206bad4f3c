//! Accounts on the NATS server: looked up, pushed, closed and deleted, as a user of the system
//! account.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use yoke_api::ClusterId;
use yoke_nats_auth::token::{disk_storage_of, name_of, same_claims};
use yoke_nats_auth::{DeleteClaims, Envelope, sign};

use crate::nats::account::Account;
use crate::nats::limits;
use crate::nats::server::{Nats, NatsError};

/// Time after which a replica counts as unreachable. Servers that replicate a stream exchange a
/// heartbeat each second (`hbIntervalDefault` of nats-server 2.15).
const UNREACHABLE: Duration = Duration::from_secs(3);

impl Nats {
    /// Returns the token of an account on the server; `None` if the server does not have the
    /// account.
    pub async fn find_account(&self, account: &str) -> Result<Option<String>, NatsError> {
        let subject = format!("$SYS.REQ.ACCOUNT.{account}.CLAIMS.LOOKUP");
        let answer = self.request(subject, String::new()).await?;
        let text = String::from_utf8_lossy(&answer.payload).into_owned();
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Pushes the claims of a Cluster's account, if the server has other claims or none. Existing
    /// connections are affected at once. A storage limit is never lowered here, since streams above
    /// their account's limit cannot be changed. Returns whether [`Self::limit_account`] must
    /// follow.
    ///
    /// A server without enough room for a limit stores the claims anyway, and continues to use its
    /// previous limit: see [`streams::ensure`](crate::nats::streams::ensure).
    pub async fn ensure_account(&self, id: &ClusterId, account: &Account) -> Result<bool, NatsError> {
        let found = self.find_own(id, &account.public_key).await?;
        let stored_limit = found.as_deref().map_or(0, disk_storage_of);
        let needed = limits::disk_storage(account.size);
        self.update(id, account, needed.max(stored_limit), found).await?;
        Ok(stored_limit > needed)
    }

    /// Pushes an account's claims with a storage limit in bytes, even if the server has them. With
    /// a limit of 0, the account has no JetStream.
    pub async fn limit_account(&self, id: &ClusterId, account: &Account, disk_storage: i64) -> Result<(), NatsError> {
        self.find_own(id, &account.public_key).await?;
        self.update(id, account, disk_storage, None).await
    }

    /// Pushes claims of an account that admit no user, if the server has the account.
    pub async fn close_account(&self, id: &ClusterId, account: Account) -> Result<(), NatsError> {
        match self.find_own(id, &account.public_key).await {
            Ok(Some(found)) => {
                let disk_storage = disk_storage_of(&found);
                self.update(id, &account.closed(), disk_storage, Some(found)).await
            }
            Ok(None) | Err(NatsError::Foreign { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the account of a Cluster, its streams first. Succeeds if there is none, and ignores
    /// an account of another Cluster.
    ///
    /// An account that this process has deleted is not purged again. Without the account's claims,
    /// a server looks for them on the other servers, and does not answer for 1.9 s (nats-server
    /// 2.15). Any other account without claims may still have streams: servers can lose the claims
    /// and retain the streams.
    ///
    /// A deleted account is never pushed again: a Cluster with the same identity gets a new one.
    /// The server caches the state of an account, and refuses its users for a while after it was
    /// pushed again.
    pub async fn delete_account(&self, id: &ClusterId, account: &str) -> Result<(), NatsError> {
        let found = match self.find_own(id, account).await {
            Err(error @ NatsError::Foreign { .. }) => {
                tracing::warn!(cluster = %id, error = %crate::chain(&error), "NATS account of another Cluster is not deleted");
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

    /// Forgets the deleted account of a Cluster, once the Cluster is gone.
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
        let jwt = sign(&DeleteClaims::new(vec![account.to_owned()]), &envelope, &self.signer)?;
        let answer = self.request("$SYS.REQ.CLAIMS.DELETE".into(), jwt).await?;
        check_answer("the deletion of the account", &answer.payload)
    }

    fn deleted(&self) -> MutexGuard<'_, BTreeMap<ClusterId, String>> {
        // Every change is one insert or removal, so each entry is complete after a panic.
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last sequence number of a Cluster's log, from the leader of its stream. `None`
    /// if no server is the leader, or the leader has no contact to a majority of the replicas. The
    /// answer may never arrive: the caller sets a timeout.
    pub async fn find_log_end(&self, id: &ClusterId, account: &str) -> Option<u64> {
        if !self.is_connected() {
            return None;
        }
        let inbox = self.system.new_inbox();
        let mut answers = self.system.subscribe(inbox.clone()).await.ok()?;
        let subject = format!("$SYS.REQ.ACCOUNT.{account}.JSZ");
        let options = r#"{"streams":true,"stream_leader_only":true}"#;
        let published = self.system.publish_with_reply(subject, inbox, options.into()).await;
        published.ok()?;
        let stream = id.stream();
        // Every server answers separately.
        while let Some(answer) = answers.next().await {
            if let Some(end) = read_log_end(&answer.payload, &stream) {
                return Some(end);
            }
        }
        None
    }

    /// Returns the token of an account. Fails if the account belongs to another Cluster.
    async fn find_own(&self, id: &ClusterId, account: &str) -> Result<Option<String>, NatsError> {
        let found = self.find_account(account).await?;
        let name = found.as_deref().map(name_of).transpose()?;
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
        if found.is_some_and(|found| same_claims(&found, &jwt)) {
            return Ok(());
        }
        let answer = self.request("$SYS.REQ.CLAIMS.UPDATE".into(), jwt).await?;
        check_answer("the account's claims", &answer.payload)?;
        tracing::info!(cluster = %id, "pushed the account to NATS");
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
    /// The other replicas, from the leader's point of view.
    #[serde(default)]
    replicas: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    /// Nanoseconds since the last message of the replica.
    #[serde(default)]
    active: u64,
}

#[derive(Deserialize)]
struct StreamState {
    last_seq: u64,
}

/// Returns the end of a stream from a server's answer about an account, if the server leads the
/// stream and it is writable.
fn read_log_end(payload: &[u8], stream: &str) -> Option<u64> {
    let answer: Inventory = serde_json::from_slice(payload).ok()?;
    let mut streams = answer.data?.stream_detail.into_iter();
    let found = streams.find(|found| found.name == stream)?;
    has_majority(&found).then_some(found.state.last_seq)
}

/// Returns whether the leader of a stream has had messages of a majority of the replicas recently.
/// Without a majority no record is stored, but the leader stays leader for up to ten seconds.
fn has_majority(stream: &StreamDetail) -> bool {
    let peers = stream.cluster.as_ref().map_or(&[][..], |cluster| &cluster.replicas);
    let reachable = peers
        .iter()
        .filter(|peer| Duration::from_nanos(peer.active) < UNREACHABLE);
    // Itself included, more than half of all.
    (1 + reachable.count()) * 2 > 1 + peers.len()
}

/// Checks the server's answer to the deletion of all streams of an account, which may have none.
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
    fn the_leader_with_a_majority_reports_the_end_of_the_log() {
        let answer = |cluster: serde_json::Value| {
            let other = json!({"name": "other", "state": {"last_seq": 1}});
            let log = json!({"name": "log", "state": {"last_seq": 7}, "cluster": cluster});
            json!({"data": {"stream_detail": [other, log]}}).to_string()
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
            ("one server that reports a cluster", json!({"leader": "a"}), Some(7)),
            ("all replicas are reachable", peers(&[0, 1]), Some(7)),
            ("a majority is reachable", peers(&[0, 60]), Some(7)),
            ("no replica is reachable", peers(&[5, 60]), None),
            ("one of three peers is reachable", peers(&[0, 60, 60]), None),
        ] {
            assert_eq!(read_log_end(answer(cluster).as_bytes(), "log"), expected, "{rule}");
        }
        assert_eq!(read_log_end(answer(json!(null)).as_bytes(), "none"), None);
        assert_eq!(read_log_end(b"x", "log"), None);
    }
}
