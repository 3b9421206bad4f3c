//! Clusters and Tenants for tests.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use yoke_api::cluster::{ClusterSpec, ExtraArg};
use yoke_api::tenant::TenantSpec;
use yoke_api::{Cluster, Reason, Tenant};

use crate::cluster::outcome::{Outcome, Store};
use crate::cluster::sleep::state::SleepState;
use crate::cluster::validate::ValidationContext;
use crate::config::Config;
use crate::host_api::cache::ByIdentity;
use crate::model::cluster_summary::ClusterSummary;
use crate::model::conditions::State;
use crate::model::control_plane::ControlPlane;
use crate::model::identity::Identity;

pub(crate) const ID: &str = "bcdfghjk24";

/// The example configuration.
pub(crate) fn config() -> Config {
    Config::parse(include_str!("../testdata/config.yaml")).expect("the example is valid")
}

/// A Cluster in the namespace of [`tenant`], with the identity [`ID`], created at second 100.
pub(crate) fn cluster(name: &str) -> Cluster {
    let mut cluster = Cluster::new(name, ClusterSpec::default());
    cluster.metadata.namespace = Some("demo".into());
    cluster.metadata.uid = Some(format!("uid-{name}"));
    cluster.metadata.generation = Some(1);
    cluster.spec.id = Some(ID.into());
    made_at(cluster, 100)
}

/// The Cluster, created at another time.
pub(crate) fn made_at(mut cluster: Cluster, second: i64) -> Cluster {
    cluster.metadata.creation_timestamp = Some(Time(at(second)));
    cluster
}

/// The Cluster after a change of its spec.
pub(crate) fn with(mut cluster: Cluster, change: impl FnOnce(&mut ClusterSpec)) -> Cluster {
    change(&mut cluster.spec);
    cluster
}

/// The Tenant `demo`.
pub(crate) fn tenant() -> Tenant {
    let mut tenant = Tenant::new("demo", TenantSpec::default());
    tenant.spec.quota.clusters = 2;
    tenant.spec.quota.storage = Quantity("1Gi".into());
    tenant.spec.allowed_domains = vec!["example.org".into()];
    tenant
}

/// The validation context of a Cluster among others.
pub(crate) fn around<'c, 'o>(
    config: &'c Config,
    tenant: &'o Tenant,
    clusters: &'o [Arc<ClusterSummary>],
) -> ValidationContext<'c, 'o> {
    ValidationContext {
        config,
        tenant: Some(tenant),
        namespace_is_tenants: true,
        tenants: &[],
        clusters,
        reserved: ByIdentity::default(),
        running: None,
        answered: None,
    }
}

/// The identity of a Cluster.
pub(crate) fn identity(cluster: &Cluster) -> Identity {
    Identity::of(cluster, "yoke.test").expect("it has one")
}

/// An extra argument of a component.
pub(crate) fn argument(name: &str, value: &str) -> ExtraArg {
    ExtraArg {
        name: name.into(),
        value: value.into(),
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// The outcome of a working Cluster, whose control plane started at second 1000.
pub(crate) fn outcome() -> Outcome {
    Outcome {
        accepted: Ok(()),
        paused: false,
        maintained: false,
        run_state: SleepState::Awake,
        ingress_message: None,
        version: Some("v1.35.4".into()),
        heads_for: None,
        store: Store {
            state: State::yes(Reason::AsExpected, "There."),
            account: Some("A".into()),
            bytes: Some(1),
        },
        certificates: State::yes(Reason::AsExpected, "Issued."),
        ca_not_after: Some(at(1_000_000)),
        control_plane: ControlPlane::Running {
            pod: "p".into(),
            started: at(1000),
            current: true,
            failing: None,
        },
        inside: Ok(()),
        outside: Ok(()),
        assumed_ready: false,
        published: true,
        nodes: Some(0),
        outlives_node_certificates: false,
        sleep_possible: Some(State::yes(Reason::AsExpected, "Nothing.")),
        last_used: None,
        addons: Some(State::yes(Reason::AsExpected, "There.")),
        workers: None,
        lost: false,
        queued: false,
        takeover: None,
        failure: None,
    }
}
