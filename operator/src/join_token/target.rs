//! Finds the Cluster that a JoinToken is for, and its API.

use std::sync::Arc;

use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use yoke_api::cluster::DesiredState;
use yoke_api::{Cluster, ConditionType, JoinToken, Reason};

use crate::join_token::context::Context;
use crate::join_token::plan;
use crate::model::conditions::{self, State};
use crate::model::identity::Identity;
use crate::tenant_client::{TenantApi, Way};

/// Returns the Cluster of a JoinToken and its API. If that does not answer, returns the state to
/// report: `None` if this operator has not probed the API yet.
pub(super) fn find_cluster(
    context: &Context,
    token: &JoinToken,
) -> Result<(Identity, Arc<Cluster>, TenantApi), Option<State>> {
    let tenant = token.namespace().unwrap_or_default();
    let name = &token.spec.cluster_name;
    let cluster = context.host.caches.clusters.get(&ObjectRef::new(name).within(&tenant));
    let cluster = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    let missing = || {
        Some(State::no(
            Reason::ClusterMissing,
            format!("No Cluster named {name} exists."),
        ))
    };
    let cluster = cluster.ok_or_else(missing)?;
    let identity = Identity::of(&cluster, &context.host.config.base_domain);
    if identity
        .as_ref()
        .is_some_and(|identity| plan::is_of_another(token, &identity.id))
    {
        let message = format!(
            "Cluster {name} was deleted and created again. This JoinToken is for the deleted one: create a new \
         JoinToken."
        );
        return Err(Some(State::no(Reason::ClusterReplaced, message)));
    }
    let is_ready = conditions::status_of(&cluster, ConditionType::APIServerAvailable) == Some("True")
        && cluster.spec.state == DesiredState::Running;
    let api = identity
        .as_ref()
        .and_then(|identity| context.apis.known(&identity.id, Way::Inside));
    match (identity, api) {
        (Some(identity), Some(api)) if is_ready => Ok((identity, cluster, api)),
        (Some(_), None) if is_ready => Err(None),
        _ => Err(Some(State::no(
            Reason::ClusterNotReady,
            format!("The API of Cluster {name} does not answer."),
        ))),
    }
}
