//! Deletes the objects of a Cluster that was deleted without the operator: its finalizer was
//! removed by hand.
//!
//! Only objects with the operator's own labels are collected, once no Cluster has had their
//! identity for a while. The host API must confirm that before anything is deleted, and again
//! before the streams are deleted.
//!
//! The order is that of every deletion, with one exception: streams are deleted right after the
//! user that wrote to them. They are deleted only if the control-plane namespace records
//! `deletionPolicy: Delete`. Otherwise the data is retained. If many Clusters are missing, nothing is collected.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{ListParams, ObjectMeta};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt as _};
use yoke_api::cluster::DeletionPolicy;
use yoke_api::names::{HOSTED_NAMESPACE_PREFIX, PKI_NAMESPACE};
use yoke_api::{Cluster, ClusterId, Lenient, Reason, labels};
use yoke_runtime::Drain;

use crate::cluster::context::Context;
use crate::cluster::credentials::persisted;
use crate::cluster::lifecycle::delete;
use crate::cluster::observed;
use crate::error::ReconcileError;
use crate::host_api::events::Notice;
use crate::model::identity::Identity;
use crate::nats::Size;

/// Interval of looking for orphans.
const SWEEP_EVERY: Duration = Duration::from_secs(30);
/// How long no Cluster may have an identity before its objects are deleted: a restored Cluster
/// needs them.
const ABSENT: Duration = Duration::from_secs(600);

/// Number of Clusters that may be missing at once, or one in `PART` of all if that is more. With
/// more, the host is assumed to be in a restore, which creates its Clusters last.
const FEW: usize = 3;
const PART: usize = 4;

/// Identities without a Cluster: since when, and whether their removal was published.
#[derive(Debug, Default)]
pub struct Orphans {
    since: HashMap<ClusterId, (Instant, bool)>,
    /// Number of orphans that are retained because there are too many.
    retained: usize,
}

/// Collects orphans until the process ends.
pub async fn collect_orphans(context: Arc<Context>, drain: Drain) -> Result<(), std::convert::Infallible> {
    let mut orphans = Orphans::default();
    while drain.until_started(tokio::time::sleep(SWEEP_EVERY)).await.is_some() {
        if drain
            .until_started(orphans.sweep(&context, Instant::now()))
            .await
            .is_none()
        {
            break;
        }
    }
    Ok(())
}

impl Orphans {
    /// Runs one deletion step for each identity that has been without its Cluster for long enough.
    pub async fn sweep(&mut self, context: &Context, now: Instant) {
        let (found, all) = find_orphans(context);
        self.since.retain(|id, (_, is_reported)| {
            let stays = found.contains_key(id);
            if !stays && *is_reported {
                context.forget(id);
            }
            stays
        });
        if self.retain_if_many(context, found.len(), all) {
            // Their time starts again once the other Clusters exist.
            self.since.values_mut().for_each(|(since, _)| *since = now);
            return;
        }
        for (id, identity) in found {
            let (since, is_reported) = *self.since.entry(id.clone()).or_insert((now, false));
            if now.duration_since(since) < ABSENT {
                continue;
            }
            match is_gone(context, &identity).await {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    tracing::warn!(cluster = %id, error = %crate::chain(&error), "Clusters cannot be listed");
                    continue;
                }
            }
            if !is_reported {
                publish_orphaned(context, &identity).await;
                self.since.insert(id.clone(), (since, true));
            }
            if let Err(error) = Box::pin(delete_orphan(context, &identity)).await {
                tracing::warn!(cluster = %id, error = %crate::chain(&error), "orphaned objects of a Cluster cannot be deleted");
            }
        }
    }

    /// Retains all orphans if there are too many, and logs a change of their number. Returns whether
    /// they are retained.
    fn retain_if_many(&mut self, context: &Context, orphans: usize, all: usize) -> bool {
        let retained = if are_many(orphans, all) { orphans } else { 0 };
        if retained > 0 && retained != self.retained {
            tracing::warn!(
                held = retained,
                all,
                "too many Clusters are missing, so their objects are retained; restore the Clusters, or delete their \
         namespaces"
            );
        }
        self.retained = retained;
        context.metrics.set_retained_orphans(retained);
        retained > 0
    }
}

fn are_many(orphans: usize, all: usize) -> bool {
    orphans > FEW.max(all / PART)
}

