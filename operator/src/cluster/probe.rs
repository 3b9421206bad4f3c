//! Whether a cluster's API answers: to the operator inside the host, and by the way that the kubeconfig goes.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use yoke_api::ClusterId;
use yoke_api::names::API_PORT;
use yoke_pki::plan::LeafRole;

use super::apply::Applied;
use super::build::{Materials, secrets};
use super::gate::ControlPlane;
use super::identity::Identity;
use super::observe::Observed;
use crate::context::Context;
use crate::tenant_api::{Access, Secret, TenantApi, TenantApiError, Way};

/// Base objects are applied again this often: a tenant may have removed them.
const BASE_EVERY: Duration = Duration::from_secs(600);
/// How long what a predecessor found out is believed, while the operator itself reaches nothing.
const DOORS_OPEN: Duration = Duration::from_secs(10);
const NODES_EVERY: Duration = Duration::from_secs(30);

/// What was found.
#[derive(Debug)]
struct Answer {
    /// Whether the API answers inside.
    inside: Result<(), String>,
    /// Whether what a kubeconfig needs is there: the bindings, and the way through the ingress.
    outside: Result<(), String>,
}

/// Looks whether the API answers, and notes it.
pub(super) async fn look_at_api(
    context: &Context,
    identity: &Identity,
    observed: &Observed,
    materials: &Materials,
    applied: &mut Applied,
) {
    let missing = || Err("the control plane is not there yet".to_owned());
    (applied.inside, applied.outside) = (missing(), missing());
    let ControlPlane::Running { pod, .. } = &applied.control_plane else {
        return;
    };
    let Some(inside) = inside(identity, observed.service.as_deref(), materials) else {
        return;
    };
    let id = &identity.id;
    let answer = look(context, identity, pod, &inside).await;
    let works = answer.inside.is_ok() && answer.outside.is_ok();
    let mut began = Instant::now();
    let mut answered = works;
    context.note(id, |seen| {
        let (since, before) = seen.asked.unwrap_or((began, false));
        seen.asked = Some((since, before || works));
        (began, answered) = (since, before || works);
    });
    // An operator that has just started may not be let through yet: the doors open by its pod's address.
    if !answered && observed.is_trusted && began.elapsed() < DOORS_OPEN {
        (applied.inside, applied.outside) = (Ok(()), Ok(()));
        return;
    }
    applied.inside = answer.inside;
    applied.outside = answer.outside;
    if applied.inside.is_err() || applied.outside.is_err() {
        return;
    }
    let seen = context.seen(id);
    applied.nodes = match seen.nodes {
        Some((nodes, since)) if since.elapsed() < NODES_EVERY => Some(nodes),
        _ => count_nodes(context, id, &inside).await,
    };
    if let Some(nodes) = applied.nodes {
        context.note(id, |seen| {
            let fresh = seen.nodes.is_some_and(|(_, since)| since.elapsed() < NODES_EVERY);
            if !fresh {
                seen.nodes = Some((nodes, Instant::now()));
            }
        });
    }
}

/// How to reach the API inside the host; `None` while the Service has no address.
fn inside(identity: &Identity, service: Option<&Service>, materials: &Materials) -> Option<Access> {
    let operator = materials.leaf(LeafRole::Operator);
    let address = service?.spec.as_ref()?.cluster_ip.as_deref()?;
    let address: std::net::IpAddr = address.parse().ok()?;
    Some(Access {
        url: format!("https://{}", std::net::SocketAddr::new(address, API_PORT)),
        server_name: identity.upstream_name(),
        authority: materials.root_ca.clone(),
        certificate: operator.certificate.clone(),
        key: Secret(operator.key.clone()),
    })
}

fn through_ingress(context: &Context, identity: &Identity, inside: &Access) -> Access {
    Access {
        url: secrets::ingress_url(&context.config),
        server_name: identity.public_name.to_string(),
        ..inside.clone()
    }
}

/// Asks the API, and gives it what every cluster must have.
async fn look(context: &Context, identity: &Identity, pod: &str, inside: &Access) -> Answer {
    let id = &identity.id;
    let api = match ask(context, id, Way::Inside, inside).await {
        Ok(api) => api,
        Err(error) => {
            let why = crate::chain(&error);
            return Answer {
                inside: Err(why.clone()),
                outside: Err(why),
            };
        }
    };
    let ingress = through_ingress(context, identity, inside);
    let outside = async {
        if !context.config.ingress.probe {
            return Ok(());
        }
        match ask(context, id, Way::Ingress, &ingress).await {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("through the ingress: {}", crate::chain(&error))),
        }
    };
    let base = async {
        apply_base(context, id, pod, &api)
            .await
            .map_err(|error| crate::chain(&error))
    };
    Answer {
        inside: Ok(()),
        outside: tokio::try_join!(outside, base).map(|_| ()),
    }
}

async fn ask(context: &Context, id: &ClusterId, way: Way, access: &Access) -> Result<TenantApi, TenantApiError> {
    let api = context.apis.client(id, way, access)?;
    api.check_ready().await?;
    Ok(api)
}

async fn apply_base(context: &Context, id: &ClusterId, pod: &str, api: &TenantApi) -> Result<(), TenantApiError> {
    if let Some((known, since)) = context.seen(id).base
        && known == pod
        && since.elapsed() < BASE_EVERY
    {
        return Ok(());
    }
    api.apply_base(&context.base, context.clusters.params()).await?;
    context.note(id, |seen| seen.base = Some((pod.to_owned(), Instant::now())));
    Ok(())
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
