//! Leave for workers to join, as one Tenant asks for it.

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
use yoke_api::{JoinToken, JoinTokenSpec, Lenient};
use yoke_view::verdict::{Verdict, judge_join_token};

use super::{FIELD_MANAGER, PATIENCE, Progress, TenantHost, ask};
use crate::Error;

/// Leave to join, of which somebody is told.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// Name of the JoinToken, by which it is revoked.
    pub name: String,
    /// What a worker joins by.
    pub line: JoinLine,
    /// Until when it holds.
    pub expires: Option<Timestamp>,
}

type Joined = Result<Invitation, Error>;

/// How long it may take until workers can join.
const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks whether the Tenant may read it.
const PAUSE: Duration = Duration::from_millis(250);

impl TenantHost {
    /// Makes a JoinToken, and waits until it is ready. Deletes it if it does not become so, or if nobody waits for it any more.
    pub async fn join(&self, spec: JoinTokenSpec, progress: &Progress) -> Joined {
        let cluster = spec.cluster_name.clone();
        let (tell, told) = oneshot::channel();
        let (host, progress) = (self.clone(), progress.clone());
        // Whoever waits may be gone between any two steps, and with the connection all that waits for them. So it is a task of
        // its own; it ends by itself, since each step has a limit.
        tokio::spawn(async move { host.tell_line(spec, &progress, tell).await });
        // It panicked.
        told.await.unwrap_or_else(|_| Err(Error::Left(cluster)))
    }

    async fn tell_line(&self, spec: JoinTokenSpec, progress: &Progress, tell: oneshot::Sender<Joined>) {
        let doing = format!("making a JoinToken for Cluster {}", spec.cluster_name);
        let cluster = spec.cluster_name.clone();
        let name = match self.make_token(spec, &doing).await {
            Ok(name) => name,
            Err(error) => {
                // Whoever has gone need not know.
                let _ = tell.send(Err(error));
                return;
            }
        };
        let joined = tokio::select! {
            biased;
            () = progress.closed() => Err(Error::Left(cluster)),
            joined = self.find_line(&name, &doing, progress) => joined,
        };
        match joined {
            Ok((line, expires)) => {
                let invitation = Invitation {
                    name: name.clone(),
                    line,
                    expires,
                };
                if tell.send(Ok(invitation)).is_err() {
                    self.delete_token(&name).await;
                }
            }
            Err(error) => {
                self.delete_token(&name).await;
                let _ = tell.send(Err(error));
            }
        }
    }

    /// Deletes a JoinToken: no further worker joins by it.
    pub async fn revoke(&self, name: &str) -> Result<(), Error> {
        let (doing, parameters) = (format!("revoking JoinToken {name}"), DeleteParams::default());
        ask(&doing, self.join_tokens.delete(name, &parameters))
            .await
            .map(|_| ())
    }

    async fn make_token(&self, spec: JoinTokenSpec, doing: &str) -> Result<String, Error> {
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

    /// Deletes one of which nobody was told.
    async fn delete_token(&self, name: &str) {
        if let Err(error) = self.revoke(name).await {
            tracing::warn!(name, error = %error, "a JoinToken that nobody was told of stays until it ends");
        }
    }

    /// What a worker joins by, as soon as there is something, and until when.
    async fn find_line(
        &self,
        name: &str,
        doing: &str,
        progress: &Progress,
    ) -> Result<(JoinLine, Option<Timestamp>), Error> {
        let expires = self.wait_to_join(name, progress).await?;
        let begun = Instant::now();
        let secret = loop {
            match ask(doing, self.secrets.get(&secret_name(name))).await {
                // The host's API server may not have heard of the right to read it.
                Err(Error::Refused { status, .. }) if status.code == 403 && begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(PAUSE).await;
                }
                answer => break answer?,
            }
        };
        let line = JoinLine::from_secret(&secret).ok_or_else(|| Error::JoinWrong(name.to_owned()))?;
        Ok((line, expires))
    }

