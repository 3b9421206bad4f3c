//! Maintains the control plane of a Cluster whose spec is refused. Automatic changes continue,
//! certificates above all. Changes of the spec are not applied, except for the deletion policy. For
//! a paused Cluster only certificates continue.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use kube::Api;
use kube::api::Patch;
use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::credentials::distribute::{self, Copied};
use crate::cluster::credentials::{fencing, persisted};
use crate::cluster::failover::{node_loss, takeover};
use crate::cluster::namespace::ensure_namespace;
use crate::cluster::observe::Observed;
use crate::cluster::outcome::Applied;
use crate::cluster::resources::network_policy::AllowedPeers;
use crate::cluster::resources::objects::IngressIntent;
use crate::cluster::resources::{IssuedSummary, affinity, stateful_set};
use crate::cluster::store::streams::{self, Store};
use crate::cluster::tenant_cluster::{probe, workers};
use crate::cluster::{network_access, validate};
use crate::error::ReconcileError;
use crate::model::conditions::State;
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;

/// Copies the issued material to an existing control plane, and probes its API.
pub(crate) async fn keep(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    asked: IngressIntent,
) -> Result<Applied, ReconcileError> {
    ensure_namespace(context, identity, cluster.spec.deletion_policy, observed).await?;
    let open = AllowedPeers {
        provider: observed.stateful_set.as_deref().is_some_and(stateful_set::has_dns),
        konnectivity: asked.konnectivity,
    };
    network_access::apply(context, identity, observed, open, observed.is_asleep()).await?;
    let ((), account) = tokio::try_join!(
        persisted::ensure_service_account(context, cluster, identity),
        persisted::ensure_account(context, cluster, identity, persisted::size_of(context, cluster)),
    )?;
    let mut applied = Applied::new(streams::look(context, cluster, identity, &account).await?, observed);
    let plan = validate::plan_names(identity, asked.konnectivity);
    let wanted = (asked.clone(), !observed.is_asleep());
    if let Some(Copied { gist, given }) = distribute::bring(context, identity, &plan, wanted, &mut applied).await? {
        stand_down(context, identity, observed).await?;
        restart(context, identity, observed, &gist).await?;
        distribute::replace_stuck(context, observed).await?;
        let set = observed.stateful_set.as_deref();
        applied.control_plane = node_loss::plan_control_plane(context, identity, set, observed);
        applied.lost = context.losses.of(&identity.id).is_some();
        match &gist.reach {
            Some(reach) => probe::probe_api(context, identity, observed, reach, &asked, &mut applied).await,
            None => probe::mark_unreachable(&mut applied),
        }
        // The versions of the workers may be the reason for the refusal.
        applied.workers = workers::ensure(context, cluster, &identity.id, None, &applied).await;
        given?;
    }
    Ok(applied)
}

/// Copies the issued material to the control plane of a paused Cluster. It does nothing else, and
/// restores nothing that is lost.
pub(crate) async fn copy(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    asked: IngressIntent,
) -> Result<Applied, ReconcileError> {
    let mut applied = Applied::new(find_store(cluster), observed);
    if !persisted::are_known(context, identity) {
        applied.certificates = State::no(
            Reason::KeyLost,
            "Certificates are not copied: a credential Secret is lost and is not restored while the Cluster is \
         paused. Unset spec.paused, or restore the Secret.",
        );
        return Ok(applied);
    }
    let plan = validate::plan_names(identity, asked.konnectivity);
    if let Some(copied) = distribute::bring(context, identity, &plan, (asked, false), &mut applied).await? {
        copied.given?;
    }
    Ok(applied)
}

/// The state of the store as last observed.
fn find_store(cluster: &Cluster) -> Store {
    let before = cluster.status.as_ref().and_then(|status| status.storage.clone());
    Store {
        state: State::unknown(Reason::AsExpected, "Not checked."),
        bytes: before.as_ref().and_then(|before| before.bytes),
        account: before.map(|before| before.account),
    }
}

/// Stops a standby pod: the serving pod now stays where it is.
async fn stand_down(context: &Context, identity: &Identity, observed: &Observed) -> Result<(), ReconcileError> {
    let spec = observed.stateful_set.as_deref().and_then(|set| set.spec.as_ref());
    if spec.and_then(|spec| spec.replicas).is_none_or(|replicas| replicas < 2) {
        return Ok(());
    }
    let alone = StatefulSetSpec {
        replicas: Some(1),
        ..StatefulSetSpec::default()
    };
    let patch = StatefulSet {
        spec: Some(alone),
        ..StatefulSet::default()
    };
    patch_set(context, &api_of(context, identity), &patch).await
}

/// Restarts the control plane with the same spec if a file changed that it reads only once, or if
/// its pod was lost with its node.
async fn restart(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    gist: &IssuedSummary,
) -> Result<(), ReconcileError> {
    let Some(set) = observed.stateful_set.as_deref() else {
        return Ok(());
    };
    let digest = gist.restart_digest(stateful_set::has_konnectivity(set));
    let lost = node_loss::find(context, identity, observed);
    if stateful_set::read_digest(set) == Some(&digest) && affinity::read_lost(set) == lost {
        let number = control_plane::running_incarnation(Some(set)).unwrap_or_default();
        return node_loss::remove(context, identity, observed, number, lost.as_ref()).await;
    }
    let after = lost.as_ref().map_or("", |lost| &lost.pod);
    let template = format!("kept-{digest}-{after}");
    let planned = fencing::plan(context, identity, observed, &template);
    let number = fencing::ensure(context, identity, planned, &template).await?;
    takeover::release_all(context, identity, observed).await;
    let api = api_of(context, identity);
    let found = api.get_opt(NAME).await;
    let Some(set) = found.map_err(ReconcileError::host("the control plane"))? else {
        return Ok(());
    };
    let patch = stateful_set::build_restart(&set, number, &digest, lost.as_ref());
    patch_set(context, &api, &patch).await
}

fn api_of(context: &Context, identity: &Identity) -> Api<StatefulSet> {
    Api::namespaced(context.host.client.clone(), identity.hosted().as_str())
}

/// Patches only the fields that are set.
async fn patch_set(context: &Context, api: &Api<StatefulSet>, patch: &StatefulSet) -> Result<(), ReconcileError> {
    let params = context.applier.merge_params();
    let patched = api.patch(NAME, &params, &Patch::Strategic(patch)).await;
    patched.map_err(ReconcileError::host("the control plane"))?;
    Ok(())
}