/// Identities of control-plane namespaces and persisted Secrets without a Cluster, and the number
/// of all identities.
fn find_orphans(context: &Context) -> (BTreeMap<ClusterId, Identity>, usize) {
    let caches = &context.host.caches;
    let clusters = caches.clusters.summaries();
    let of_clusters: HashSet<_> = clusters.iter().filter_map(|cluster| cluster.identity()).collect();
    let (mut found, mut owned) = (BTreeMap::new(), HashSet::new());
    // Nearly all names belong to existing Clusters, which have a dozen each.
    let mut has_no_cluster = |id: Option<&str>| match id.and_then(|id| of_clusters.get(id)) {
        Some(id) => {
            owned.insert(id);
            false
        }
        None => true,
    };
    let namespaces = caches
        .namespaces
        .names("", |name| has_no_cluster(name.strip_prefix(HOSTED_NAMESPACE_PREFIX)));
    let secrets = caches
        .secrets
        .names(PKI_NAMESPACE, |name| has_no_cluster(name.split('-').next()));
    let mut add = |meta: &ObjectMeta| {
        if let Some(identity) = read_identity(meta, &context.host.config.base_domain) {
            found.entry(identity.id.clone()).or_insert(identity);
        }
    };
    for name in namespaces {
        let namespace = caches.namespaces.get(&ObjectRef::new(&name));
        let id = namespace.as_deref().and_then(|namespace| id_of(&namespace.metadata));
        if let (Some(namespace), Some(id)) = (namespace, id)
            && id.hosted_namespace().as_str() == name
        {
            add(&namespace.metadata);
        }
    }
    for name in secrets {
        let secret = caches.secrets.get(&ObjectRef::new(&name).within(PKI_NAMESPACE));
        // The Secret of a store with retained data is no orphan.
        if let Some(secret) = secret.filter(|secret| !persisted::is_retained(secret)) {
            add(&secret.metadata);
        }
    }
    found.retain(|id, _| !of_clusters.contains(id));
    let all = found.len() + owned.len();
    (found, all)
}

fn id_of(meta: &ObjectMeta) -> Option<ClusterId> {
    meta.labels.as_ref()?.get(labels::ID)?.parse().ok()
}

/// The identity of the Cluster that owned an object.
fn read_identity(meta: &ObjectMeta, base_domain: &str) -> Option<Identity> {
    let label = |key: &str| meta.labels.as_ref().and_then(|all| all.get(key)).cloned();
    let (id, cluster) = (id_of(meta)?, label(labels::CLUSTER)?);
    let annotations = meta.annotations.as_ref();
    let uid = annotations.and_then(|all| all.get(labels::OWNER_UID)).cloned();
    Some(Identity {
        public_name: id.public_name(&cluster, base_domain),
        id,
        tenant: label(labels::TENANT)?,
        cluster,
        uid: uid.unwrap_or_default(),
    })
}

/// Whether no Cluster has the identity now, by the host API: the watch may have missed one.
async fn is_gone(context: &Context, identity: &Identity) -> Result<bool, ReconcileError> {
    let failed = ReconcileError::host("Clusters of an identity");
    let labelled = ListParams::default().labels(&format!("{}={}", labels::ID, identity.id));
    let others = Api::<Lenient<Cluster>>::all(context.host.client.clone());
    let same_name = Api::<Lenient<Cluster>>::namespaced(context.host.client.clone(), &identity.tenant);
    let (others, same_name) =
        tokio::try_join!(others.list(&labelled), same_name.get_opt(&identity.cluster)).map_err(failed)?;
    Ok(others.items.is_empty()
        && same_name.is_none_or(|cluster| {
            // The identity of a Cluster that cannot be parsed is unknown.
            let id = cluster.0.ok().and_then(|cluster| cluster.id());
            id.is_some_and(|id| id != identity.id)
        }))
}

async fn publish_orphaned(context: &Context, identity: &Identity) {
    let (tenant, cluster) = (&identity.tenant, &identity.cluster);
    tracing::warn!(cluster = %identity.id, namespace = tenant, name = cluster, "Cluster was deleted without its finalizer; its objects are deleted now");
    if let Some(owner) = context.host.caches.tenants.get(&ObjectRef::new(tenant)) {
        let notice = Notice {
            warning: true,
            action: "Collect",
            reason: Reason::Orphaned,
            note: format!(
                "Cluster {cluster} ({}) was deleted without the operator; its objects are deleted now.",
                identity.id
            ),
        };
        context.host.events.publish(owner.as_ref(), &[notice]).await;
    }
}

async fn delete_orphan(context: &Context, identity: &Identity) -> Result<(), ReconcileError> {
    let observed = observed::find_by_identity(&context.host.caches, identity);
    let annotations = observed.namespace.as_deref().map(|namespace| namespace.annotations());
    let policy = match annotations
        .and_then(|all| all.get(labels::DELETION_POLICY))
        .map(String::as_str)
    {
        Some(labels::DELETION_POLICY_DELETE) => DeletionPolicy::Delete,
        _ => DeletionPolicy::Retain,
    };
    let account = persisted::find_account(context, identity, None, Size::default()).await?;
    if delete::stop_control_plane(context, identity, &observed, account.as_ref())
        .await?
        .is_some()
    {
        return Ok(());
    }
    // Everything but the streams can be created again.
    if !is_gone(context, identity).await? {
        return Ok(());
    }
    // The namespace has the deletion policy of the streams, so they are deleted before it.
    if !delete::remove_store(context, policy, identity, account).await? {
        delete::remove_objects(context, identity, &observed).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_are_many_beyond_a_number_and_a_share() {
        for (orphans, all, expected) in [
            (3, 3, false),
            (4, 4, true),
            (4, 19, false),
            (5, 20, false),
            (6, 20, true),
        ] {
            assert_eq!(are_many(orphans, all), expected, "{orphans} of {all}");
        }
    }
}
