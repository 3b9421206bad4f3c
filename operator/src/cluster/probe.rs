//! Whether a cluster's API answers: to the operator inside the host, and by the way that the kubeconfig goes.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use yoke_api::names::API_PORT;
use yoke_api::{Cluster, ClusterId, Reason};

use super::apply::Applied;
use super::build::hosted::Asked;
use super::build::stateful_set::to_serving;
use super::build::{Reach, secrets};
use super::gate::ControlPlane;
use super::identity::Identity;
use super::kept;
use super::observe::Observed;
use super::status::Lack;
use crate::context::Context;
use crate::tenant_api::{Access, Secret, TenantApi, TenantApiError, Way};

/// Base objects are looked at again this often: a tenant may have removed them, and of them only addresses are watched.
pub(super) const BASE_EVERY: Duration = Duration::from_secs(600);
/// How long what a predecessor found out is believed, while the operator itself reaches nothing.
const DOORS_OPEN: Duration = Duration::from_secs(10);
const NODES_EVERY: Duration = Duration::from_secs(30);
/// How long one look may take in all.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How often an API is asked that somebody waits for.
const EVERY: Duration = Duration::from_millis(25);
/// How long it is asked, before the Cluster is looked at anew.
const WAIT: Duration = Duration::from_millis(500);
/// An API that takes longer to fail is left alone for a while.
const SLOW: Duration = Duration::from_secs(1);

/// What was found.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Whether the API answers inside.
    pub inside: Result<(), String>,
    /// Whether what a tenant needs beside it is there: the ingress, the bindings, the controllers at work.
    pub outside: Result<(), Lack>,
}

/// Looks whether the API answers, and notes it.
pub(super) async fn look_at_api(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    reach: &Reach,
    asked: &Asked,
    applied: &mut Applied,
) {
    miss(applied);
    let ControlPlane::Running { pod, .. } = &applied.control_plane else {
        return;
    };
    let Some(inside) = inside(identity, observed.service.as_deref(), reach) else {
        return;
    };
    let id = &identity.id;
    // Where not everybody is let in the operator may be one who is not.
    let outside = context.config.ingress.probe && asked.sources.is_none();
    let ingress = outside.then(|| through_ingress(context, identity, &inside));
    let target = Target {
        identity,
        pod,
        inside: &inside,
        ingress,
    };
    let answer = look_in_turn(context, &target).await;
    let works = answer.inside.is_ok() && answer.outside.is_ok();
    let mut began = Instant::now();
    let mut answered = works;
    context.note_awake(id, |seen| {
        let (since, before) = seen.asked.unwrap_or((began, false));
        seen.asked = Some((since, before || works));
        (began, answered) = (since, before || works);
    });
    // An operator that has just started may not be let through yet: the doors open by its pod's address.
    if !answered && observed.is_trusted && began.elapsed() < DOORS_OPEN {
        (applied.inside, applied.outside) = (Ok(()), Ok(()));
        applied.believed = true;
        return;
    }
    applied.inside = answer.inside;
    applied.outside = answer.outside;
    if applied.inside.is_err() {
        return;
    }
    applied.nodes = match context.awake(id).nodes {
        Some((nodes, since)) if since.elapsed() < NODES_EVERY => nodes,
        _ => {
            let nodes = count_nodes(context, id, &inside).await;
            context.note_awake(id, |seen| seen.nodes = Some((nodes, Instant::now())));
            nodes
        }
    };
    if applied.nodes.is_some_and(|nodes| nodes > 0)
        && let Some(api) = context.apis.known(id, Way::Inside)
    {
        context.reaper.keep(identity, api);
    }
}

/// Notes that there is nothing to look at.
pub(super) fn miss(applied: &mut Applied) {
    let missing = || "the control plane is not there yet".to_owned();
    (applied.inside, applied.outside) = (Err(missing()), Err(missing().into()));
}

