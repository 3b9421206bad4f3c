//! Waits until a Cluster reaches a state, and reports the progress.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::time::Instant;
use yoke_api::{Cluster, Lenient};
use yoke_view::progress::{Step, WaitProgress, WaitTimeout, format_line};
use yoke_view::verdict::{Refusal, Verdict, judge};

use super::host::TenantHost;
use super::progress::Progress;
use super::request::explain;
use crate::Error;

/// Interval at which a progress message is repeated, so that a connection with a waiting command
/// never looks idle.
const REPEAT: Duration = Duration::from_secs(60);

/// The state to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitTarget {
    /// The desired state of the spec: running or asleep.
    SpecState,
    /// The object is deleted.
    Deleted,
}

impl TenantHost {
    /// Waits until a Cluster reaches the target state, at most for `limit` and while `progress` has
    /// a receiver. Sends each new message to `progress`, and repeats the last one every minute.
    /// Returns the Cluster as last seen, if it exists.
    pub async fn wait(
        &self,
        name: &str,
        target: WaitTarget,
        limit: Duration,
        progress: &Progress,
    ) -> Result<Option<Cluster>, Error> {
        let begun = Instant::now();
        let mut changes = pin!(watcher::watch_object(self.clusters.clone(), name).default_backoff());
        let mut repeats = tokio::time::interval_at(begun + REPEAT, REPEAT);
        let mut state = WaitProgress::default();
        let report = async |line: String| {
            // An error means that the receiver is gone, which ends the loop.
            let _ = progress.send(line + "\n").await;
        };
        loop {
            let change = tokio::select! {
                change = changes.try_next() => change,
                () = tokio::time::sleep_until(begun + state.ends(limit)) => {
                    return Err(match state.end() {
                        Ok(last) => timed_out(name, target, limit, last),
                        Err(refusal) => refused(name, refusal),
                    });
                }
                () = progress.closed() => return Err(Error::WaitAbandoned(name.to_owned())),
                _ = repeats.tick() => {
                    let message = state.last().unwrap_or("There is no status yet.");
                    report(format_line(message, begun.elapsed())).await;
                    continue;
                }
            };
            let (verdict, seen) = match change {
                Ok(Some(Some(Lenient(Ok(cluster))))) if target == WaitTarget::SpecState => {
                    (judge(&cluster), Some(cluster))
                }
                Ok(Some(Some(_))) => (Verdict::Waiting(None), None),
                Ok(Some(None) | None) if target == WaitTarget::Deleted => return Ok(None),
                Ok(Some(None) | None) => return Err(Error::Deleted(name.to_owned())),
                Err(error) => (Verdict::Waiting(to_watch_problem(name, error)?), None),
            };
            let message = match state.follow(verdict, begun.elapsed()) {
                Step::Done => return Ok(seen),
                Step::Pending(message) => message,
                Step::Refused(refusal) => return Err(refused(name, refusal)),
            };
            if let Some(line) = message.and_then(|message| state.line(&message, begun.elapsed())) {
                report(line).await;
            }
        }
    }
}

fn refused(name: &str, refusal: Refusal) -> Error {
    Error::SpecRefused {
        name: name.to_owned(),
        refusal,
    }
}

fn timed_out(name: &str, target: WaitTarget, limit: Duration, last: Option<String>) -> Error {
    let unmet = match target {
        WaitTarget::SpecState => "did not reach the requested state",
        WaitTarget::Deleted => "was not deleted",
    };
    Error::WaitTimeout(WaitTimeout {
        what: format!("Cluster {name} {unmet}"),
        limit,
        last,
    })
}

/// Returns the message for a failed watch that may recover. `None` if a running watch ended, which
/// is normal.
fn to_watch_problem(name: &str, error: watcher::Error) -> Result<Option<String>, Error> {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) = error else {
        return Ok(None);
    };
    match explain(&format!("waiting for Cluster {name}"), error) {
        Error::Refused { doing, status } if [401, 403, 404].contains(&status.code) => {
            Err(Error::Refused { doing, status })
        }
        error => Ok(Some(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::mpsc;
    use tower::service_fn;

    use super::*;

    /// A host on which the one Cluster stays as it is.
    async fn answer(request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
            std::future::pending::<()>().await;
        }
        let list = json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "ClusterList", "metadata": {"resourceVersion": "1"},
            "items": [{"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "c", "namespace": "t"},
                "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "PodPending",
                    "message": "The pod starts.", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}]});
        Ok(Response::new(Body::from(list.to_string().into_bytes())))
    }

    #[tokio::test(start_paused = true)]
    async fn long_wait_repeats_its_message() {
        let host = TenantHost::of(&Client::new(service_fn(answer), "t"), "t").unwrap();
        let (progress, mut lines) = mpsc::channel(16);
        let wait = host.wait("c", WaitTarget::SpecState, Duration::from_secs(150), &progress);
        let error = wait.await.unwrap_err();
        assert!(matches!(error, Error::WaitTimeout(_)), "{error:?}");
        let told: Vec<_> = std::iter::from_fn(|| lines.try_recv().ok()).collect();
        assert_eq!(
            told,
            [
                "   0s  The pod starts.\n",
                "  60s  The pod starts.\n",
                " 120s  The pod starts.\n"
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn wait_ends_when_the_client_disconnects() {
        let host = TenantHost::of(&Client::new(service_fn(answer), "t"), "t").unwrap();
        let (progress, mut lines) = mpsc::channel(16);
        let begun = Instant::now();
        let leaving = async {
            lines.recv().await;
            drop(lines);
        };
        let wait = host.wait("c", WaitTarget::SpecState, Duration::from_secs(3600), &progress);
        let (ended, ()) = tokio::join!(wait, leaving);
        assert!(matches!(ended, Err(Error::WaitAbandoned(name)) if name == "c"));
        assert!(begun.elapsed() < REPEAT);
    }
}
