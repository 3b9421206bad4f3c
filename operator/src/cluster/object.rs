//! Writes to the Cluster object itself: identity, finalizer, annotation, status.
//!
//! Requests to sleep and schedules have field managers of their own. So a status from a stale cache
//! cannot overwrite them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::cluster::ClusterStatus;
use yoke_api::sleep::{ActivityStatus, SleepReason};
use yoke_api::{Cluster, ClusterId, GROUP, Lenient, VERSION, labels};

use crate::cluster::context::Context;
use crate::cluster::sleep::state::{self, SleepCommand, SleepState};
use crate::cluster::status;
use crate::error::ReconcileError;
use crate::host_api::apply::is_held;
use crate::model::CLUSTER_CONTROLLER;

/// Owner of `status.activity.sleepRequestedTime` and `sleepReason`.
const SLEEP_MANAGER: &str = "yoke-operator-sleep";
/// Owner of `status.activity.scheduledTime`.
const SCHEDULE_MANAGER: &str = "yoke-operator-schedule";

/// The fields outside the status that the operator owns. A server-side apply sets these only: a
/// typed Cluster would own every default of the spec.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct IdentityPatch<'a> {
    api_version: String,
    kind: &'static str,
    metadata: MetadataPatch<'a>,
    spec: SpecPatch<'a>,
}

#[derive(Debug, Serialize)]
struct MetadataPatch<'a> {
    name: String,
    /// Makes the patch fail if the object was replaced or deleted; an apply would create it again.
    uid: String,
    finalizers: [&'a str; 1],
    labels: std::collections::BTreeMap<&'a str, &'a str>,
}

#[derive(Debug, Serialize)]
struct SpecPatch<'a> {
    id: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusPatch<'a> {
    api_version: String,
    kind: &'static str,
    metadata: StatusMetadata,
    status: &'a ClusterStatus,
}

