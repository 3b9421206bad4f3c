//! Probes the API of a cluster: from the operator inside the host, and through the ingress as a
//! kubeconfig does. An apply probes after its writes, and the result becomes a part of the status.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use yoke_api::names::API_PORT;
use yoke_api::{ClusterId, Reason};

use crate::cluster::context::Context;
use crate::cluster::history::had_api;
use crate::cluster::intervals::BASE_EVERY;
use crate::cluster::memory::ProbeResult;
use crate::cluster::observe::View;
use crate::cluster::outcome::Outcome;
use crate::cluster::resources::ApiAccess;
use crate::cluster::resources::objects::IngressIntent;
use crate::cluster::resources::stateful_set::to_serving;
use crate::model::control_plane::ControlPlane;
use crate::model::identity::Identity;
use crate::model::not_ready::NotReady;
use crate::tenant_client::{Access, Secret, TenantApi, TenantApiError, Way};

/// How long the readiness found by the previous operator process is assumed, while this process
/// reaches no API.
const ASSUMED_READY: Duration = Duration::from_secs(10);
const COUNT_NODES_EVERY: Duration = Duration::from_secs(30);
/// Timeout of one probe in total.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of probing an API that a caller is waiting for.
const POLL_EVERY: Duration = Duration::from_millis(25);
/// How long it is probed before the Cluster is requeued.
const POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// An API whose failures take longer than this is probed less often.
const SLOW_FAILURE: Duration = Duration::from_secs(1);

/// Probes the API, and records the result.
pub(crate) async fn probe_api(
    context: &Context,
    view: &View<'_>,
    access: &ApiAccess,
    intent: &IngressIntent,
    outcome: &mut Outcome,
) {
    outcome.mark_unreachable();
    let (identity, observed) = (&view.identity, &view.observed);
    let ControlPlane::Running { pod, .. } = &outcome.control_plane else {
        return;
    };
    let Some(inside) = access_inside(identity, observed.service.as_deref(), access) else {
        return;
    };
    // Where sources are restricted, the operator itself may not be admitted.
    let outside = context.host.config.ingress.probe && intent.sources.is_none();
    let ingress = outside.then(|| access_through_ingress(context, identity, &inside));
    let target = Target {
        identity,
        pod,
        inside: &inside,
        ingress,
    };
    let result = probe_with_backoff(context, &target).await;
    let (since, has_answered) = record_answer(context, &identity.id, &result);
    // An operator that has just started may not be admitted yet: the NetworkPolicy must first allow
    // the address of its pod.
    if !has_answered && observed.is_still_ready && since.elapsed() < ASSUMED_READY {
        (outcome.inside, outcome.outside) = (Ok(()), Ok(()));
        outcome.assumed_ready = true;
        return;
    }
    (outcome.inside, outcome.outside) = (result.inside, result.outside);
    if outcome.inside.is_err() {
        return;
    }
    outcome.nodes = find_nodes(context, &identity.id, &inside).await;
    if outcome.nodes.is_some_and(|nodes| nodes > 0)
        && let Some(api) = context.apis.known(&identity.id, Way::Inside)
    {
        context.reaper.keep(identity, api);
    }
}

/// Records whether the API has answered. Returns when this process first probed it, and whether it has
/// answered since.
fn record_answer(context: &Context, id: &ClusterId, result: &ProbeResult) -> (Instant, bool) {
    let works = result.inside.is_ok() && result.outside.is_ok();
    let mut answered = (Instant::now(), works);
    context.memory.update_running(id, |running| {
        let (since, before) = running.first_probed.unwrap_or((answered.0, false));
        answered = (since, before || works);
        running.first_probed = Some(answered);
    });
    answered
}

