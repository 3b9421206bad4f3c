//! Keeps a control plane alive whose Cluster is refused now: what changes by itself, certificates above all, goes on; what
//! the spec asks for anew does not, but for what becomes of the data. Of a Cluster that is paused only certificates go on.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use kube::Api;
use kube::api::Patch;
use yoke_api::{Cluster, Reason};

use super::apply::{Applied, ensure_namespace};
use super::build::doors::Open;
use super::build::hosted::Asked;
use super::build::{Gist, place, stateful_set};
use super::copies::{self, Copied};
use super::identity::Identity;
use super::observe::Observed;
use super::store::{self, Store};
use super::{doors, gate, incarnation, kept, lost, probe, takeover, validate, workers};
use crate::conditions::State;
use crate::context::Context;
use crate::error::ReconcileError;

/// Copies what was issued to a control plane as it is, and looks whether it answers.
pub(super) async fn keep(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    asked: Asked,
) -> Result<Applied, ReconcileError> {
    ensure_namespace(context, identity, cluster.spec.deletion_policy, observed).await?;
    let open = Open {
        provider: observed.stateful_set.as_deref().is_some_and(stateful_set::has_dns),
        konnectivity: asked.konnectivity,
    };
    doors::apply(context, identity, observed, open, observed.is_asleep()).await?;
    let ((), account) = tokio::try_join!(
        kept::ensure_service_account(context, cluster, identity),
        kept::ensure_account(context, cluster, identity, kept::size_of(context, cluster)),
    )?;
    let mut applied = Applied::new(store::look(context, cluster, identity, &account).await?, observed);
    let plan = validate::plan_names(identity, asked.konnectivity);
    let wanted = (asked.clone(), !observed.is_asleep());
    if let Some(Copied { gist, given }) = copies::bring(context, identity, &plan, wanted, &mut applied).await? {
        stand_down(context, identity, observed).await?;
        restart(context, identity, observed, &gist).await?;
        copies::replace_stuck(context, observed).await?;
        let set = observed.stateful_set.as_deref();
        applied.control_plane = lost::plan_control_plane(context, identity, set, observed);
        applied.lost = context.losses.of(&identity.id).is_some();
        match &gist.reach {
            Some(reach) => probe::look_at_api(context, identity, observed, reach, &asked, &mut applied).await,
            None => probe::miss(&mut applied),
        }
        // It may be refused for what they are.
        applied.workers = workers::ensure(context, cluster, &identity.id, None, &applied).await;
        given?;
    }
    Ok(applied)
}

/// Copies what was issued to a control plane whose Cluster is paused, and does nothing else: not even what is lost is made
/// again.
pub(super) async fn copy(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    asked: Asked,
) -> Result<Applied, ReconcileError> {
    let mut applied = Applied::new(find_store(cluster), observed);
    if !kept::are_known(context, identity) {
        applied.certificates = State::no(
            Reason::KeyLost,
            "Nothing is copied: a kept Secret is lost, and is not restored while the Cluster is paused.",
        );
        return Ok(applied);
    }
    let plan = validate::plan_names(identity, asked.konnectivity);
    if let Some(copied) = copies::bring(context, identity, &plan, (asked, false), &mut applied).await? {
        copied.given?;
    }
    Ok(applied)
}

/// The store as it was last seen.
fn find_store(cluster: &Cluster) -> Store {
    let before = cluster.status.as_ref().and_then(|status| status.storage.clone());
    Store {
        state: State::unknown(Reason::AsExpected, "Not looked at."),
        bytes: before.as_ref().and_then(|before| before.bytes),
        account: before.map(|before| before.account),
    }
}

/// Ends a pod that was to take over from one that stays where it is now.
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

/// Starts the control plane again, as it is, if something changed that it reads once, or its pod was lost with its machine.
async fn restart(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    gist: &Gist,
) -> Result<(), ReconcileError> {
    let Some(set) = observed.stateful_set.as_deref() else {
        return Ok(());
    };
    let digest = gist.restart_digest(stateful_set::has_konnectivity(set));
    let lost = lost::find(context, identity, observed);
    if stateful_set::read_digest(set) == Some(&digest) && place::read_lost(set) == lost {
        let number = gate::running_incarnation(Some(set)).unwrap_or_default();
        return lost::remove(context, identity, observed, number, lost.as_ref()).await;
    }
    let after = lost.as_ref().map_or("", |lost| &lost.pod);
    let template = format!("kept-{digest}-{after}");
    let planned = incarnation::plan(context, identity, observed, &template);
    let number = incarnation::ensure(context, identity, planned, &template).await?;
    takeover::release_all(context, identity, observed).await;
    let api = api_of(context, identity);
    let found = api.get_opt(stateful_set::NAME).await;
    let Some(set) = found.map_err(ReconcileError::host("the control plane"))? else {
        return Ok(());
    };
    let patch = stateful_set::build_restart(&set, number, &digest, lost.as_ref());
    patch_set(context, &api, &patch).await
}

fn api_of(context: &Context, identity: &Identity) -> Api<StatefulSet> {
    Api::namespaced(context.client.clone(), identity.hosted().as_str())
}

/// Changes of a control plane what is given, and nothing else.
async fn patch_set(context: &Context, api: &Api<StatefulSet>, patch: &StatefulSet) -> Result<(), ReconcileError> {
    let params = context.clusters.merge_params();
    let patched = api.patch(stateful_set::NAME, &params, &Patch::Strategic(patch)).await;
    patched.map_err(ReconcileError::host("the control plane"))?;
    Ok(())
}
