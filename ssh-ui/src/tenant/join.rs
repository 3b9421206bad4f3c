//! Creates and revokes JoinTokens for one Tenant.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::oneshot;
use tokio::time::Instant;
use yoke_api::join_token::{JoinLine, secret_name};
use yoke_api::{Cluster, JoinToken, JoinTokenSpec, Lenient};
use yoke_view::progress::{Step, WaitProgress};
use yoke_view::verdict::{Obstacle, Refusal, find_obstacle, judge_join_token};

use super::host::{FIELD_MANAGER, TenantHost};
use super::progress::Progress;
use super::request::ask;
use crate::Error;

/// A join command that was created for a user.
#[derive(Clone, Debug)]
pub struct CreatedJoinToken {
    /// Name of the JoinToken, with which it is revoked.
    pub name: String,
    /// Data of the join command.
    pub line: JoinLine,
    /// Time when it expires.
    pub expires: Option<Timestamp>,
}

type Joined = Result<CreatedJoinToken, Error>;

/// Timeout until workers can join.
const LIMIT: Duration = Duration::from_mins(5);
/// How long a new permission to read the Secret may take to be effective.
const PERMISSION_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two attempts to read the Secret.
const PAUSE: Duration = Duration::from_millis(250);

impl TenantHost {
    /// Creates a JoinToken and waits until it is ready. Deletes it if it does not become ready, or
    /// if the client disconnects.
    pub async fn join(&self, spec: JoinTokenSpec, progress: &Progress) -> Joined {
        let cluster = spec.cluster_name.clone();
        check(&cluster, &self.get(&cluster).await?)?;
        let (sender, receiver) = oneshot::channel();
        let (host, progress) = (self.clone(), progress.clone());
        // The client may disconnect between any two steps, which drops this future. A task of its
        // own still deletes the JoinToken. It ends by itself, since each step has a timeout.
        tokio::spawn(async move { host.run_join(spec, &progress, sender).await });
        // The task panicked.
        receiver.await.unwrap_or_else(|_| Err(Error::JoinAbandoned(cluster)))
    }

    async fn run_join(&self, spec: JoinTokenSpec, progress: &Progress, sender: oneshot::Sender<Joined>) {
        let doing = format!("creating a JoinToken for Cluster {}", spec.cluster_name);
        let cluster = spec.cluster_name.clone();
        let name = match self.create_token(spec, &doing).await {
            Ok(name) => name,
            Err(error) => {
                // The client may have disconnected, then it needs no answer.
                let _ = sender.send(Err(error));
                return;
            }
        };
        let joined = tokio::select! {
            biased;
            () = progress.closed() => Err(Error::JoinAbandoned(cluster.clone())),
            joined = self.wait_for_line(&name, &cluster, &doing, progress) => joined,
        };
        match joined {
            Ok((line, expires)) => {
                let created = CreatedJoinToken {
                    name: name.clone(),
                    line,
                    expires,
                };
                if sender.send(Ok(created)).is_err() {
                    self.delete_token(&name).await;
                }
            }
            Err(mut error) => {
                let is_gone = self.delete_token(&name).await;
                if let Error::JoinTimeout { is_deleted, .. } = &mut error {
                    *is_deleted = is_gone;
                }
                let _ = sender.send(Err(error));
            }
        }
    }

    /// Deletes a JoinToken: no further worker can join with it.
    pub async fn revoke(&self, name: &str) -> Result<(), Error> {
        let (doing, parameters) = (format!("revoking JoinToken {name}"), DeleteParams::default());
        ask(&doing, self.join_tokens.delete(name, &parameters))
            .await
            .map(|_| ())
    }

    async fn create_token(&self, spec: JoinTokenSpec, doing: &str) -> Result<String, Error> {
        let generate_name = Some(format!("{}-", spec.cluster_name));
        let mut token = JoinToken::new("", spec);
        token.metadata = ObjectMeta {
            generate_name,
            ..ObjectMeta::default()
        };
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let token = Lenient(Ok(token));
        let made = ask(doing, self.join_tokens.create(&parameters, &token)).await?;
        Ok(made.name_any())
    }

    /// Deletes a JoinToken whose join command was not printed. Returns whether it is gone.
    async fn delete_token(&self, name: &str) -> bool {
        match self.revoke(name).await {
            Ok(()) => true,
            Err(Error::Refused { status, .. }) if status.code == 404 => true,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    name,
                    error,
                    "unused JoinToken cannot be deleted; it exists until it expires"
                );
                false
            }
        }
    }

    /// Waits for the join command, and returns it with its expiration time.
    async fn wait_for_line(
        &self,
        name: &str,
        cluster: &str,
        doing: &str,
        progress: &Progress,
    ) -> Result<(JoinLine, Option<Timestamp>), Error> {
        let expires = self.wait_to_join(name, cluster, progress).await?;
        let begun = Instant::now();
        let secret = loop {
            match ask(doing, self.secrets.get(&secret_name(name))).await {
                // The host's API server may not have seen the new permission to read the Secret.
                Err(Error::Refused { status, .. }) if status.code == 403 && begun.elapsed() < PERMISSION_LIMIT => {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => break answer?,
            }
        };
        let line = JoinLine::from_secret(&secret).ok_or_else(|| Error::JoinSecretInvalid(name.to_owned()))?;
        Ok((line, expires))
    }

    async fn wait_to_join(&self, name: &str, cluster: &str, progress: &Progress) -> Result<Option<Timestamp>, Error> {
        let begun = Instant::now();
        let mut changes = pin!(watcher::watch_object(self.join_tokens.clone(), name).default_backoff());
        let mut state = WaitProgress::default();
        loop {
            let change = tokio::select! {
                change = changes.try_next() => change,
                () = tokio::time::sleep_until(begun + state.ends(LIMIT)) => {
                    return Err(match state.end() {
                        Ok(last) => timed_out(name, cluster, last),
                        Err(refusal) => refused(name, cluster, refusal),
                    });
                }
            };
            // A failed watch restarts by itself, within the timeout.
            let Ok(Some(Some(Lenient(Ok(token))))) = change else {
                continue;
            };
            let message = match state.follow(judge_join_token(&token), begun.elapsed()) {
                Step::Done => {
                    let expires = token.status.and_then(|status| status.expiration_time);
                    return Ok(expires.map(|time| time.0));
                }
                Step::Pending(message) => message,
                Step::Refused(refusal) => return Err(refused(name, cluster, refusal)),
            };
            if let Some(line) = message.and_then(|message| state.line(&message, begun.elapsed())) {
                // An error means that the receiver is gone; then the caller ends this loop.
                let _ = progress.send(line + "\n").await;
            }
        }
    }
}

fn refused(name: &str, cluster: &str, refusal: Refusal) -> Error {
    Error::JoinRefused {
        name: name.to_owned(),
        cluster: cluster.to_owned(),
        refusal,
    }
}

/// Fails early if no worker could join the Cluster.
fn check(name: &str, cluster: &Cluster) -> Result<(), Error> {
    match find_obstacle(cluster) {
        None => Ok(()),
        Some(Obstacle::Asleep) => Err(Error::Asleep(name.to_owned())),
        Some(Obstacle::Refused(refusal)) => Err(Error::SpecRefused {
            name: name.to_owned(),
            refusal,
        }),
    }
}

fn timed_out(name: &str, cluster: &str, last: Option<String>) -> Error {
    Error::JoinTimeout {
        name: name.to_owned(),
        cluster: cluster.to_owned(),
        limit: LIMIT,
        last,
        is_deleted: false,
    }
}

#[cfg(test)]
mod tests;