/// Whether the API answers within a moment, inside the host, ready for the clients of the cluster.
pub(crate) async fn wait_for_answer(context: &Context, view: &View<'_>, access: &ApiAccess) -> bool {
    let (identity, observed) = (&view.identity, &view.observed);
    let pod = observed.staying_pod().and_then(|pod| pod.metadata.uid.as_deref());
    let inside = access_inside(identity, observed.service.as_deref(), access);
    let (Some(pod), Some(inside)) = (pod, inside) else {
        return false;
    };
    let answered = async {
        let api = context.apis.client(&identity.id, Way::Inside, &inside)?;
        poll_until_ready(&api, &to_serving("/readyz"), POLL_TIMEOUT).await?;
        if !had_api(&view.cluster) {
            // Without the bindings every request is denied.
            api.begin(&context.base_objects, context.applier.params()).await?;
            record_base(context, &identity.id, pod);
        }
        Ok::<_, TenantApiError>(())
    };
    let answered = tokio::time::timeout(PROBE_TIMEOUT, answered).await;
    answered.is_ok_and(|answered| answered.is_ok())
}

/// Probes an API until a path answers 200, for `timeout` at most. Returns the last error otherwise.
pub(crate) async fn poll_until_ready(api: &TenantApi, path: &str, timeout: Duration) -> Result<(), TenantApiError> {
    let started = Instant::now();
    while let Err(error) = api.check(path).await {
        if started.elapsed() >= timeout {
            return Err(error);
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    Ok(())
}

/// Access to the API inside the host; `None` while the Service has no address.
fn access_inside(identity: &Identity, service: Option<&Service>, access: &ApiAccess) -> Option<Access> {
    let address = service?.spec.as_ref()?.cluster_ip.as_deref()?;
    Some(access_to_pod(identity, address.parse().ok()?, access))
}

/// Access to the API server of one pod.
pub(crate) fn access_to_pod(identity: &Identity, address: IpAddr, access: &ApiAccess) -> Access {
    let operator = &access.operator;
    Access {
        url: format!("https://{}", SocketAddr::new(address, API_PORT)),
        server_name: identity.upstream_name(),
        authority: access.root_ca.clone(),
        certificate: operator.certificate.clone(),
        key: Secret(operator.key.clone()),
    }
}

fn access_through_ingress(context: &Context, identity: &Identity, inside: &Access) -> Access {
    Access {
        url: crate::config::ingress_url(&context.host.config),
        server_name: identity.public_name.to_string(),
        ..inside.clone()
    }
}

/// The API to probe.
struct Target<'a> {
    identity: &'a Identity,
    /// UID of the serving pod.
    pod: &'a str,
    inside: &'a Access,
    /// Access through the ingress, if that is probed too.
    ingress: Option<Access>,
}

/// Probes an API, unless it was slow to fail before: then the last result holds for a while. An API
/// that hangs, through its own webhooks or otherwise, must not take time from the others.
async fn probe_with_backoff(context: &Context, target: &Target<'_>) -> ProbeResult {
    let identity = target.identity;
    let before = context.memory.running(&identity.id).probe_backoff;
    if let Some((_, due, answer)) = &before
        && Instant::now() < *due
    {
        return answer.clone();
    }
    let started = Instant::now();
    let answer = match tokio::time::timeout(PROBE_TIMEOUT, probe(context, target)).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("the API did not accept the base objects within {PROBE_TIMEOUT:?}");
            ProbeResult {
                inside: Ok(()),
                outside: Err(NotReady::api_server(why)),
            }
        }
    };
    let works = answer.inside.is_ok() && answer.outside.is_ok();
    let strikes = before.map_or(0, |(strikes, ..)| strikes);
    let probe_backoff = plan_probe_backoff(strikes, started.elapsed(), works)
        .map(|(strikes, backoff)| (strikes, Instant::now() + backoff, answer.clone()));
    context
        .memory
        .update_running(&identity.id, |running| running.probe_backoff = probe_backoff);
    answer
}

/// The number of slow failures in a row, and how long to leave the API alone. There is no pause
/// after the first one; later it grows up to five times the duration of the probe.
fn plan_probe_backoff(strikes: u32, duration: Duration, works: bool) -> Option<(u32, Duration)> {
    (!works && duration >= SLOW_FAILURE).then(|| (strikes.saturating_add(1), duration * strikes.min(5)))
}

