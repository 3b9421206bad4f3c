//! Reads and creates the Secret with the join data.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::join_token::{key, secret_name};
use yoke_api::{Cluster, JoinToken};
use yoke_pki::plan::{AuthorityRole, Generation};

use crate::error::ReconcileError;
use crate::host_api::{Host, certificate_authority};
use crate::join_token::build;
use crate::join_token::context::Context;
use crate::model::identity::Identity;
use crate::model::join_token_term;
use crate::model::tenant_namespace::{ROLE, names_secret};
use crate::tenant_client::BootstrapToken;

/// Returns whether the Secret of a JoinToken exists, by the watch cache.
pub(crate) fn has_secret(host: &Host, token: &JoinToken) -> bool {
    find_secret(host, token).is_some()
}

/// Returns whether the Tenant may read the Secret, by the watch cache.
pub(super) fn is_readable(context: &Context, token: &JoinToken) -> bool {
    let key = ObjectRef::<Role>::new(ROLE).within(&token.namespace().unwrap_or_default());
    let role = context.host.caches.roles.get(&key);
    role.is_some_and(|role| names_secret(&role, &secret_name(&token.name_any())))
}

/// Returns the Secret of a JoinToken, by the watch cache.
pub(super) fn find_secret(host: &Host, token: &JoinToken) -> Option<Arc<Secret>> {
    let name = secret_name(&token.name_any());
    let key = ObjectRef::<Secret>::new(&name).within(&token.namespace().unwrap_or_default());
    let known = host.caches.secrets.get(&key);
    known.filter(|secret| build::is_of(secret, token))
}

/// Returns the token in the Secret with the join data. Creates the Secret if it does not exist, and
/// never changes it. `None` if a Secret with this name is owned by another.
pub(super) async fn ensure_secret(
    context: &Context,
    token: &JoinToken,
    identity: &Identity,
    cluster: &Cluster,
) -> Result<Option<BootstrapToken>, ReconcileError> {
    let secrets = Api::<Secret>::namespaced(context.host.client.clone(), &identity.tenant);
    let name = secret_name(&token.name_any());
    let expires = join_token_term::end(token).unwrap_or(Timestamp::MIN);
    let found = secrets.get_opt(&name).await.map_err(ReconcileError::host("a Secret"))?;
    if let Some(found) = found {
        let text = found.data.as_ref().and_then(|data| data.get(key::TOKEN));
        let text = text.and_then(|bytes| std::str::from_utf8(&bytes.0).ok());
        if let (true, Some(drawn)) = (
            build::is_of(&found, token) && build::is_for(&found, identity),
            text.and_then(|text| build::read_token(text, expires)),
        ) {
            return Ok(Some(drawn));
        }
        if !build::is_ours(&found) {
            return Ok(None);
        }
        // Left over from a JoinToken with the same name, or from one whose Cluster was deleted
        // before the Secret was published.
        context.applier.delete(&secrets, &found).await?;
        return Err(ReconcileError::Contended("a JoinToken's Secret"));
    }
    let drawn = build::draw_token(expires);
    let materials = build::Materials {
        root: context.host.root_certificate().await?,
        client_ca: find_client_ca(context, identity).await?,
        version: cluster
            .status
            .as_ref()
            .and_then(|status| status.version.clone())
            .unwrap_or_default(),
        pod_network: cluster.spec.addons.pod_network.enabled,
    };
    let secret = build::build_secret(token, identity, &context.host.config, &materials, &drawn);
    match context.applier.create(&secrets, &secret).await? {
        Some(_) => Ok(Some(drawn)),
        None => Err(ReconcileError::Contended("a JoinToken's Secret")),
    }
}

/// Returns the cluster's own CA, without the certificates above it.
async fn find_client_ca(context: &Context, identity: &Identity) -> Result<String, ReconcileError> {
    let role = AuthorityRole::Cluster;
    let found = certificate_authority::find_authority(&context.host.client, &identity.id, role).await?;
    let missing = || ReconcileError::CredentialMissing {
        name: role.object_name(&identity.id, Generation::FIRST),
        key: "tls.crt",
    };
    found.map(|found| found.to_pem()).ok_or_else(missing)
}
