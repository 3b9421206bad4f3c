//! The host API with the permissions of one Tenant. An adapter: only this module sends requests for
//! a Tenant.
//!
//! Guarantees: every request impersonates the Tenant and uses the Tenant's namespace. The host's
//! API server checks the Tenant's own permissions, so it refuses a request for another Tenant's
//! objects (`docs/adr/0005-ssh-acts-as-the-tenant.md`).

mod join;
mod nodes;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use http::HeaderValue;
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::service_fn;
use yoke_api::cluster::DesiredState;
use yoke_api::names::{KUBECONFIG_KEY, SSH_SERVICE_ACCOUNT};
use yoke_api::{Cluster, JoinToken, Lenient, labels};
use yoke_view::verdict::{Verdict, judge, may_pass};

pub use self::join::Invitation;
pub use self::nodes::{AskError, Node, Nodes};

use crate::Error;
use crate::feed::Feed;

const FIELD_MANAGER: &str = "yoke-ssh-ui";
const IMPERSONATE: &str = "impersonate-user";
/// Timeout of one request.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(15);
/// How long a refusal is tolerated that may disappear by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval at which a progress message is repeated, so that a connection with a waiting command
/// never looks idle.
const REPEAT: Duration = Duration::from_secs(60);

/// Progress lines of a command for the user; the sender waits while the queue is full.
pub type Progress = mpsc::Sender<String>;

/// A client of the host API that impersonates one Tenant.
#[derive(Clone)]
pub struct TenantHost {
    tenant: String,
    clusters: Api<Lenient<Cluster>>,
    join_tokens: Api<Lenient<JoinToken>>,
    secrets: Api<Secret>,
    events: Api<Lenient<Event>>,
}

/// The state to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The desired state of the spec: running or asleep.
    AsAsked,
    /// The object is deleted.
    Gone,
}

impl TenantHost {
    /// Creates the client for a Tenant; it uses the connections of `host`.
    pub fn of(host: &Client, tenant: &str) -> Result<Self, Error> {
        let user = format!("system:serviceaccount:{tenant}:{SSH_SERVICE_ACCOUNT}");
        let user = HeaderValue::try_from(user).map_err(|_| Error::TenantName(tenant.to_owned()))?;
        let host = host.clone();
        let service = service_fn(move |mut request: http::Request<Body>| {
            // Replaces a header that another layer may have set.
            request.headers_mut().insert(IMPERSONATE, user.clone());
            let host = host.clone();
            async move { host.send(request).await }
        });
        let client = Client::new(service, tenant);
        Ok(Self {
            tenant: tenant.to_owned(),
            clusters: Api::default_namespaced(client.clone()),
            join_tokens: Api::default_namespaced(client.clone()),
            secrets: Api::default_namespaced(client.clone()),
            events: Api::default_namespaced(client),
        })
    }

    /// Lists all Clusters.
    pub async fn list(&self) -> Result<Vec<Cluster>, Error> {
        let list = ask("listing your Clusters", self.clusters.list(&ListParams::default())).await?;
        // A Cluster that cannot be parsed is skipped.
        Ok(list.items.into_iter().filter_map(|item| item.0.ok()).collect())
    }

    /// Lists all Clusters and watches their changes.
    pub fn follow_clusters(&self) -> Feed<Cluster> {
        Feed::new(self.clusters.clone(), "watching your Clusters")
    }

    /// Lists all events and watches their changes.
    pub fn follow_events(&self) -> Feed<Event> {
        Feed::new(self.events.clone(), "watching events")
    }

    /// Returns the Cluster of this name.
    pub async fn get(&self, name: &str) -> Result<Cluster, Error> {
        let cluster = async { self.clusters.get(name).await?.into_object() };
        ask(&format!("getting Cluster {name}"), cluster).await
    }

    /// Creates a Cluster.
    pub async fn create(&self, cluster: &Cluster) -> Result<Cluster, Error> {
        let name = cluster.metadata.name.as_deref().unwrap_or_default();
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let cluster = Lenient(Ok(cluster.clone()));
        let created = async { self.clusters.create(&parameters, &cluster).await?.into_object() };
        ask(&format!("creating Cluster {name}"), created).await
    }

    /// Sets the desired state of a Cluster: running or asleep.
    pub async fn set_state(&self, name: &str, state: DesiredState) -> Result<Cluster, Error> {
        // Waking also ends a sleep that the annotation, inactivity or a schedule has started.
        let word = match state {
            DesiredState::Running => Some(labels::SLEEP_END),
            DesiredState::Asleep => None,
        };
        let patch = json!({"metadata": {"annotations": {(labels::SLEEP): word}}, "spec": {"state": state}});
        let patch = Patch::Merge(patch);
        let parameters = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let doing = format!("changing Cluster {name}");
        let patched = async { self.clusters.patch(name, &parameters, &patch).await?.into_object() };
        ask(&doing, patched).await
    }