/// Probes the API, and applies the base objects of every cluster.
async fn probe(context: &Context, target: &Target<'_>) -> ProbeResult {
    let Target { identity, pod, .. } = *target;
    let id = &identity.id;
    let api = match probe_endpoint(context, id, Way::Inside, target.inside).await {
        Ok(api) => api,
        Err(error) => {
            let not_ready = NotReady::api_server(crate::chain(&error));
            return ProbeResult {
                inside: Err(not_ready.clone()),
                outside: Err(not_ready),
            };
        }
    };
    let outside = async {
        let Some(ingress) = &target.ingress else {
            return Ok(());
        };
        let probed = probe_endpoint(context, id, Way::Ingress, ingress).await;
        probed.map(|_| ()).map_err(|error| NotReady {
            reason: Reason::IngressPending,
            message: format!("through the ingress: {}", crate::chain(&error)),
        })
    };
    let base = async {
        let applied = apply_base(context, target, &api).await;
        applied.map_err(|error| NotReady::api_server(crate::chain(&error)))?;
        context.guard.watch_endpoints(identity, &api, &context.base_objects);
        context.signer.keep(identity, &api);
        Ok(())
    };
    let controllers = async {
        let checked = check_controllers(context, id, pod, &api).await;
        checked.map_err(|error| NotReady {
            reason: Reason::ControllersPending,
            message: crate::chain(&error),
        })
    };
    // Run all of them: a failure of one must not stop another.
    let (outside, base, controllers) = tokio::join!(outside, base, controllers);
    ProbeResult {
        inside: Ok(()),
        outside: outside.and(base).and(controllers),
    }
}

/// Checks that the controllers work, once per pod.
async fn check_controllers(
    context: &Context,
    id: &ClusterId,
    pod: &str,
    api: &TenantApi,
) -> Result<(), TenantApiError> {
    if context.memory.running(id).controllers.as_deref() == Some(pod) {
        return Ok(());
    }
    api.check_controllers().await?;
    context
        .memory
        .update_running(id, |running| running.controllers = Some(pod.to_owned()));
    Ok(())
}

async fn probe_endpoint(
    context: &Context,
    id: &ClusterId,
    way: Way,
    access: &Access,
) -> Result<TenantApi, TenantApiError> {
    let api = context.apis.client(id, way, access)?;
    let ready = api.check_ready().await;
    // The connection may be stale, and a new one may work.
    if let Err(TenantApiError::Limit) = ready {
        context.apis.forget_way(id, way);
    }
    ready.map(|()| api)
}

async fn apply_base(context: &Context, target: &Target<'_>, api: &TenantApi) -> Result<(), TenantApiError> {
    let Target { identity, pod, .. } = *target;
    if let Some((known, since)) = context.memory.running(&identity.id).base
        && known == pod
        && since.elapsed() < BASE_EVERY
    {
        return Ok(());
    }
    api.apply_base(&context.base_objects, context.applier.params()).await?;
    record_base(context, &identity.id, pod);
    Ok(())
}

fn record_base(context: &Context, id: &ClusterId, pod: &str) {
    context
        .memory
        .update_running(id, |running| running.base = Some((pod.to_owned(), Instant::now())));
}

/// Number of Nodes, counted again if the last count is too old; `None` if the API does not answer.
async fn find_nodes(context: &Context, id: &ClusterId, inside: &Access) -> Option<i32> {
    if let Some((nodes, since)) = context.memory.running(id).nodes
        && since.elapsed() < COUNT_NODES_EVERY
    {
        return nodes;
    }
    let counted = async { context.apis.client(id, Way::Inside, inside)?.count_nodes().await };
    let nodes = match counted.await {
        Ok(nodes) => Some(nodes),
        Err(error) => {
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "Nodes cannot be counted");
            None
        }
    };
    context
        .memory
        .update_running(id, |running| running.nodes = Some((nodes, Instant::now())));
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_failures_are_followed_by_longer_pauses() {
        let second = Duration::from_secs(1);
        for (rule, strikes, duration, works, expected) in [
            ("fast failure", 3, second / 2, false, None),
            ("slow success", 3, second * 4, true, None),
            ("first slow failure", 0, second * 2, false, Some((1, Duration::ZERO))),
            ("second", 1, second * 4, false, Some((2, second * 4))),
            ("many", 9, second * 4, false, Some((10, second * 20))),
        ] {
            assert_eq!(plan_probe_backoff(strikes, duration, works), expected, "{rule}");
        }
    }
}
