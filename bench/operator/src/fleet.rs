//! Generates the Clusters, each as if the operator had already reconciled it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, anyhow};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use yoke_api::cluster::ClusterStatus;
use yoke_api::labels;
use yoke_api::sleep::{ActivityStatus, SleepReason};
use yoke_api::tenant::{TenantQuota, TenantSpec};
use yoke_api::{Cluster, ClusterId, Tenant};
use yoke_bench_harness::clusters;
use yoke_operator::testing::Config;
use yoke_operator::testing::Identity;
use yoke_operator::testing::cluster::resources::{Blueprint, Materials, secrets};
use yoke_operator::testing::cluster::{ValidationContext, validate};
use yoke_operator::testing::host_api::cache::ByIdentity;
use yoke_operator::testing::nats::{Account, Nats, Size, streams};
use yoke_pki::plan::LeafRole;
use yoke_pki::service_account::ServiceAccountKey;

use crate::authority::Authority;
use crate::objects::{self, Settled};
use crate::stored::{Stored, draw_uid};

/// Service network of the host.
pub(crate) const SERVICES: &str = "127.96.0.0/16";
/// Maximum number of Clusters: each needs its own address.
pub(crate) const MOST: u64 = 60_000;
const TENANTS: usize = 10;
/// Storage of one Cluster. NATS reserves a multiple of it, and is configured to reserve ten
/// terabytes at most.
const QUOTA: &str = "16Mi";
/// Attempts to create the streams, and the pause between two attempts.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_secs(2);

/// State that all Clusters share.
pub(crate) struct Fleet {
    pub(crate) config: Config,
    pub(crate) authority: Authority,
    tenants: Vec<Tenant>,
    nats_ca: String,
    /// Shared, because generating a key takes long.
    service_account: ServiceAccountKey,
    clusters: usize,
    awake: usize,
}

/// The stored objects and the API server of one Cluster.
pub(crate) struct Member {
    pub(crate) objects: Vec<Stored>,
    /// Server name and serving certificate of the API, if the Cluster is awake.
    pub(crate) serving: Option<(String, secrets::Leaf)>,
}

impl Fleet {
    /// Plans `clusters` Clusters. The `awake` ones are spread evenly over all of them.
    pub(crate) fn new(config: Config, nats_ca: String, clusters: usize, awake: usize) -> Result<Self> {
        let quota = TenantQuota {
            clusters: i32::try_from(clusters)?,
            storage: Quantity("100Ti".into()),
            ..TenantQuota::default()
        };
        let tenant = |number| {
            let spec = TenantSpec {
                quota: quota.clone(),
                ..TenantSpec::default()
            };
            Tenant::new(&format!("bench-{number}"), spec)
        };
        Ok(Self {
            config,
            authority: Authority::new()?,
            tenants: (0..TENANTS).map(tenant).collect(),
            nats_ca,
            service_account: ServiceAccountKey::generate()?,
            clusters,
            awake,
        })
    }

    pub(crate) fn tenants(&self) -> &[Tenant] {
        &self.tenants
    }

    /// Number of awake Clusters among the first `clusters`.
    pub(crate) fn count_awake(&self, clusters: usize) -> usize {
        (0..clusters).filter(|number| self.is_awake(*number)).count()
    }

    fn is_awake(&self, number: usize) -> bool {
        clusters::is_awake(number, self.clusters, self.awake)
    }

    /// Generates a Cluster, and creates its account and streams in NATS.
    pub(crate) async fn settle(&self, nats: &Nats, number: usize) -> Result<Member> {
        let is_asleep = !self.is_awake(number);
        let tenant = &self.tenants[number % TENANTS];
        let cluster = build_cluster(number, tenant, is_asleep);
        let identity = Identity::of(&cluster, &self.config.base_domain).ok_or_else(|| anyhow!("no identity"))?;
        let around = ValidationContext {
            config: &self.config,
            tenant: Some(tenant),
            namespace_is_tenants: true,
            tenants: &[],
            clusters: &[],
            reserved: ByIdentity::default(),
            running: None,
            answered: None,
        };
        let accepted = validate(&cluster, &identity, &around).map_err(|refusal| anyhow!(refusal.message))?;
        let size = Size {
            quota: accepted.quota,
            replicas: accepted.class.store_replicas,
        };
        let account = Account::draw(&identity.id, size, Timestamp::now().as_second())?;
        ensure_streams(nats, &identity.id, &account).await?;
        let issued = self.authority.issue(&accepted.plan.certificates)?;
        let texts = account.to_data();
        let materials = Materials::read(
            &accepted.plan,
            &secrets::Sources {
                secret: |name: &str| issued.get(name).cloned(),
                root: &self.authority.root,
                service_account: self.service_account.private_pem(),
                store_credentials: &texts["user.creds"],
                nats_ca: &self.nats_ca,
                copied: &BTreeMap::new(),
                now: Timestamp::now(),
            },
        )?
        .map_err(|missing| anyhow!("not issued: {}", missing.join(" ")))?;
        let serving = (!is_asleep).then(|| (identity.upstream_name(), materials.leaf(LeafRole::ApiServer).clone()));
        let objects = objects::build(&Settled {
            cluster: &cluster,
            blueprint: Blueprint {
                identity: &identity,
                accepted: &accepted,
                spec: &cluster.spec,
                config: &self.config,
            },
            materials: &materials,
            issued: &issued,
            store: texts,
            service_account: &self.service_account,
            is_asleep,
            address: address_of(number),
        })?;
        Ok(Member { objects, serving })
    }
}

/// Creates streams as the operator does: with another attempt if NATS is too busy to answer in
/// time.
async fn ensure_streams(nats: &Nats, id: &ClusterId, account: &Account) -> Result<()> {
    let mut tries = 0;
    loop {
        tries += 1;
        match streams::ensure(nats, id, account, false).await {
            Ok(_) => return Ok(()),
            Err(error) if tries == TRIES => return Err(error.into()),
            Err(error) => println!("again: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn build_cluster(number: usize, tenant: &Tenant, is_asleep: bool) -> Cluster {
    let id = ClusterId::random();
    let mut cluster = Cluster::new(&format!("c{number}"), Default::default());
    cluster.metadata.namespace = tenant.metadata.name.clone();
    cluster.metadata.uid = Some(draw_uid());
    cluster.metadata.generation = Some(1);
    cluster.metadata.labels = Some([(labels::ID.to_owned(), id.to_string())].into());
    cluster.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
    cluster.spec.id = Some(id.to_string());
    cluster.spec.storage.quota = Quantity(QUOTA.into());
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    cluster.status = is_asleep.then(|| ClusterStatus {
        activity: Some(ActivityStatus {
            sleep_requested_time: Some(Time(now)),
            sleep_reason: Some(SleepReason::Annotation),
            ..ActivityStatus::default()
        }),
        ..ClusterStatus::default()
    });
    cluster
}

/// The address of a Cluster's Service. The host uses the first addresses.
fn address_of(number: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(127, 96, 1, 0));
    Ipv4Addr::from(first + u32::try_from(number).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awake_clusters_and_addresses_follow_from_the_number() {
        let config = Config::parse(include_str!("../../../operator/testdata/config.yaml")).unwrap();
        let fleet = Fleet::new(config, String::new(), 100, 3).unwrap();
        assert_eq!((fleet.count_awake(100), fleet.count_awake(10)), (3, 1));
        assert_eq!(address_of(300), Ipv4Addr::new(127, 96, 2, 44));
    }
}
