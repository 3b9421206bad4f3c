//! The incarnation of a control plane: the number of its start. It is raised before a StatefulSet
//! is created, and before its template changes. A store with a lower incarnation, on a node that
//! recovers, then exits for good.
//!
//! The incarnation is persisted beside the store's user, with a digest of the template that it was
//! raised for. So it is raised once for each change, and never falls when the control-plane
//! namespace is lost. The first incarnation is the time in seconds. The incarnations that the
//! streams of a restored Cluster have seen are unknown, and no count comes near that number.
//!
//! An incarnation exists before anything can be written to a store, so it also shows which stores
//! may have data.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::names::PKI_NAMESPACE;

use crate::cluster::context::Context;
use crate::cluster::failover::pods::{self, Incarnation, LastStart};
use crate::cluster::observed::Observed;
use crate::error::ReconcileError;
use crate::host_api::secrets::data_of;
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;

const NUMBER: &str = "incarnation";
const TEMPLATE: &str = "template";

/// The incarnation that a control plane of this template must run with, as far as the watches know.
pub(crate) fn plan_incarnation_by_cache(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    template: &str,
) -> Incarnation {
    let last_start = find_last_start(context, identity);
    let running = control_plane::running_incarnation(observed.stateful_set.as_deref());
    pods::plan_incarnation(running, last_start.as_ref(), template, first_incarnation())
}

/// Persists a planned incarnation before it is used, and returns it.
pub(crate) async fn ensure_incarnation(
    context: &Context,
    identity: &Identity,
    planned: Incarnation,
    template: &str,
) -> Result<u64, ReconcileError> {
    if let Incarnation::Same(number) = planned {
        return Ok(number);
    }
    let name = identity.store_secret();
    // The watches may lag behind, and an incarnation that is raised twice starts the control plane
    // twice.
    let secrets = Api::<Secret>::namespaced(context.host.client.clone(), PKI_NAMESPACE);
    let sets = Api::<StatefulSet>::namespaced(context.host.client.clone(), identity.hosted().as_str());
    let (secret, set) = tokio::try_join!(secrets.get(&name), sets.get_opt(NAME))
        .map_err(ReconcileError::host("the last incarnation"))?;
    let running = control_plane::running_incarnation(set.as_ref());
    match pods::plan_incarnation(
        running,
        read_last_start(&secret).as_ref(),
        template,
        first_incarnation(),
    ) {
        Incarnation::Same(number) => Ok(number),
        Incarnation::New(number) => {
            let patch = IncarnationPatch {
                metadata: IncarnationMetadata {
                    resource_version: secret.resource_version().unwrap_or_default(),
                },
                string_data: [(NUMBER, number.to_string()), (TEMPLATE, template.to_owned())].into(),
            };
            secrets
                .patch(&name, &context.applier.merge_params(), &Patch::Merge(&patch))
                .await
                .map_err(ReconcileError::host("the next incarnation"))?;
            tracing::info!(cluster = %identity.id, incarnation = number, "control plane gets a new incarnation");
            Ok(number)
        }
    }
}

/// Whether a control plane was started, or was about to be, on the store of this Secret.
pub(crate) fn has_start(store: &Secret) -> bool {
    store.data.as_ref().is_some_and(|data| data.contains_key(NUMBER))
}

/// Marks a new Secret that replaces the lost one of a store: a control plane may have been started.
/// Without a template the record matches no known start.
pub(crate) fn record_unknown_start(texts: &mut BTreeMap<String, String>) {
    texts.insert(NUMBER.to_owned(), first_incarnation().to_string());
}

fn find_last_start(context: &Context, identity: &Identity) -> Option<LastStart> {
    let key = ObjectRef::<Secret>::new(&identity.store_secret()).within(PKI_NAMESPACE);
    context
        .host
        .caches
        .secrets
        .get(&key)
        .as_deref()
        .and_then(read_last_start)
}

fn first_incarnation() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(1)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct IncarnationPatch<'a> {
    metadata: IncarnationMetadata,
    string_data: BTreeMap<&'a str, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct IncarnationMetadata {
    /// Makes the patch fail if another writer raised the incarnation in between.
    resource_version: String,
}

fn read_last_start(secret: &Secret) -> Option<LastStart> {
    let mut data = data_of(secret);
    let mut text = |key: &str| String::from_utf8(data.remove(key)?).ok();
    Some(LastStart {
        number: text(NUMBER)?.parse().ok()?,
        template: text(TEMPLATE)?,
    })
}
