//! Whether a cluster's API answers: to the operator inside the host, and by the way that the kubeconfig goes.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use yoke_api::ClusterId;
use yoke_api::names::API_PORT;

use super::build::{Blueprint, Materials, secrets};
use crate::context::Context;
use crate::tenant_api::{Access, Secret, TenantApi, TenantApiError, Way};

/// Base objects are applied again this often: a tenant may have removed them.
const BASE_EVERY: Duration = Duration::from_secs(600);

/// What was found.
#[derive(Debug)]
pub(super) struct Answer {
    /// Whether the API answers inside.
    pub(super) inside: Result<(), String>,
    /// Whether what a kubeconfig needs is there: the bindings, and the way through the ingress.
    pub(super) outside: Result<(), String>,
}

/// How to reach the API inside the host; `None` while the Service has no address.
pub(super) fn inside(
    blueprint: &Blueprint<'_>,
    service: Option<&Service>,
    operator: &secrets::Leaf,
    materials: &Materials,
) -> Option<Access> {
    let address = service?.spec.as_ref()?.cluster_ip.as_deref()?;
    let address: std::net::IpAddr = address.parse().ok()?;
    Some(Access {
        url: format!("https://{}", std::net::SocketAddr::new(address, API_PORT)),
        server_name: blueprint.identity.upstream_name(),
        authority: materials.root_ca.clone(),
        certificate: operator.certificate.clone(),
        key: Secret(operator.key.clone()),
    })
}

fn through_ingress(blueprint: &Blueprint<'_>, inside: &Access) -> Access {
    Access {
        url: secrets::ingress_url(blueprint.config),
        server_name: blueprint.identity.public_name.to_string(),
        ..inside.clone()
    }
}

/// Asks the API, and gives it what every cluster must have.
pub(super) async fn look(context: &Context, blueprint: &Blueprint<'_>, pod: &str, inside: &Access) -> Answer {
    let id = &blueprint.identity.id;
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
    let ingress = through_ingress(blueprint, inside);
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
pub(super) async fn count_nodes(context: &Context, id: &ClusterId, inside: &Access) -> Option<i32> {
    let counted = async { context.apis.client(id, Way::Inside, inside)?.count_nodes().await };
    match counted.await {
        Ok(nodes) => Some(nodes),
        Err(error) => {
            tracing::warn!(cluster = %id, error = %crate::chain(&error), "nodes cannot be counted");
            None
        }
    }
}
