//! Leave for workers to join, as one Tenant asks for it.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::Instant;
use yoke_api::join_token::{JoinLine, secret_name};
use yoke_api::{JoinToken, JoinTokenSpec, Lenient};
use yoke_view::verdict::{Verdict, judge_join_token};

use super::{FIELD_MANAGER, Progress, TenantHost, ask};
use crate::Error;

/// How long it may take until workers can join.
const LIMIT: Duration = Duration::from_secs(60);

impl TenantHost {
    /// Makes a JoinToken, and waits until it is ready: its name, and what a worker joins by.
    pub async fn join(&self, spec: JoinTokenSpec, progress: &Progress) -> Result<(String, JoinLine), Error> {
        let cluster = spec.cluster_name.clone();
        let mut token = JoinToken::new("", spec);
        token.metadata = ObjectMeta {
            generate_name: Some(format!("{cluster}-")),
            ..ObjectMeta::default()
        };
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let token = Lenient(Ok(token));
        let doing = format!("making a JoinToken for Cluster {cluster}");
        let name = ask(&doing, self.join_tokens.create(&parameters, &token))
            .await?
            .name_any();
        self.wait_to_join(&name, progress).await?;
        let secret = ask(&doing, self.secrets.get(&secret_name(&name))).await?;
        let line = JoinLine::from_secret(&secret).ok_or_else(|| Error::JoinWrong(name.clone()))?;
        Ok((name, line))
    }

    async fn wait_to_join(&self, name: &str, progress: &Progress) -> Result<(), Error> {
        let begun = Instant::now();
        let mut changes = pin!(watcher::watch_object(self.join_tokens.clone(), name).default_backoff());
        let mut last = None;
        loop {
            let change = tokio::select! {
                change = changes.try_next() => change,
                () = tokio::time::sleep_until(begun + LIMIT) => {
                    return Err(Error::WaitTimeout {
                        what: format!("JoinToken {name} did not become ready"),
                        limit: LIMIT,
                        last,
                    });
                }
                () = progress.closed() => return Err(Error::Left(name.to_owned())),
            };
            // A watch that fails begins anew by itself, within the limit.
            let Ok(Some(Some(Lenient(Ok(token))))) = change else {
                continue;
            };
            match judge_join_token(&token) {
                Verdict::Done => return Ok(()),
                Verdict::Refused { reason, message } => {
                    return Err(Error::SpecRefused {
                        name: name.to_owned(),
                        reason,
                        message,
                    });
                }
                Verdict::Waiting(Some(message)) if last.as_ref() != Some(&message) => {
                    let seconds = begun.elapsed().as_secs();
                    // An error means that nobody listens, which ends the loop.
                    let _ = progress.send(format!("{seconds:>4}s  {message}\n")).await;
                    last = Some(message);
                }
                Verdict::Waiting(_) => {}
            }
        }
    }
}