    /// Deletes a Cluster.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let (doing, parameters) = (format!("deleting Cluster {name}"), DeleteParams::default());
        ask(&doing, self.clusters.delete(name, &parameters)).await.map(|_| ())
    }

    /// Returns the kubeconfig of a Cluster.
    pub async fn kubeconfig(&self, name: &str) -> Result<String, Error> {
        self.kubeconfig_of(name, &self.get(name).await?).await
    }

    async fn kubeconfig_of(&self, name: &str, cluster: &Cluster) -> Result<String, Error> {
        let status = cluster.status.as_ref();
        let secret = status
            .and_then(|status| status.kubeconfig_ref.as_ref())
            .map(|secret| secret.name.as_str());
        let secret = secret.ok_or_else(|| Error::NoKubeconfig(name.to_owned()))?;
        let doing = format!("getting the kubeconfig of Cluster {name}");
        let data = ask(&doing, self.secrets.get(secret)).await?.data;
        data.and_then(|mut data| data.remove(KUBECONFIG_KEY))
            .and_then(|value| String::from_utf8(value.0).ok())
            .ok_or_else(|| Error::SecretWrong(name.to_owned()))
    }

    /// Waits until a Cluster reaches the wanted state, at most for `limit` and while `progress` has
    /// a receiver. Sends each new message to `progress`, and repeats the last one every minute.
    /// Returns the Cluster as last seen, if it exists.
    pub async fn wait(
        &self,
        name: &str,
        wanted: Wanted,
        limit: Duration,
        progress: &Progress,
    ) -> Result<Option<Cluster>, Error> {
        let begun = Instant::now();
        let end = begun + limit;
        let mut changes = pin!(watcher::watch_object(self.clusters.clone(), name).default_backoff());
        let mut repeats = tokio::time::interval_at(begun + REPEAT, REPEAT);
        let mut last: Option<String> = None;
        let mut refused: Option<(Error, Instant)> = None;
        let tell = async |message: &str| {
            let seconds = begun.elapsed().as_secs();
            // An error means that the receiver is gone, which ends the loop.
            let _ = progress.send(format!("{seconds:>4}s  {message}\n")).await;
        };
        loop {
            let give_up = refused.as_ref().map_or(end, |(_, until)| end.min(*until));
            let change = tokio::select! {
                change = changes.try_next() => change,
                () = tokio::time::sleep_until(give_up) => {
                    return Err(refused.map_or_else(|| ran_out(name, wanted, limit, last), |(error, _)| error));
                }
                () = progress.closed() => return Err(Error::Unawaited(name.to_owned())),
                _ = repeats.tick() => {
                    tell(last.as_deref().unwrap_or("Nothing is known of it yet.")).await;
                    continue;
                }
            };
            let (verdict, seen) = match change {
                Ok(Some(Some(Lenient(Ok(cluster))))) if wanted == Wanted::AsAsked => (judge(&cluster), Some(cluster)),
                Ok(Some(Some(_))) => (Verdict::Waiting(None), None),
                Ok(Some(None) | None) if wanted == Wanted::Gone => return Ok(None),
                Ok(Some(None) | None) => return Err(Error::Deleted(name.to_owned())),
                Err(error) => (Verdict::Waiting(may_come_back(name, error)?), None),
            };
            let message = match verdict {
                Verdict::Done => return Ok(seen),
                Verdict::Waiting(message) => {
                    refused = None;
                    message
                }
                Verdict::Refused { reason, message } => {
                    let passes = may_pass(&reason);
                    let error = Error::SpecRefused {
                        name: name.to_owned(),
                        reason,
                        message: message.clone(),
                    };
                    if !passes {
                        return Err(error);
                    }
                    let until = refused.map_or_else(|| Instant::now() + PATIENCE, |(_, until)| until);
                    refused = Some((error, until));
                    Some(message)
                }
            };
            if let Some(message) = message
                && last.as_deref() != Some(&message)
            {
                tell(&message).await;
                last = Some(message);
            }
        }
    }
}

fn ran_out(name: &str, wanted: Wanted, limit: Duration, last: Option<String>) -> Error {
    let unmet = match wanted {
        Wanted::AsAsked => "did not become as asked for",
        Wanted::Gone => "did not go",
    };
    Error::WaitTimeout {
        what: format!("Cluster {name} {unmet}"),
        limit,
        last,
    }
}

/// Returns the message for a failed watch that may recover. `None` if a running watch ended, which
/// is normal.
fn may_come_back(name: &str, error: watcher::Error) -> Result<Option<String>, Error> {
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

async fn ask<T>(doing: &str, answer: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_LIMIT, answer).await {
        Ok(answer) => answer.map_err(|error| explain(doing, error)),
        Err(_) => Err(Error::Timeout {
            doing: doing.to_owned(),
            limit: REQUEST_LIMIT,
        }),
    }
}

pub(crate) fn explain(doing: &str, error: kube::Error) -> Error {
    let doing = doing.to_owned();
    match error {
        kube::Error::Api(status) => Error::Refused { doing, status },
        source => Error::Unreachable {
            doing,
            source: Box::new(source),
        },
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};

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
    async fn a_long_wait_is_never_silent() {
        let host = TenantHost::of(&Client::new(service_fn(answer), "t"), "t").unwrap();
        let (progress, mut lines) = mpsc::channel(16);
        let wait = host.wait("c", Wanted::AsAsked, Duration::from_secs(150), &progress);
        let error = wait.await.unwrap_err();
        assert!(matches!(error, Error::WaitTimeout { .. }), "{error:?}");
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
    async fn nobody_is_waited_for_who_has_gone() {
        let host = TenantHost::of(&Client::new(service_fn(answer), "t"), "t").unwrap();
        let (progress, mut lines) = mpsc::channel(16);
        let begun = Instant::now();
        let leaving = async {
            lines.recv().await;
            drop(lines);
        };
        let wait = host.wait("c", Wanted::AsAsked, Duration::from_secs(3600), &progress);
        let (ended, ()) = tokio::join!(wait, leaving);
        assert!(matches!(ended, Err(Error::Unawaited(name)) if name == "c"));
        assert!(begun.elapsed() < REPEAT);
    }
}
