//! Creates and removes the Tenants and their Clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::task::JoinSet;
use yoke_api::labels::{SLEEP, SLEEP_NOW};
use yoke_api::tenant::TenantQuota;
use yoke_api::{Cluster, ClusterSpec, ConditionType, Tenant, TenantSpec, names};
use yoke_bench_harness::clusters::is_awake;
use yoke_e2e::tenant::is_true;
use yoke_e2e::{Stack, watch_for};

use crate::arguments::Arguments;
use crate::progress::say;
use crate::table::{print_head, print_row};

const TENANT: &str = "e2e-density";
/// Storage of one Cluster. NATS reserves a multiple of it, and the stack's NATS may reserve a
/// terabyte.
const QUOTA: &str = "16Mi";
const STEP_LIMIT: Duration = Duration::from_secs(180);
/// Timeout without progress: maximum time in which no further Cluster is settled or removed.
const STALLED: Duration = Duration::from_secs(300);

/// State in which a Cluster is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Asleep,
    Awake,
}

/// All Clusters of the run.
pub(crate) struct Fleet {
    pub(crate) stack: Stack,
    tenants: usize,
    rate: f64,
    kinds: Vec<Kind>,
    files: tempfile::TempDir,
}

/// How long the creation of each Cluster took.
pub(crate) struct Made {
    accepted: Vec<Duration>,
    settled: BTreeMap<Kind, Vec<Duration>>,
    rate: f64,
    took: Duration,
}

impl Fleet {
    /// Plans the Clusters that the arguments request. Creates none of them.
    pub(crate) fn new(stack: &Stack, arguments: &Arguments) -> Result<Self> {
        ensure!(
            arguments.awake <= arguments.clusters,
            "more Clusters awake than there are"
        );
        ensure!(arguments.tenants > 0, "no Tenant");
        Ok(Self {
            stack: stack.clone(),
            tenants: arguments.tenants,
            rate: arguments.rate,
            kinds: plan_kinds(arguments.clusters, arguments.awake),
            files: tempfile::tempdir().context("making a folder")?,
        })
    }