    async fn wait_to_join(&self, name: &str, progress: &Progress) -> Result<Option<Timestamp>, Error> {
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
            };
            // A watch that fails begins anew by itself, within the limit.
            let Ok(Some(Some(Lenient(Ok(token))))) = change else {
                continue;
            };
            match judge_join_token(&token) {
                Verdict::Done => {
                    let expires = token.status.and_then(|status| status.expiration_time);
                    return Ok(expires.map(|time| time.0));
                }
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::{Method, Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tower::service_fn;

    use super::*;

    /// How often it refuses the Secret yet, and the methods by which JoinTokens were asked for.
    type Seen = Arc<Mutex<(usize, Vec<Method>)>>;

    /// A host whose JoinToken is ready at once, and which refuses its Secret for a number of times.
    fn start(refusals: usize) -> (TenantHost, Seen) {
        let asked = Arc::new(Mutex::new((refusals, Vec::new())));
        let seen = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let query = request.uri().query().unwrap_or_default();
                if query.contains("watch=") {
                    std::future::pending::<()>().await;
                }
                let (status, answer) = answer(&mut seen.lock().unwrap(), &request);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, kube::Error>(Response::builder().status(status).body(body).unwrap())
            }
        });
        (TenantHost::of(&Client::new(service, "t"), "t").unwrap(), asked)
    }

    async fn join(refusals: usize) -> (Joined, Vec<Method>) {
        let (host, seen) = start(refusals);
        let (progress, _lines) = mpsc::channel(16);
        let joined = host.join(JoinTokenSpec::default(), &progress).await;
        let methods = std::mem::take(&mut seen.lock().unwrap().1);
        (joined, methods)
    }

    fn answer(seen: &mut (usize, Vec<Method>), request: &Request<Body>) -> (u16, Value) {
        let token = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinToken",
            "metadata": {"name": "a-1", "namespace": "t"}, "spec": {"clusterName": "a"},
            "status": {"expirationTime": "2026-01-01T00:15:00Z",
                "conditions": [{"type": "Ready", "status": "True", "reason": "AsExpected", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        if !request.uri().path().contains("/secrets/") {
            seen.1.push(request.method().clone());
            let list = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "JoinTokenList",
                "metadata": {"resourceVersion": "1"}, "items": [token]});
            return (200, if request.method() == Method::GET { list } else { token });
        }
        if seen.0 > 0 {
            seen.0 -= 1;
            return (
                403,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "no", "reason": "Forbidden", "code": 403}),
            );
        }
        let data: serde_json::Map<_, _> = ["server", "ca.crt", "client-ca.crt", "token", "version"]
            .into_iter()
            .map(|key| (key.to_owned(), "eA==".into()))
            .collect();
        (
            200,
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a-1-join"}, "data": data}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_that_is_given_just_now_is_waited_for() {
        let (joined, methods) = join(5).await;
        let invitation = joined.unwrap();
        assert_eq!(invitation.name, "a-1");
        assert_eq!(invitation.expires, "2026-01-01T00:15:00Z".parse().ok());
        assert_eq!(methods, [Method::POST, Method::GET], "it stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_nobody_is_told_of_is_deleted() {
        let (joined, methods) = join(usize::MAX).await;
        assert!(matches!(joined, Err(Error::Refused { status, .. }) if status.code == 403));
        assert_eq!(methods.last(), Some(&Method::DELETE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_goes_with_whoever_waited_for_it() {
        for (rule, refusals, hears) in [
            ("the channel is closed", usize::MAX, false),
            ("the line has come, and the connection is gone", 8, true),
        ] {
            let (host, seen) = start(refusals);
            let (progress, lines) = mpsc::channel(16);
            let joining = host.join(JoinTokenSpec::default(), &progress);
            let ended = tokio::time::timeout(Duration::from_secs(1), joining).await;
            assert!(ended.is_err(), "{rule}");
            let _lines = hears.then_some(lines);
            let deleted = async {
                while seen.lock().unwrap().1.last() != Some(&Method::DELETE) {
                    tokio::time::sleep(PAUSE).await;
                }
            };
            let deleted = tokio::time::timeout(PATIENCE / 2, deleted).await;
            assert!(deleted.is_ok(), "{rule}");
        }
    }
}
