//! The number of a control plane's start, which is raised before a StatefulSet is made and before its template changes: a
//! store of a lower number, on a machine that comes back, ends for good.
//!
//! It is kept beside the store's user, with a digest of the template that it was raised for, so that it is raised once for
//! each change, and never falls when the hosted namespace is lost. The first is the time in seconds: what the streams of a
//! Cluster that is restored have seen is not known, and no count comes near it.
//!
//! As it is there before anything can be written to a store, it also says of which stores that may have happened.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Patch;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::names::PKI_NAMESPACE;

use super::build::stateful_set;
use super::gate::{self, Incarnation, LastStart};
use super::identity::Identity;
use super::kept::{Texts, data_of};
use super::observe::Observed;
use crate::context::Context;
use crate::error::ReconcileError;

const NUMBER: &str = "incarnation";
const TEMPLATE: &str = "template";

/// The number that a control plane of this template is to run with, as far as the watches know.
pub(super) fn plan(context: &Context, identity: &Identity, observed: &Observed, template: &str) -> Incarnation {
    let kept = find_kept(context, identity);
    let running = gate::running_incarnation(observed.stateful_set.as_deref());
    gate::plan_incarnation(running, kept.as_ref(), template, first())
}

/// The same, kept before it is used.
pub(super) async fn ensure(
    context: &Context,
    identity: &Identity,
    planned: Incarnation,
    template: &str,
) -> Result<u64, ReconcileError> {
    if let Incarnation::Same(number) = planned {
        return Ok(number);
    }
    let name = identity.store_secret();
    // The watches may lag behind, and a number that is raised twice starts the control plane twice.
    let secrets = Api::<Secret>::namespaced(context.client.clone(), PKI_NAMESPACE);
    let sets = Api::<StatefulSet>::namespaced(context.client.clone(), identity.hosted().as_str());
    let (secret, set) = tokio::try_join!(secrets.get(&name), sets.get_opt(stateful_set::NAME))
        .map_err(ReconcileError::host("the number of the last start"))?;
    let running = gate::running_incarnation(set.as_ref());
    match gate::plan_incarnation(running, read(&secret).as_ref(), template, first()) {
        Incarnation::Same(number) => Ok(number),
        Incarnation::New(number) => {
            let patch = KeptPatch {
                metadata: KeptMetadata {
                    resource_version: secret.resource_version().unwrap_or_default(),
                },
                string_data: [(NUMBER, number.to_string()), (TEMPLATE, template.to_owned())].into(),
            };
            secrets
                .patch(&name, &context.clusters.merge_params(), &Patch::Merge(&patch))
                .await
                .map_err(ReconcileError::host("the number of the next start"))?;
            tracing::info!(cluster = %identity.id, incarnation = number, "control plane gets a new number");
            Ok(number)
        }
    }
}

/// Whether a control plane was, or was about to be, started on the store that this Secret is of.
pub(super) fn is_noted(store: &Secret) -> bool {
    store.data.as_ref().is_some_and(|data| data.contains_key(NUMBER))
}

/// What the Secret of a store says that is made in place of a lost one: a control plane may have been started. Without a
/// template it counts for no start that is known.
pub(super) fn note_unknown(texts: &mut Texts) {
    texts.insert(NUMBER.to_owned(), first().to_string());
}

fn find_kept(context: &Context, identity: &Identity) -> Option<LastStart> {
    let key = ObjectRef::<Secret>::new(&identity.store_secret()).within(PKI_NAMESPACE);
    context.caches.secrets.get(&key).as_deref().and_then(read)
}

fn first() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or(1)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptPatch<'a> {
    metadata: KeptMetadata,
    string_data: BTreeMap<&'a str, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct KeptMetadata {
    /// Makes the patch fail if somebody else raised the number in between.
    resource_version: String,
}

fn read(secret: &Secret) -> Option<LastStart> {
    let mut data = data_of(secret);
    let mut text = |key: &str| String::from_utf8(data.remove(key)?).ok();
    Some(LastStart {
        number: text(NUMBER)?.parse().ok()?,
        template: text(TEMPLATE)?,
    })
}