/// Removes the annotation, if the object is unchanged since it was read.
#[derive(Debug, Serialize)]
struct AnnotationPatch {
    metadata: AnnotationMetadata,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AnnotationMetadata {
    resource_version: String,
    annotations: std::collections::BTreeMap<&'static str, Option<String>>,
}

#[derive(Debug, Serialize)]
struct StatusMetadata {
    name: String,
    uid: String,
}

/// API of the Clusters in the same namespace.
pub(super) fn api(context: &Context, cluster: &Cluster) -> Api<Lenient<Cluster>> {
    Api::namespaced(context.host.client.clone(), &cluster.namespace().unwrap_or_default())
}

/// Sets identity, label and finalizer if they are missing. `None`: the object is gone.
pub(super) async fn ensure_identity(context: &Context, cluster: &Cluster) -> Result<Option<Cluster>, ReconcileError> {
    if has_identity(cluster) {
        return Ok(Some(cluster.clone()));
    }
    // The watch may lag behind an identity that was just set.
    let Some(found) = read_current(context, cluster).await? else {
        return Ok(None);
    };
    if found.metadata.deletion_timestamp.is_some() || has_identity(&found) {
        return Ok(Some(found).filter(|found| found.metadata.deletion_timestamp.is_none()));
    }
    let id = found.id().unwrap_or_else(|| generate_id(context));
    write_identity(context, &found, &id).await
}

/// Returns the Cluster with the last recorded sleep request. While the watch lags behind it, the
/// control plane would start again. `None`: the object is gone.
pub(super) async fn overlay_pending_sleep(
    context: &Context,
    cluster: Cluster,
) -> Result<Option<Cluster>, ReconcileError> {
    let Some(id) = cluster.id() else {
        return Ok(Some(cluster));
    };
    let Some(requested) = context.memory.seen(&id).sleep_requested else {
        return Ok(Some(cluster));
    };
    let has_request = |cluster: &Cluster| state::sleep_requested(cluster).is_some_and(|known| known.0 >= requested.0);
    if has_request(&cluster) {
        context.memory.update(&id, |memory| memory.sleep_requested = None);
        return Ok(Some(cluster));
    }
    let found = read_current(context, &cluster).await?;
    if !found.as_ref().is_some_and(has_request) {
        // The request was withdrawn, or never written.
        context.memory.update(&id, |memory| memory.sleep_requested = None);
    }
    Ok(found)
}

/// Records the command of the annotation in the status, then removes the annotation. `None`: the object is gone, or was changed concurrently.
///
/// An operator that stops in between repeats the command after its restart. A Cluster that was
/// woken in the meantime then sleeps again, and wakes for the next request.
pub(super) async fn consume_sleep_annotation(
    context: &Context,
    cluster: &Cluster,
) -> Result<Option<Cluster>, ReconcileError> {
    // The watch may lag behind an annotation that was just removed.
    let Some(found) = read_current(context, cluster).await? else {
        return Ok(None);
    };
    let Some(command) = state::parse_sleep_annotation(&found) else {
        return Ok(Some(found));
    };
    let Some(recorded) = record_sleep_command(context, &found, command).await? else {
        return Ok(None);
    };
    tracing::info!(controller = CLUSTER_CONTROLLER, cluster = ?recorded.spec.id, ?command, "sleep annotation applied");
    let patch = AnnotationPatch {
        metadata: AnnotationMetadata {
            // A new annotation that was set in the meantime stays.
            resource_version: recorded.resource_version().unwrap_or_default(),
            annotations: [(labels::SLEEP, None)].into(),
        },
    };
    let params = context.applier.merge_params();
    let removed = api(context, cluster)
        .patch(&cluster.name_any(), &params, &Patch::Merge(&patch))
        .await;
    match removed.and_then(Lenient::into_object) {
        Ok(cluster) => Ok(Some(cluster)),
        Err(kube::Error::Api(refused)) if matches!(refused.code, 404 | 409) => Ok(None),
        Err(error) => Err(ReconcileError::host("a Cluster's annotation")(error)),
    }
}

/// Records a command of the operator's own policies in the status, unless the Cluster was changed
/// in the meantime; then the time up to which schedules are done. `None`: the object is gone.
pub(super) async fn record_policy_request(
    context: &Context,
    cluster: &Cluster,
    command: Option<SleepCommand>,
    scheduled: Option<Timestamp>,
) -> Result<Option<Cluster>, ReconcileError> {
    let Some(mut found) = read_current(context, cluster).await? else {
        return Ok(None);
    };
    let is_same =
        found.metadata.generation == cluster.metadata.generation && SleepState::of(&found) == SleepState::of(cluster);
    if !is_same || state::parse_sleep_annotation(&found).is_some() {
        return Ok(Some(found));
    }
    if let Some(command) = command {
        let Some(recorded) = record_sleep_command(context, &found, command).await? else {
            return Ok(None);
        };
        found = recorded;
    }
    let Some(time) = scheduled else {
        return Ok(Some(found));
    };
    let status = ClusterStatus {
        activity: Some(ActivityStatus {
            scheduled_time: Some(Time(time)),
            ..ActivityStatus::default()
        }),
        ..ClusterStatus::default()
    };
    let params = PatchParams::apply(SCHEDULE_MANAGER).force();
    apply_status(context, &found, &status, &params).await
}

/// Reads the current Cluster from the host API; `None` if the object is gone.
async fn read_current(context: &Context, cluster: &Cluster) -> Result<Option<Cluster>, ReconcileError> {
    let found = api(context, cluster).get_opt(&cluster.name_any()).await;
    let found = found.and_then(|found| found.map(Lenient::into_object).transpose());
    let found = found.map_err(ReconcileError::host("a Cluster"))?;
    Ok(found.filter(|found| found.uid() == cluster.uid()))
}

async fn record_sleep_command(
    context: &Context,
    found: &Cluster,
    command: SleepCommand,
) -> Result<Option<Cluster>, ReconcileError> {
    let before = found.status.as_ref().and_then(|status| status.activity.as_ref());
    let request = state::plan_sleep_requested(before, command, Timestamp::now());
    request_sleep(context, found, request).await
}

/// Removes the finalizer, so that the object is deleted.
pub(super) async fn remove_finalizer(context: &Context, cluster: &Cluster) -> Result<(), ReconcileError> {
    context.applier.release(&api(context, cluster), cluster).await?;
    Ok(())
}

fn has_identity(cluster: &Cluster) -> bool {
    let label = cluster.labels().get(labels::ID);
    cluster.spec.id.is_some() && label == cluster.spec.id.as_ref() && is_held(cluster)
}

fn generate_id(context: &Context) -> ClusterId {
    loop {
        let id = ClusterId::random();
        if !context.host.caches.clusters.is_claimed(id.as_str()) {
            return id;
        }
    }
}

/// Writes identity, label and finalizer. `None`: the object is gone, and the UID in the patch makes
/// the write fail.
async fn write_identity(
    context: &Context,
    cluster: &Cluster,
    id: &ClusterId,
) -> Result<Option<Cluster>, ReconcileError> {
    let patch = IdentityPatch {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "Cluster",
        metadata: MetadataPatch {
            name: cluster.name_any(),
            uid: cluster.uid().unwrap_or_default(),
            finalizers: [labels::FINALIZER],
            labels: [(labels::ID, id.as_str())].into(),
        },
        spec: SpecPatch { id: id.as_str() },
    };
    let applied = api(context, cluster)
        .patch(&cluster.name_any(), context.applier.params(), &Patch::Apply(&patch))
        .await;
    match applied.and_then(Lenient::into_object) {
        Err(kube::Error::Api(refused)) if refused.code == 404 || refused.code == 409 => Ok(None),
        applied => applied.map(Some).map_err(ReconcileError::host("a Cluster's identity")),
    }
}

/// Writes a status unless it equals the current one. Returns whether it wrote.
pub(super) async fn write_status(
    context: &Context,
    cluster: &Cluster,
    status: &ClusterStatus,
) -> Result<bool, ReconcileError> {
    if cluster
        .status
        .as_ref()
        .is_some_and(|before| status::is_same(before, status))
    {
        return Ok(false);
    }
    let used = status
        .activity
        .as_ref()
        .and_then(|activity| activity.last_activity_time.clone());
    let status = ClusterStatus {
        activity: used.map(|used| ActivityStatus {
            last_activity_time: Some(used),
            ..ActivityStatus::default()
        }),
        ..status.clone()
    };
    let written = apply_status(context, cluster, &status, context.applier.params()).await?;
    Ok(written.is_some())
}

/// Requests sleep, or withdraws the request with `None`. It has its own field manager: a status
/// written from a stale cache must not end a sleep, nor start it again. Returns `None` if the
/// object is gone.
pub(super) async fn request_sleep(
    context: &Context,
    cluster: &Cluster,
    request: Option<(Time, SleepReason)>,
) -> Result<Option<Cluster>, ReconcileError> {
    let (time, reason) = request.unzip();
    if let Some(id) = cluster.id() {
        context
            .memory
            .update(&id, |memory| memory.sleep_requested.clone_from(&time));
    }
    let status = ClusterStatus {
        activity: Some(ActivityStatus {
            sleep_requested_time: time,
            sleep_reason: reason,
            ..ActivityStatus::default()
        }),
        ..ClusterStatus::default()
    };
    apply_status(context, cluster, &status, &PatchParams::apply(SLEEP_MANAGER).force()).await
}

/// Applies a part of a status. `None`: the object is gone.
async fn apply_status(
    context: &Context,
    cluster: &Cluster,
    status: &ClusterStatus,
    params: &PatchParams,
) -> Result<Option<Cluster>, ReconcileError> {
    let patch = StatusPatch {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "Cluster",
        metadata: StatusMetadata {
            name: cluster.name_any(),
            uid: cluster.uid().unwrap_or_default(),
        },
        status,
    };
    let written = api(context, cluster)
        .patch_status(&cluster.name_any(), params, &Patch::Apply(&patch))
        .await;
    match written.and_then(Lenient::into_object) {
        Ok(cluster) => Ok(Some(cluster)),
        // The object is gone, or another one has its name: there is no status to write.
        Err(kube::Error::Api(refused)) if refused.code == 404 => Ok(None),
        Err(error) => Err(ReconcileError::host("a Cluster's status")(error)),
    }
}