/// Whether the API answers within a moment, inside the host, as those who use the cluster are to find it.
pub(super) async fn answers(
    context: &Context,
    cluster: &Cluster,
    identity: &Identity,
    observed: &Observed,
    reach: &Reach,
) -> bool {
    let pod = observed.staying_pod().and_then(|pod| pod.metadata.uid.as_deref());
    let inside = inside(identity, observed.service.as_deref(), reach);
    let (Some(pod), Some(inside)) = (pod, inside) else {
        return false;
    };
    let asked = async {
        let api = context.apis.client(&identity.id, Way::Inside, &inside)?;
        wait(&api, &to_serving("/readyz"), WAIT).await?;
        if !kept::had_api(cluster) {
            // Nobody may do anything before.
            api.begin(&context.base, context.clusters.params()).await?;
            note_base(context, &identity.id, pod);
        }
        Ok::<_, TenantApiError>(())
    };
    let asked = tokio::time::timeout(LOOK_LIMIT, asked).await;
    asked.is_ok_and(|answered| answered.is_ok())
}

/// Asks an API until a path answers 200, and for as long as this; what it said last if it does not.
pub(super) async fn wait(api: &TenantApi, path: &str, longest: Duration) -> Result<(), TenantApiError> {
    let began = Instant::now();
    while let Err(error) = api.check(path).await {
        if began.elapsed() >= longest {
            return Err(error);
        }
        tokio::time::sleep(EVERY).await;
    }
    Ok(())
}

/// How to reach the API inside the host; `None` while the Service has no address.
fn inside(identity: &Identity, service: Option<&Service>, reach: &Reach) -> Option<Access> {
    let address = service?.spec.as_ref()?.cluster_ip.as_deref()?;
    Some(at(identity, address.parse().ok()?, reach))
}

/// How to reach the API server of one pod.
pub(super) fn at(identity: &Identity, address: IpAddr, reach: &Reach) -> Access {
    let operator = &reach.operator;
    Access {
        url: format!("https://{}", SocketAddr::new(address, API_PORT)),
        server_name: identity.upstream_name(),
        authority: reach.root_ca.clone(),
        certificate: operator.certificate.clone(),
        key: Secret(operator.key.clone()),
    }
}

fn through_ingress(context: &Context, identity: &Identity, inside: &Access) -> Access {
    Access {
        url: secrets::ingress_url(&context.config),
        server_name: identity.public_name.to_string(),
        ..inside.clone()
    }
}

/// An API that is looked at.
struct Target<'a> {
    identity: &'a Identity,
    /// The pod that serves it.
    pod: &'a str,
    inside: &'a Access,
    /// The way through the ingress, if that is looked at too.
    ingress: Option<Access>,
}

/// Looks, unless this API has kept the operator waiting: then what was found holds for a while. Who hangs, by its own
/// webhooks or otherwise, must not take the time of the others.
async fn look_in_turn(context: &Context, target: &Target<'_>) -> Answer {
    let identity = target.identity;
    let before = context.awake(&identity.id).slow;
    if let Some((_, due, answer)) = &before
        && Instant::now() < *due
    {
        return answer.clone();
    }
    let began = Instant::now();
    let answer = match tokio::time::timeout(LOOK_LIMIT, look(context, target)).await {
        Ok(answer) => answer,
        Err(_) => {
            let why = format!("the API did not take what every cluster must have within {LOOK_LIMIT:?}");
            Answer {
                inside: Ok(()),
                outside: Err(why.into()),
            }
        }
    };
    let works = answer.inside.is_ok() && answer.outside.is_ok();
    let strikes = before.map_or(0, |(strikes, ..)| strikes);
    let slow = plan_pause(strikes, began.elapsed(), works)
        .map(|(strikes, pause)| (strikes, Instant::now() + pause, answer.clone()));
    context.note_awake(&identity.id, |awake| awake.slow = slow);
    answer
}

/// How often in a row it was slow now, and how long to leave an API alone that was: not after the first time, then longer
/// each time, up to five times as long as it took.
fn plan_pause(strikes: u32, took: Duration, works: bool) -> Option<(u32, Duration)> {
    (!works && took >= SLOW).then(|| (strikes.saturating_add(1), took * strikes.min(5)))
}

