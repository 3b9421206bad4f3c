//! Maintains the control plane of a Cluster whose spec is refused. Automatic changes continue,
//! certificates above all. Changes of the spec are not applied, except for the deletion policy. For
//! a paused Cluster only certificates continue.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use kube::Api;
use kube::api::Patch;
use yoke_api::{Cluster, Reason};

use crate::cluster::context::Context;
use crate::cluster::credentials::distribute::{self, Copied, CopyRequest};
use crate::cluster::credentials::{fencing, persisted};
use crate::cluster::failover::{node_loss, pod_deletion, takeover};
use crate::cluster::namespace::ensure_namespace;
use crate::cluster::observe::View;
use crate::cluster::observed::Observed;
use crate::cluster::outcome::{Outcome, Store};
use crate::cluster::resources::network_policy::AllowedPeers;
use crate::cluster::resources::objects::IngressIntent;
use crate::cluster::resources::{IssuedSummary, affinity, stateful_set};
use crate::cluster::sleep::state::SleepState;
use crate::cluster::store::streams;
use crate::cluster::tenant_cluster::{probe, workers};
use crate::cluster::{network_access, validate};
use crate::error::ReconcileError;
use crate::model::conditions::State;
use crate::model::control_plane::{self, NAME};
use crate::model::identity::Identity;

/// Copies the issued material to an existing control plane, and probes its API.
pub(crate) async fn maintain(
    context: &Context,
    view: &View<'_>,
    intent: IngressIntent,
    run_state: SleepState,
) -> Result<Outcome, ReconcileError> {
    let (cluster, identity, observed) = (&view.cluster, &view.identity, &view.observed);
    let set = observed.stateful_set.as_deref();
    ensure_namespace(context, identity, cluster.spec.deletion_policy, observed).await?;
    let peers = AllowedPeers {
        provider: set.is_some_and(stateful_set::has_dns),
        konnectivity: intent.konnectivity,
    };
    network_access::apply_service_and_policy(context, identity, observed, peers, observed.is_asleep()).await?;
    let ((), account) = tokio::try_join!(
        persisted::ensure_service_account(context, cluster, identity),
        persisted::ensure_account(context, cluster, identity, persisted::size_of(context, cluster)),
    )?;
    let store = streams::ensure_account_streams(context, cluster, identity, &account).await?;
    let mut outcome = Outcome::with_store(observed, run_state, store);
    let request = CopyRequest {
        plan: &validate::plan_names(identity, intent.konnectivity),
        intent: &intent,
        needs_api: !observed.is_asleep(),
    };
    let copied = distribute::distribute(context, identity, &request, &mut outcome).await?;
    let Some(Copied { issued, delivered }) = copied else {
        return Ok(outcome);
    };
    stop_standby(context, identity, observed).await?;
    restart_if_changed(context, identity, observed, &issued).await?;
    pod_deletion::replace_stuck(context, observed).await?;
    outcome.control_plane = node_loss::plan_control_plane(context, identity, set, observed);
    outcome.lost = context.losses.of(&identity.id).is_some();
    match &issued.reach {
        Some(access) => probe::probe_api(context, view, access, &intent, &mut outcome).await,
        None => outcome.mark_unreachable(),
    }
    // The versions of the workers may be the reason for the refusal.
    outcome.workers = workers::upgrade_workers(context, view, None, &outcome).await;
    delivered?;
    Ok(outcome)
}

/// Copies the issued material to the control plane of a paused Cluster. It does nothing else, and
/// restores nothing that is lost.
pub(crate) async fn copy_certificates(
    context: &Context,
    view: &View<'_>,
    intent: IngressIntent,
    run_state: SleepState,
) -> Result<Outcome, ReconcileError> {
    let identity = &view.identity;
    let mut outcome = Outcome::with_store(&view.observed, run_state, last_store(&view.cluster));
    if !persisted::credentials_exist(context, identity) {
        outcome.certificates = State::no(
            Reason::KeyLost,
            "Certificates are not copied: a credential Secret is lost and is not restored while the Cluster is \
         paused. Unset spec.paused, or restore the Secret.",
        );
        return Ok(outcome);
    }
    let request = CopyRequest {
        plan: &validate::plan_names(identity, intent.konnectivity),
        intent: &intent,
        needs_api: false,
    };
    if let Some(copied) = distribute::distribute(context, identity, &request, &mut outcome).await? {
        copied.delivered?;
    }
    Ok(outcome)
}

/// The state of the store as last observed.
fn last_store(cluster: &Cluster) -> Store {
    let before = cluster.status.as_ref().and_then(|status| status.storage.clone());
    Store {
        state: State::unknown(Reason::AsExpected, "Not checked."),
        bytes: before.as_ref().and_then(|before| before.bytes),
        account: before.map(|before| before.account),
    }
}

/// Stops a standby pod: the serving pod now stays where it is.
async fn stop_standby(context: &Context, identity: &Identity, observed: &Observed) -> Result<(), ReconcileError> {
    let spec = observed.stateful_set.as_deref().and_then(|set| set.spec.as_ref());
    if spec.and_then(|spec| spec.replicas).is_none_or(|replicas| replicas < 2) {
        return Ok(());
    }
    let one_replica = StatefulSetSpec {
        replicas: Some(1),
        ..StatefulSetSpec::default()
    };
    let patch = StatefulSet {
        spec: Some(one_replica),
        ..StatefulSet::default()
    };
    patch_set(context, &api_of(context, identity), &patch).await
}

/// Restarts the control plane with the same spec if a file changed that it reads only once, or if
/// its pod was lost with its node.
async fn restart_if_changed(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    issued: &IssuedSummary,
) -> Result<(), ReconcileError> {
    let Some(set) = observed.stateful_set.as_deref() else {
        return Ok(());
    };
    let digest = issued.restart_digest(stateful_set::has_konnectivity(set));
    let lost = node_loss::find_lost_pod(context, identity, observed);
    if stateful_set::read_digest(set) == Some(&digest) && affinity::read_lost(set) == lost {
        let number = control_plane::running_incarnation(Some(set)).unwrap_or_default();
        return node_loss::delete_lost_pods(context, identity, observed, number, lost.as_ref()).await;
    }
    let after = lost.as_ref().map_or("", |lost| &lost.pod);
    let template = format!("kept-{digest}-{after}");
    let planned = fencing::plan_incarnation_by_cache(context, identity, observed, &template);
    let number = fencing::ensure_incarnation(context, identity, planned, &template).await?;
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
