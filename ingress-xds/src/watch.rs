//! Watches on the host API → [`Event`]s. An adapter: it selects objects by label and makes no
//! decision.
//!
//! After a lost watch the complete list is read again, and `Listed` contains all keys, so that a
//! missed deletion is detected. While the host API is unavailable, the last known state stays
//! served.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use yoke_api::labels;
use yoke_api::names::PKI_NAMESPACE;
use yoke_pki::plan::{INGRESS_LEAF, SLEEPER_LEAF};
use yoke_runtime::Drain;

use crate::base::Input;
use crate::metrics::Metrics;
use crate::model::observation::{Event, ObjectKey, Watched};
use crate::validate::SERVICE_NAME;

/// A watch failed permanently.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The stream of events ended; it normally never does.
    #[error("the watch of {kind} ended unexpectedly")]
    Ended {
        /// The watched kind.
        kind: String,
    },
    /// The receiver of the events is gone.
    #[error("the receiver of the watch of {kind} is gone")]
    Unheard {
        /// The watched kind.
        kind: String,
    },
}

/// Watches the ingress ConfigMaps of all clusters.
pub async fn watch_configs(
    client: Client,
    events: mpsc::Sender<Event>,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError> {
    let selector = format!("{}={}", labels::COMPONENT, labels::component::INGRESS);
    let config = Config::default().labels(&selector);
    watch::<ConfigMap, _>(Api::all(client), config, events, Event::Config, metrics, drain).await
}

/// Watches the EndpointSlices of all control planes.
pub async fn watch_slices(
    client: Client,
    events: mpsc::Sender<Event>,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError> {
    let selector = format!("{}={}", labels::COMPONENT, labels::component::CONTROL_PLANE);
    let config = Config::default().labels(&selector);
    watch::<EndpointSlice, _>(Api::all(client), config, events, Event::Slice, metrics, drain).await
}

/// Watches the Secret with the ingress certificate.
pub async fn watch_certificate(
    client: Client,
    events: mpsc::Sender<Event>,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError> {
    let api = Api::<Secret>::namespaced(client, PKI_NAMESPACE);
    watch(api, named(INGRESS_LEAF), events, Event::Certificate, metrics, drain).await
}

/// Watches the activator certificates: one for all clusters, and one in each control-plane
/// namespace whose cluster has extra names.
pub async fn watch_activator_certificates(
    client: Client,
    secrets: mpsc::Sender<Watched<Secret>>,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError> {
    let api = Api::<Secret>::all(client);
    watch(api, named(SLEEPER_LEAF), secrets, |seen| seen, metrics, drain).await
}

/// Watches the ConfigMap of the base configuration, in the namespace of this process.
pub async fn watch_base(
    client: Client,
    name: String,
    inputs: mpsc::Sender<Input>,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError> {
    let api = Api::<ConfigMap>::default_namespaced(client);
    watch(api, named(&name), inputs, Input::Seen, metrics, drain).await
}

/// Selects one object by name; RBAC grants access by name as well.
fn named(name: &str) -> Config {
    Config::default().fields(&format!("metadata.name={name}"))
}

/// Watches the EndpointSlices of this process's own Service, for the addresses of its replicas.
pub async fn watch_replicas(
    client: Client,
    service: String,
    events: mpsc::Sender<Event>,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError> {
    let api = Api::<EndpointSlice>::default_namespaced(client);
    let config = Config::default().labels(&format!("{SERVICE_NAME}={service}"));
    watch(api, config, events, Event::Replicas, metrics, drain).await
}

async fn watch<K, E>(
    api: Api<K>,
    config: Config,
    events: mpsc::Sender<E>,
    to_event: impl Fn(Watched<K>) -> E,
    metrics: Metrics,
    drain: Drain,
) -> Result<(), WatchError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let kind = || K::kind(&()).into_owned();
    let mut stream = pin!(watcher(api, config).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(next) = drain.until_started(stream.next()).await {
        let seen = match next.ok_or_else(|| WatchError::Ended { kind: kind() })? {
            Err(error) => {
                metrics.count_watch_error();
                tracing::warn!(kind = kind(), error = &error as &dyn std::error::Error, "watch failed");
                continue;
            }
            Ok(event) => to_watched(event, &mut listed),
        };
        let Some(seen) = seen else { continue };
        // When the process ends the receiver is gone.
        let Some(sent) = drain.until_started(events.send(to_event(seen))).await else {
            return Ok(());
        };
        sent.map_err(|_| WatchError::Unheard { kind: kind() })?;
    }
    Ok(())
}

fn to_watched<K: Resource<DynamicType = ()>>(
    event: watcher::Event<K>,
    listed: &mut BTreeSet<ObjectKey>,
) -> Option<Watched<K>> {
    match event {
        watcher::Event::Init => {
            listed.clear();
            None
        }
        watcher::Event::InitApply(object) => {
            listed.insert(ObjectKey::of(object.meta()));
            Some(Watched::Applied(Box::new(object)))
        }
        watcher::Event::InitDone => Some(Watched::Listed(std::mem::take(listed))),
        watcher::Event::Apply(object) => Some(Watched::Applied(Box::new(object))),
        watcher::Event::Delete(object) => Some(Watched::Deleted(ObjectKey::of(object.meta()))),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn object(name: &str) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("yoke-a".into()),
                name: Some(name.into()),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    #[test]
    fn a_list_reports_all_keys() {
        let mut listed = BTreeSet::new();
        assert!(to_watched::<ConfigMap>(watcher::Event::Init, &mut listed).is_none());
        let applied = to_watched(watcher::Event::InitApply(object("a")), &mut listed);
        assert!(matches!(applied, Some(Watched::Applied(_))));
        let done = to_watched::<ConfigMap>(watcher::Event::InitDone, &mut listed);
        let key = ObjectKey::of(&object("a").metadata);
        assert!(matches!(done, Some(Watched::Listed(keys)) if keys == BTreeSet::from([key.clone()])));
        assert!(listed.is_empty());
        let applied = to_watched(watcher::Event::Apply(object("b")), &mut listed);
        assert!(matches!(applied, Some(Watched::Applied(_))));
        let deleted = to_watched(watcher::Event::Delete(object("a")), &mut listed);
        assert!(matches!(deleted, Some(Watched::Deleted(gone)) if gone == key));
    }
}