    /// Removes the remains of an earlier run, and creates the Tenants.
    pub(crate) async fn prepare(&self) -> Result<()> {
        self.remove().await.context("removing what an earlier run left")?;
        let tenants: Api<Tenant> = Api::all(self.stack.host.clone());
        for number in 0..self.tenants {
            let name = tenant_name(number);
            let tenant = Tenant::new(&name, self.tenant_spec());
            tenants.create(&PostParams::default(), &tenant).await?;
            let what = format!("Tenant {name} to be Ready");
            watch_for(&what, STEP_LIMIT, tenants.clone(), &name, |tenant: Option<Tenant>| {
                let status = tenant.and_then(|tenant| tenant.status);
                let ready = status.is_some_and(|status| is_true(&status.conditions, ConditionType::Ready));
                Ok(ready.then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    fn tenant_spec(&self) -> TenantSpec {
        TenantSpec {
            quota: TenantQuota {
                clusters: i32::try_from(self.count()).unwrap_or(i32::MAX),
                storage: Quantity("1Ti".into()),
                ..TenantQuota::default()
            },
            ..TenantSpec::default()
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.kinds.len()
    }

    /// The numbers of the Clusters of a kind.
    pub(crate) fn of(&self, kind: Kind) -> impl Iterator<Item = usize> {
        let all = self.kinds.iter().enumerate();
        all.filter(move |(_, other)| **other == kind).map(|(number, _)| number)
    }

    /// The Clusters API of the Cluster's Tenant, and the name of the Cluster.
    pub(crate) fn place(&self, number: usize) -> (Api<Cluster>, String) {
        (self.clusters_of(&self.tenant_of(number)), format!("c{number}"))
    }

    fn tenant_of(&self, number: usize) -> String {
        tenant_name(number % self.tenants)
    }

    fn clusters_of(&self, tenant: &str) -> Api<Cluster> {
        Api::namespaced(self.stack.host.clone(), tenant)
    }

    /// Writes the kubeconfig of a Cluster to a file, and returns its path.
    pub(crate) async fn kubeconfig(&self, number: usize) -> Result<PathBuf> {
        let secrets: Api<Secret> = Api::namespaced(self.stack.host.clone(), &self.tenant_of(number));
        let name = names::kubeconfig_secret(&format!("c{number}"));
        let data = secrets.get(&name).await?.data.unwrap_or_default();
        let value = data
            .get(names::KUBECONFIG_KEY)
            .context("the Secret has no kubeconfig")?;
        let path = self.files.path().join(format!("c{number}"));
        std::fs::write(&path, &value.0).context("writing a kubeconfig")?;
        Ok(path)
    }

    /// Creates all Clusters at a fixed rate, and waits until each is settled.
    pub(crate) async fn make(&self) -> Result<Made> {
        let begun = Instant::now();
        let watch = tokio::spawn(watch_settled(self.stack.clone(), self.kinds.clone()));
        let mut pace = tokio::time::interval(Duration::from_secs_f64(1.0 / self.rate));
        let mut asked = Vec::new();
        let mut answers = JoinSet::new();
        for (number, kind) in self.kinds.iter().enumerate() {
            pace.tick().await;
            asked.push(Instant::now());
            let ((clusters, name), kind) = (self.place(number), *kind);
            answers.spawn(async move {
                let begun = Instant::now();
                clusters
                    .create(&PostParams::default(), &build(&name, kind))
                    .await
                    .with_context(|| format!("making Cluster {name}"))?;
                Ok::<_, anyhow::Error>(begun.elapsed())
            });
        }
        let rate = self.count() as f64 / begun.elapsed().as_secs_f64();
        let mut accepted = Vec::new();
        while let Some(answer) = answers.join_next().await {
            accepted.push(answer??);
        }
        let mut settled = BTreeMap::<Kind, Vec<Duration>>::new();
        for (number, at) in watch.await?? {
            let time = at.saturating_duration_since(asked[number]);
            settled.entry(self.kinds[number]).or_default().push(time);
        }
        Ok(Made {
            accepted,
            settled,
            rate,
            took: begun.elapsed(),
        })
    }

    /// Number of Clusters that are not settled.
    pub(crate) async fn count_unsettled(&self) -> Result<usize> {
        let clusters: Api<Cluster> = Api::all(self.stack.host.clone());
        let is_right = |cluster: &&Cluster| {
            let kind = number_of(cluster).and_then(|number| self.kinds.get(number));
            kind.is_some_and(|kind| is_settled(cluster, *kind))
        };
        let settled = clusters
            .list(&Default::default())
            .await?
            .items
            .iter()
            .filter(is_right)
            .count();
        Ok(self.count().saturating_sub(settled))
    }

    /// Removes all Clusters and Tenants of this and earlier runs.
    pub(crate) async fn remove(&self) -> Result<()> {
        let tenants: Api<Tenant> = Api::all(self.stack.host.clone());
        let all = tenants.list(&Default::default()).await?.items;
        let ours: Vec<_> = all
            .iter()
            .map(kube::ResourceExt::name_any)
            .filter(|name| name.starts_with(TENANT))
            .collect();
        for tenant in &ours {
            let clusters = self.clusters_of(tenant);
            let deleted = clusters
                .list(&Default::default())
                .await?
                .items
                .into_iter()
                .map(|cluster| {
                    let clusters = clusters.clone();
                    async move { clusters.delete(&cluster.name_any(), &DeleteParams::default()).await }
                });
            try_join_all(deleted).await.context("deleting Clusters")?;
            tenants.delete(tenant, &DeleteParams::default()).await?;
        }
        let (mut left, mut since) = (usize::MAX, Instant::now());
        loop {
            let all = tenants.list_metadata(&Default::default()).await?.items;
            let tenants = all.iter().filter(|tenant| ours.contains(&tenant.name_any())).count();
            if tenants == 0 {
                return Ok(());
            }
            let clusters: Api<Cluster> = Api::all(self.stack.host.clone());
            let clusters = clusters.list_metadata(&Default::default()).await?.items.len() + tenants;
            if clusters < left {
                (left, since) = (clusters, Instant::now());
            }
            ensure!(since.elapsed() < STALLED, "{left} Clusters and Tenants do not go");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// The kind of each Cluster. The awake ones are spread evenly over the fleet.
fn plan_kinds(count: usize, awake: usize) -> Vec<Kind> {
    (0..count)
        .map(|number| {
            if is_awake(number, count, awake) {
                Kind::Awake
            } else {
                Kind::Asleep
            }
        })
        .collect()
}

fn tenant_name(number: usize) -> String {
    format!("{TENANT}-{number}")
}

fn build(name: &str, kind: Kind) -> Cluster {
    let mut spec = ClusterSpec::default();
    spec.storage.quota = Quantity(QUOTA.into());
    let mut cluster = Cluster::new(name, spec);
    if kind == Kind::Asleep {
        cluster.annotations_mut().insert(SLEEP.into(), SLEEP_NOW.into());
    }
    cluster
}

/// Whether a Cluster is settled: its API answers, or it is asleep and a request would wake it.
pub(crate) fn is_settled(cluster: &Cluster, kind: Kind) -> bool {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
    let is = |of| is_true(conditions.unwrap_or_default(), of);
    match kind {
        Kind::Awake => is(ConditionType::Ready),
        Kind::Asleep => {
            is(ConditionType::Asleep) && is(ConditionType::StoreReady) && is(ConditionType::CertificatesReady)
        }
    }
}

/// The number of a Cluster, if it belongs to a run.
fn number_of(cluster: &Cluster) -> Option<usize> {
    cluster.namespace().filter(|namespace| namespace.starts_with(TENANT))?;
    cluster.name_any().strip_prefix('c')?.parse().ok()
}

/// Watches the Clusters until all are settled. Returns when each was settled.
async fn watch_settled(stack: Stack, kinds: Vec<Kind>) -> Result<Vec<(usize, Instant)>> {
    let clusters: Api<Cluster> = Api::all(stack.host.clone());
    let mut changes = watcher(clusters, watcher::Config::default())
        .default_backoff()
        .applied_objects()
        .boxed();
    let (mut settled, mut seen) = (Vec::new(), BTreeSet::new());
    while settled.len() < kinds.len() {
        let Ok(change) = tokio::time::timeout(STALLED, changes.next()).await else {
            bail!("only {} of {} Clusters got settled", settled.len(), kinds.len());
        };
        // The watch restarts after an error.
        let Some(Ok(cluster)) = change else { continue };
        let Some(number) = number_of(&cluster) else { continue };
        let kind = *kinds.get(number).context("a Cluster of another run")?;
        if is_settled(&cluster, kind) && seen.insert(number) {
            settled.push((number, Instant::now()));
            if settled.len() % 100 == 0 {
                say(&format!("{} of {} are settled", settled.len(), kinds.len()));
            }
        }
    }
    Ok(settled)
}

impl Made {
    pub(crate) fn print(mut self) {
        let count = self.accepted.len();
        print_head(
            &format!(
                "{count} Clusters, {:.1} a second: all settled after {:.0} s",
                self.rate,
                self.took.as_secs_f64()
            ),
            "from asking until",
        );
        print_row("the host API has it", &self.accepted);
        let mut take = |kind| self.settled.remove(&kind).unwrap_or_default();
        print_row("asleep, and woken by who connects", &take(Kind::Asleep));
        print_row("Ready", &take(Kind::Awake));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_awake_are_spread() {
        use Kind::{Asleep, Awake};
        assert_eq!(plan_kinds(6, 2), [Awake, Asleep, Asleep, Awake, Asleep, Asleep]);
    }
}
