//! Deletes the objects of a Cluster that was deleted without the operator: its finalizer was
//! removed by hand.
//!
//! Only objects with the operator's own labels are collected, once no Cluster has had their
//! identity for a while. The host API must confirm that before anything is deleted, and again
//! before the streams are deleted.
//!
//! The order is that of every deletion, with one exception: streams are deleted right after the
//! user that wrote to them. They are deleted only if the control-plane namespace has that deletion
//! policy; without it the data is retained. If many Clusters are missing, nothing is collected.

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
const EVERY: Duration = Duration::from_secs(30);
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
    /// Number of orphans that are left alone because there are too many.
    held: usize,
}

/// Collects orphans until the process ends.
pub async fn run(context: Arc<Context>, drain: Drain) -> Result<(), std::convert::Infallible> {
    let mut orphans = Orphans::default();
    while drain.until_started(tokio::time::sleep(EVERY)).await.is_some() {
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
        let (found, all) = find(context);
        self.since.retain(|id, (_, is_reported)| {
            let stays = found.contains_key(id);
            if !stays && *is_reported {
                context.forget(id);
            }
            stays
        });
        if self.hold(context, found.len(), all) {
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
                tell(context, &identity).await;
                self.since.insert(id.clone(), (since, true));
            }
            if let Err(error) = Box::pin(collect(context, &identity)).await {
                tracing::warn!(cluster = %id, error = %crate::chain(&error), "orphaned objects of a Cluster cannot be deleted");
            }
        }
    }

    /// Whether the number of orphans is too high to collect any. A change of that number is logged.
    fn hold(&mut self, context: &Context, orphans: usize, all: usize) -> bool {
        let held = if are_many(orphans, all) { orphans } else { 0 };
        if held > 0 && held != self.held {
            tracing::warn!(
                held,
                all,
                "too many Clusters are missing, so their objects are retained; restore the Clusters, or delete their \
         namespaces"
            );
        }
        self.held = held;
        context.metrics.hold_orphans(held);
        held > 0
    }
}

fn are_many(orphans: usize, all: usize) -> bool {
    orphans > FEW.max(all / PART)
}

/// Identities of control-plane namespaces and persisted Secrets without a Cluster, and the number
/// of all identities.
fn find(context: &Context) -> (BTreeMap<ClusterId, Identity>, usize) {
    let caches = &context.host.caches;
    let clusters = caches.clusters.summaries();
    let living: HashSet<_> = clusters.iter().filter_map(|cluster| cluster.identity()).collect();
    let (mut found, mut had) = (BTreeMap::new(), HashSet::new());
    // Nearly all names belong to existing Clusters, which have a dozen each.
    let mut is_left = |id: Option<&str>| match id.and_then(|id| living.get(id)) {
        Some(id) => {
            had.insert(id);
            false
        }
        None => true,
    };
    let namespaces = caches
        .namespaces
        .names("", |name| is_left(name.strip_prefix(HOSTED_NAMESPACE_PREFIX)));
    let secrets = caches
        .secrets
        .names(PKI_NAMESPACE, |name| is_left(name.split('-').next()));
    let mut see = |meta: &ObjectMeta| {
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
            see(&namespace.metadata);
        }
    }
    for name in secrets {
        let secret = caches.secrets.get(&ObjectRef::new(&name).within(PKI_NAMESPACE));
        // The Secret of a store with retained data is no orphan.
        if let Some(secret) = secret.filter(|secret| !persisted::is_retained(secret)) {
            see(&secret.metadata);
        }
    }
    found.retain(|id, _| !living.contains(id));
    let all = found.len() + had.len();
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
    let asking = ReconcileError::host("Clusters of an identity");
    let labelled = ListParams::default().labels(&format!("{}={}", labels::ID, identity.id));
    let others = Api::<Lenient<Cluster>>::all(context.host.client.clone());
    let named = Api::<Lenient<Cluster>>::namespaced(context.host.client.clone(), &identity.tenant);
    let (others, named) = tokio::try_join!(others.list(&labelled), named.get_opt(&identity.cluster)).map_err(asking)?;
    Ok(others.items.is_empty()
        && named.is_none_or(|cluster| {
            // The identity of a Cluster that cannot be parsed is unknown.
            let id = cluster.0.ok().and_then(|cluster| cluster.id());
            id.is_some_and(|id| id != identity.id)
        }))
}

async fn tell(context: &Context, identity: &Identity) {
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

async fn collect(context: &Context, identity: &Identity) -> Result<(), ReconcileError> {
    let observed = observed::find(&context.host.caches, identity);
    let annotations = observed.namespace.as_deref().map(|namespace| namespace.annotations());
    let policy = match annotations
        .and_then(|all| all.get(labels::DELETION_POLICY))
        .map(String::as_str)
    {
        Some(labels::DELETION_POLICY_DELETE) => DeletionPolicy::Delete,
        _ => DeletionPolicy::Retain,
    };
    let account = persisted::find_account(context, identity, None, Size::default()).await?;
    if delete::stop(context, identity, &observed, account.as_ref())
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
    fn more_than_a_few_and_a_part_of_all_are_many() {
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
