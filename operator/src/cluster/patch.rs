//! Writes to the Cluster object itself: identity, finalizer, status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use yoke_api::cluster::{ClusterStatus, Phase};
use yoke_api::sleep::{ActivityStatus, SleepReason};
use yoke_api::{Cluster, ClusterId, ConditionType, GROUP, Lenient, VERSION, labels};

use super::CONTROLLER;
use super::identity::Identity;
use super::rest::{self, Rest, Word};
use super::status::{self, Outcome};
use crate::apply::is_held;
use crate::conditions;
use crate::context::Context;
use crate::error::ReconcileError;

/// Owner of `status.activity.sleepRequestedTime` and `sleepReason`.
const SLEEP_MANAGER: &str = "yoke-operator-sleep";
/// Owner of `status.activity.scheduledTime`.
const SCHEDULE_MANAGER: &str = "yoke-operator-schedule";

/// What the operator owns of a Cluster beside its status. Applied as a whole, and as nothing more: a typed Cluster would
/// own every default of the spec.
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
    /// Makes the patch fail if the object is another one by now, or gone: an apply would make it again.
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

/// Removes the annotation, if the object is as it was read.
#[derive(Debug, Serialize)]
struct WordPatch {
    metadata: WordMetadata,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WordMetadata {
    resource_version: String,
    annotations: std::collections::BTreeMap<&'static str, Option<String>>,
}

#[derive(Debug, Serialize)]
struct StatusMetadata {
    name: String,
    uid: String,
}

/// The Clusters of its namespace.
pub(super) fn api(context: &Context, cluster: &Cluster) -> Api<Lenient<Cluster>> {
    Api::namespaced(context.client.clone(), &cluster.namespace().unwrap_or_default())
}

/// Sets identity, label and finalizer if they are not set. `None`: the object is gone.
pub(super) async fn ensure_identity(context: &Context, cluster: &Cluster) -> Result<Option<Cluster>, ReconcileError> {
    if is_identified(cluster) {
        return Ok(Some(cluster.clone()));
    }
    // The watch may lag behind what was set a moment ago.
    let Some(found) = find(context, cluster).await? else {
        return Ok(None);
    };
    if found.metadata.deletion_timestamp.is_some() || is_identified(&found) {
        return Ok(Some(found).filter(|found| found.metadata.deletion_timestamp.is_none()));
    }
    let id = found.id().unwrap_or_else(|| draw(context));
    write_identity(context, &found, &id).await
}

/// The Cluster with the sleep that was noted last: while the watch lags behind that, its control plane would be started again.
/// `None`: the object is gone.
pub(super) async fn catch_up(context: &Context, cluster: Cluster) -> Result<Option<Cluster>, ReconcileError> {
    let Some(id) = cluster.id() else {
        return Ok(Some(cluster));
    };
    let Some(slept) = context.seen(&id).slept else {
        return Ok(Some(cluster));
    };
    let has_it = |cluster: &Cluster| rest::slept(cluster).is_some_and(|known| known.0 >= slept.0);
    if has_it(&cluster) {
        context.note(&id, |seen| seen.slept = None);
        return Ok(Some(cluster));
    }
    let found = find(context, &cluster).await?;
    if !found.as_ref().is_some_and(has_it) {
        // Somebody has taken it back, or it was never written.
        context.note(&id, |seen| seen.slept = None);
    }
    Ok(found)
}

/// Notes in the status what the annotation asks for, and then removes it; during a pause it stays. `None`: the object is gone, or changes meanwhile.
///
/// An operator that ends in between does so again: a Cluster that somebody has just woken sleeps once more, and wakes again for
/// the next request.
pub(super) async fn take_word(context: &Context, cluster: Cluster) -> Result<Option<Cluster>, ReconcileError> {
    if rest::is_overruled(&cluster) {
        return request_sleep(context, &cluster, None).await;
    }
    if cluster.spec.paused || rest::plan_word(&cluster).is_none() {
        return Ok(Some(cluster));
    }
    // The watch may lag behind what was taken a moment ago.
    let Some(found) = find(context, &cluster).await? else {
        return Ok(None);
    };
    let Some(word) = rest::plan_word(&found) else {
        return Ok(Some(found));
    };
    let Some(noted) = write_word(context, &found, word).await? else {
        return Ok(None);
    };
    tracing::info!(controller = CONTROLLER, cluster = ?noted.spec.id, ?word, "annotation taken up");
    let patch = WordPatch {
        metadata: WordMetadata {
            // Another word that was given meanwhile stays.
            resource_version: noted.resource_version().unwrap_or_default(),
            annotations: [(labels::SLEEP, None)].into(),
        },
    };
    let params = context.clusters.merge_params();
    let taken = api(context, &cluster)
        .patch(&cluster.name_any(), &params, &Patch::Merge(&patch))
        .await;
    match taken.and_then(Lenient::into_object) {
        Ok(cluster) => Ok(Some(cluster)),
        Err(kube::Error::Api(refused)) if matches!(refused.code, 404 | 409) => Ok(None),
        Err(error) => Err(ReconcileError::host("a Cluster's annotation")(error)),
    }
}

/// Notes in the status what is asked for by nobody, unless somebody has said something else by now; and then up to when
/// schedules are done. `None`: the object is gone.
pub(super) async fn note(
    context: &Context,
    cluster: &Cluster,
    word: Option<Word>,
    scheduled: Option<Timestamp>,
) -> Result<Option<Cluster>, ReconcileError> {
    let Some(mut found) = find(context, cluster).await? else {
        return Ok(None);
    };
    let is_same = found.spec == cluster.spec && Rest::of(&found) == Rest::of(cluster);
    if !is_same || rest::plan_word(&found).is_some() {
        return Ok(Some(found));
    }
    if let Some(word) = word {
        let Some(noted) = write_word(context, &found, word).await? else {
            return Ok(None);
        };
        found = noted;
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

/// The Cluster as it is now, if it is still there.
async fn find(context: &Context, cluster: &Cluster) -> Result<Option<Cluster>, ReconcileError> {
    let found = api(context, cluster).get_opt(&cluster.name_any()).await;
    let found = found.and_then(|found| found.map(Lenient::into_object).transpose());
    let found = found.map_err(ReconcileError::host("a Cluster"))?;
    Ok(found.filter(|found| found.uid() == cluster.uid()))
}

async fn write_word(context: &Context, found: &Cluster, word: Word) -> Result<Option<Cluster>, ReconcileError> {
    let before = found.status.as_ref().and_then(|status| status.activity.as_ref());
    let asked = rest::plan_sleep_requested(before, word, Timestamp::now());
    request_sleep(context, found, asked).await
}

/// Removes the finalizer, by which the object goes.
pub(super) async fn release(context: &Context, cluster: &Cluster) -> Result<(), ReconcileError> {
    context.clusters.release(&api(context, cluster), cluster).await?;
    Ok(())
}

fn is_identified(cluster: &Cluster) -> bool {
    let label = cluster.labels().get(labels::ID);
    cluster.spec.id.is_some() && label == cluster.spec.id.as_ref() && is_held(cluster)
}

fn draw(context: &Context) -> ClusterId {
    loop {
        let id = ClusterId::random();
        if !context.caches.clusters.is_claimed(id.as_str()) {
            return id;
        }
    }
}

/// `None`: the object has gone meanwhile, which the patch is refused for by its UID.
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
        .patch(&cluster.name_any(), context.clusters.params(), &Patch::Apply(&patch))
        .await;
    match applied.and_then(Lenient::into_object) {
        Err(kube::Error::Api(refused)) if refused.code == 404 || refused.code == 409 => Ok(None),
        applied => applied.map(Some).map_err(ReconcileError::host("a Cluster's identity")),
    }
}

/// Writes the status that follows from an outcome, and the events.
pub(super) async fn write_status(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    outcome: &Outcome,
) -> Result<(), ReconcileError> {
    let before = cluster.status.clone().unwrap_or_default();
    let (status, states) = status::plan_status(cluster, identity, &context.config, outcome, Timestamp::now());
    context.note(&identity.id, |seen| seen.failures = None);
    if !write(context, cluster, &status).await? {
        return Ok(());
    }
    // That a Cluster begins awake is no news.
    let begins = conditions::find(&before.conditions, ConditionType::Asleep).is_none();
    let told = if begins { &status::TOLD[1..] } else { &status::TOLD };
    let mut told = told.to_vec();
    // Whatever else degrades it is told by another condition.
    let is_degraded = outcome.takeover_failed() || outcome.fails_in_part();
    told.extend(is_degraded.then_some(ConditionType::Degraded));
    let notices = conditions::build_notices(&states, &before.conditions, &told, "Reconcile");
    context.events.publish(cluster, &notices).await;
    if let Some(woken) = rest::plan_woken(&status) {
        request_sleep(context, cluster, None).await?;
        let seconds = Timestamp::now().duration_since(woken).as_secs_f64();
        context.metrics.woke(seconds);
        tracing::info!(controller = CONTROLLER, cluster = %identity.id, seconds, "cluster is awake");
    }
    let first = before.history.iter().all(|entry| entry.completed.is_none());
    let ready = conditions::find(&status.conditions, ConditionType::Ready).is_some_and(|ready| ready.status == "True");
    if let (true, true, Some(made)) = (first, ready, cluster.creation_timestamp()) {
        let seconds = Timestamp::now().duration_since(made.0).as_secs_f64();
        context.metrics.became_ready(seconds);
        tracing::info!(controller = CONTROLLER, cluster = %identity.id, seconds, "cluster is ready for the first time");
    }
    Ok(())
}

/// Writes a status unless it says what is there. Says whether it wrote.
pub(super) async fn write(
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
    let written = apply_status(context, cluster, &status, context.clusters.params()).await?;
    Ok(written.is_some())
}

/// Asks a Cluster to sleep, or takes that back. As a field manager of its own: a status that is written by what a cache
/// knew must not end a sleep, nor begin it anew. `None`: the object is gone.
pub(super) async fn request_sleep(
    context: &Context,
    cluster: &Cluster,
    asked: Option<(Time, SleepReason)>,
) -> Result<Option<Cluster>, ReconcileError> {
    let (time, reason) = asked.unzip();
    if let Some(id) = cluster.id() {
        context.note(&id, |seen| seen.slept.clone_from(&time));
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
        // It is gone, or another of its name: there is nothing to say.
        Err(kube::Error::Api(refused)) if refused.code == 404 => Ok(None),
        Err(error) => Err(ReconcileError::host("a Cluster's status")(error)),
    }
}

/// Says how far a deletion has come.
pub(super) async fn write_deleting(context: &Context, cluster: &Cluster, message: &str) -> Result<(), ReconcileError> {
    use crate::conditions::State;
    use yoke_api::Reason;
    let changes = vec![
        (
            ConditionType::Ready,
            State::no(Reason::Deleting, "The cluster is being deleted."),
        ),
        (ConditionType::Progressing, State::yes(Reason::Deleting, message)),
    ];
    let status = status::plan_short(cluster, Phase::Deleting, &changes, Timestamp::now());
    write(context, cluster, &status).await.map(|_| ())
}