/// Asks the API, and gives it what every cluster must have.
async fn look(context: &Context, target: &Target<'_>) -> Answer {
    let Target { identity, pod, .. } = *target;
    let id = &identity.id;
    let api = match ask(context, id, Way::Inside, target.inside).await {
        Ok(api) => api,
        Err(error) => {
            let why = crate::chain(&error);
            return Answer {
                inside: Err(why.clone()),
                outside: Err(why.into()),
            };
        }
    };
    let outside = async {
        let Some(ingress) = &target.ingress else {
            return Ok(());
        };
        let asked = ask(context, id, Way::Ingress, ingress).await;
        asked.map(|_| ()).map_err(|error| Lack {
            reason: Reason::IngressPending,
            why: format!("through the ingress: {}", crate::chain(&error)),
        })
    };
    let base = async {
        let applied = apply_base(context, target, &api).await;
        applied.map_err(|error| Lack::from(crate::chain(&error)))?;
        context.guard.keep(identity, &api, &context.base);
        context.signer.keep(identity, &api);
        Ok(())
    };
    let controllers = async {
        let checked = check_controllers(context, id, pod, &api).await;
        checked.map_err(|error| Lack {
            reason: Reason::ControllersPending,
            why: crate::chain(&error),
        })
    };
    // All of them: what is missing of one must not cut off another.
    let (outside, base, controllers) = tokio::join!(outside, base, controllers);
    Answer {
        inside: Ok(()),
        outside: outside.and(base).and(controllers),
    }
}

/// Controllers that were seen at work under a pod are not asked for again.
async fn check_controllers(
    context: &Context,
    id: &ClusterId,
    pod: &str,
    api: &TenantApi,
) -> Result<(), TenantApiError> {
    if context.awake(id).controllers.as_deref() == Some(pod) {
        return Ok(());
    }
    api.check_controllers().await?;
    context.note_awake(id, |awake| awake.controllers = Some(pod.to_owned()));
    Ok(())
}

async fn ask(context: &Context, id: &ClusterId, way: Way, access: &Access) -> Result<TenantApi, TenantApiError> {
    let api = context.apis.client(id, way, access)?;
    let ready = api.check_ready().await;
    // It may be the connection that does not answer any more, where another would.
    if let Err(TenantApiError::Limit) = ready {
        context.apis.forget_way(id, way);
    }
    ready.map(|()| api)
}

async fn apply_base(context: &Context, target: &Target<'_>, api: &TenantApi) -> Result<(), TenantApiError> {
    let Target { identity, pod, .. } = *target;
    if let Some((known, since)) = context.awake(&identity.id).base
        && known == pod
        && since.elapsed() < BASE_EVERY
    {
        return Ok(());
    }
    api.apply_base(&context.base, context.clusters.params()).await?;
    note_base(context, &identity.id, pod);
    Ok(())
}

fn note_base(context: &Context, id: &ClusterId, pod: &str) {
    context.note_awake(id, |awake| awake.base = Some((pod.to_owned(), Instant::now())));
}

/// Number of Nodes; unknown if the API does not say.
async fn count_nodes(context: &Context, id: &ClusterId, inside: &Access) -> Option<i32> {
    let counted = async { context.apis.client(id, Way::Inside, inside)?.count_nodes().await };
    match counted.await {
        Ok(nodes) => Some(nodes),
        Err(error) => {
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "nodes cannot be counted");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_failures_are_followed_by_longer_pauses() {
        let second = Duration::from_secs(1);
        for (rule, strikes, took, works, expected) in [
            ("fast failure", 3, second / 2, false, None),
            ("slow success", 3, second * 4, true, None),
            ("first slow failure", 0, second * 2, false, Some((1, Duration::ZERO))),
            ("second", 1, second * 4, false, Some((2, second * 4))),
            ("many", 9, second * 4, false, Some((10, second * 20))),
        ] {
            assert_eq!(plan_pause(strikes, took, works), expected, "{rule}");
        }
    }
}
