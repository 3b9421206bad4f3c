//! The first step of a reconcile: reads everything that its decisions need, into one [`View`].
//!
//! Most of it comes from watch caches. Requests to other processes are made only when a decision needs
//! their answer: the CA's certificate for extra host names, the store's activity report when sleep may
//! be due, the host's clock when the lifetime is over.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use yoke_api::{Cluster, Tenant};
use yoke_pki::ParsedCertificate;
use yoke_pki::plan::AuthorityRole;

use crate::cluster::context::Context;
use crate::cluster::history::{answered_version, running_version};
use crate::cluster::lifecycle::ttl;
use crate::cluster::object;
use crate::cluster::observed::{self, Observed};
use crate::cluster::sleep::inputs::{self, SleepInputs};
use crate::cluster::stop::Stop;
use crate::cluster::tenant_cluster::konnectivity;
use crate::cluster::validate::ValidationContext;
use crate::config::Config;
use crate::error::ReconcileError;
use crate::host_api::cache::ByIdentity;
use crate::host_api::certificate_authority;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::identity::Identity;
use crate::model::tenant_namespace;

/// A Cluster, and everything that the decisions about it need.
#[derive(Debug)]
pub(crate) struct View<'c> {
    /// The host's configuration.
    pub(crate) config: &'c Config,
    /// The Cluster with its last recorded sleep request, and with the operator's choice of
    /// konnectivity.
    pub(crate) cluster: Cluster,
    /// Names of the Cluster's objects.
    pub(crate) identity: Identity,
    /// The objects of the Cluster on the host.
    pub(crate) observed: Observed,
    /// Remaining lifetime by `spec.ttl`; `None` without a limit.
    pub(crate) lifetime: Option<Duration>,
    /// Inputs that may send the Cluster to sleep.
    pub(crate) sleep: SleepInputs,
    /// The CA that limits the extra host names; `None` for a Cluster without any, as most are.
    pub(crate) ca: Result<Option<ParsedCertificate>, Arc<ReconcileError>>,
    tenant: Option<Arc<Tenant>>,
    namespace_is_tenants: bool,
    tenants: Vec<Arc<Tenant>>,
    /// Clusters that may conflict with this one.
    conflict_candidates: Vec<Arc<ClusterSummary>>,
    reserved: ByIdentity,
}

/// Observes a Cluster that has its identity.
pub(crate) async fn observe<'c>(context: &'c Context, cluster: Cluster, now: Timestamp) -> Result<View<'c>, Stop> {
    let (host, config) = (&context.host, &context.host.config);
    let cluster = object::overlay_pending_sleep(context, cluster).await?;
    let cluster = cluster.ok_or(Stop::Changed)?;
    let identity = Identity::of(&cluster, &config.base_domain).ok_or(Stop::NoIdentity)?;
    let lifetime = ttl::find_remaining_lifetime(&host.client, &cluster, now).await?;
    let observed = observed::find_for_cluster(&host.caches, &cluster, &identity);
    let sleep = match lifetime.is_some_and(|lifetime| lifetime.is_zero()) {
        true => SleepInputs::default(),
        false => inputs::read_sleep_inputs(context, &cluster, &identity, &observed, now).await,
    };
    let ca = match cluster.spec.endpoint.extra_sans.is_empty() {
        true => Ok(None),
        false => certificate_authority::find_authority(&host.client, &identity.id, AuthorityRole::Cluster).await,
    };
    let caches = &host.caches;
    let tenant = caches.tenants.get(&ObjectRef::new(&identity.tenant));
    let namespace = caches.namespaces.get(&ObjectRef::new(&identity.tenant));
    let namespace_is_tenants = match (&tenant, &namespace) {
        (Some(tenant), Some(namespace)) => tenant_namespace::is_owned(namespace, tenant),
        _ => false,
    };
    Ok(View {
        config,
        conflict_candidates: caches.clusters.summaries_in_conflict(&cluster),
        tenants: caches.tenants.state(),
        reserved: caches.reserved.of(&identity.tenant),
        cluster: konnectivity::resolve_konnectivity(caches, cluster, &observed),
        identity,
        observed,
        lifetime,
        sleep,
        ca: ca.map_err(Arc::new),
        tenant,
        namespace_is_tenants,
    })
}

impl<'c> View<'c> {
    /// Everything that the spec is validated against.
    pub(crate) fn validation_context(&self) -> ValidationContext<'c, '_> {
        ValidationContext {
            config: self.config,
            tenant: self.tenant.as_deref(),
            namespace_is_tenants: self.namespace_is_tenants,
            tenants: &self.tenants,
            clusters: &self.conflict_candidates,
            reserved: ByIdentity::clone(&self.reserved),
            running: running_version(&self.cluster),
            answered: answered_version(&self.cluster),
        }
    }
}
