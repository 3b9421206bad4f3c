//! The published ingress configuration of a Cluster: a ConfigMap in its control-plane namespace.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use yoke_api::ingress::{Asleep, CONFIG_KEY, IngressConfig};
use yoke_api::names::INGRESS_CONFIG_MAP;

use crate::cluster::context::Context;
use crate::cluster::resources::objects;
use crate::error::ReconcileError;
use crate::model::identity::Identity;

/// The published ingress configuration, without certificates and keys.
pub(crate) fn read_published(context: &Context, identity: &Identity) -> Option<IngressConfig> {
    let key = ObjectRef::<ConfigMap>::new(INGRESS_CONFIG_MAP).within(identity.hosted().as_str());
    let map = context.host.caches.config_maps.get(&key)?;
    parse_config(&map)
}

fn parse_config(map: &ConfigMap) -> Option<IngressConfig> {
    let text = map.data.as_ref()?.get(CONFIG_KEY)?;
    serde_json::from_str(text).ok()
}

/// Changes the published ingress configuration, which is read from the host API first.
pub(crate) async fn update_published(
    context: &Context,
    identity: &Identity,
    change: impl FnOnce(&mut IngressConfig),
) -> Result<(), ReconcileError> {
    let api = Api::<ConfigMap>::namespaced(context.host.client.clone(), identity.hosted().as_str());
    let map = api.get_opt(INGRESS_CONFIG_MAP).await;
    let map = map.map_err(ReconcileError::host("the ingress configuration"))?;
    let Some(mut ingress_config) = map.as_ref().and_then(parse_config) else {
        return Ok(());
    };
    change(&mut ingress_config);
    let map = objects::build_ingress_map(identity, &ingress_config);
    context.applier.apply(&context.host.caches.config_maps, &map).await?;
    Ok(())
}

/// Publishes whether the API is available; the rest of the ingress configuration stays.
pub(crate) async fn publish_sleep_state(
    context: &Context,
    identity: &Identity,
    asleep: Option<Asleep>,
) -> Result<(), ReconcileError> {
    if read_published(context, identity).is_none_or(|published| published.asleep == asleep) {
        return Ok(());
    }
    update_published(context, identity, |ingress_config| ingress_config.asleep = asleep).await
}
