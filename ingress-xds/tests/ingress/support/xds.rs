//! Our server as the process puts it together, with objects from a channel in place of the host API.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use yoke_api::names::KONNECTIVITY_PORT;
use yoke_ingress_xds::base::{Input, Notice, Tracker};
use yoke_ingress_xds::gate;
use yoke_ingress_xds::metrics::{Metrics, PROCESS};
use yoke_ingress_xds::model::{Event, ObjectKey, Watched};
use yoke_ingress_xds::routing::{Routing, Snapshots};
use yoke_ingress_xds::server::{Context, Server};
use yoke_ingress_xds::snapshot::Snapshot;
use yoke_ingress_xds::tls::files_in;
use yoke_ingress_xds::traffic::{Ledger, Shown};
use yoke_ingress_xds::translate;
use yoke_ingress_xds::validate::Rules;
use yoke_runtime::budget::Rate;
use yoke_runtime::tls::{Reload, TlsConfigs};
use yoke_runtime::{Drain, DrainTrigger, Readiness};
use yoke_test_support::free_port;

use super::fixtures::{BASE_DOMAIN, ClusterFixture, certificate_secret};
use super::pki::{Ca, Leaf, write_secret};
use super::{PATIENCE, eventually};

pub const SERVER_NAME: &str = "yoke-ingress-xds.yoke-system.svc";
/// Ports of Envoy by the chart.
const ENVOY_PORTS: [u16; 3] = [8443, 8081, 9901];
pub const CLIENT_NAME: &str = "envoy.yoke-system.svc";

/// What outlives a restart of the server.
pub struct Site {
    pub ca: Ca,
    pub address: SocketAddr,
    pub api_port: u16,
    pub konnectivity_port: u16,
    pub limits: translate::Limits,
    pub gate: gate::Limits,
    /// Clusters with series of their own.
    pub series: usize,
    /// What clients are shown whose TLS ends at the ingress.
    pub certificate: Option<Leaf>,
    directory: TempDir,
}

/// One life of the server.
pub struct Xds {
    // Dropped first: the tasks drain, and do not miss their source.
    trigger: DrainTrigger,
    pub address: SocketAddr,
    events: mpsc::Sender<Event>,
    base: mpsc::Sender<Input>,
    notices: Mutex<mpsc::Receiver<Notice>>,
    registry: yoke_runtime::Metrics,
    readiness: Readiness,
    certificate: Option<Leaf>,
    tasks: Vec<JoinHandle<()>>,
}

impl Site {
    pub async fn new(api_port: u16) -> Self {
        yoke_runtime::install_crypto();
        let ca = Ca::new("yoke-system");
        let directory = TempDir::new().unwrap();
        write_secret(directory.path(), &ca.leaf("xds", &[SERVER_NAME]), &ca.pem);
        let rate = Rate {
            per_second: 100_000,
            burst: 100_000,
        };
        Self {
            ca,
            address: super::loopback(free_port()),
            api_port,
            konnectivity_port: KONNECTIVITY_PORT,
            limits: translate::Limits::default(),
            gate: gate::Limits {
                source: rate,
                source_connections: u32::MAX,
                name: rate,
                requests: rate,
                hold: Duration::ZERO,
            },
            series: 10,
            certificate: None,
            directory,
        }
    }

    pub fn client_leaf(&self) -> Leaf {
        self.ca.leaf("envoy", &[CLIENT_NAME])
    }

    /// Takes another CA for both sides.
    pub fn rotate(&mut self) {
        self.ca = Ca::new("yoke-system, second");
        let leaf = self.ca.leaf("xds", &[SERVER_NAME]);
        write_secret(self.directory.path(), &leaf, &self.ca.pem);
    }

    /// Starts the server. It has not read the host yet: see [`Xds::list`].
    pub async fn start(&self) -> Xds {
        let rules = Rules {
            port: self.api_port,
            konnectivity_port: self.konnectivity_port,
            loopback: true,
            ..Rules::new(BASE_DOMAIN)
        };
        let (registry, readiness) = (yoke_runtime::Metrics::new(PROCESS), Readiness::new());
        let metrics = Metrics::new(&registry);
        let (trigger, drain) = DrainTrigger::new();
        let synced = readiness.check("host-objects");
        let ledger = Ledger::new(self.series);
        let other = Arc::clone(ledger.other());
        let base = Tracker::new(&ENVOY_PORTS);
        let (routing, snapshots) = Routing::new(rules, base, self.limits, ledger, metrics.clone(), synced);
        Metrics::show_traffic(&registry, Shown::new(snapshots.clone(), other));
        let (events, observed) = mpsc::channel(1024);
        let (base, inputs) = mpsc::channel(1024);
        let (notices, told) = mpsc::channel(16);
        let routing = routing.run(observed, inputs, notices, drain.clone());
        let routing = tokio::spawn(async move { routing.await.unwrap() });
        let (address, serving) = self.serve(snapshots, base.clone(), metrics, drain).await;
        Xds {
            address,
            events,
            base,
            notices: Mutex::new(told),
            registry,
            readiness,
            trigger,
            certificate: self.certificate.clone(),
            tasks: vec![routing, serving],
        }
    }

    /// Starts the server for a snapshot that is made by hand; the answer's sender keeps it.
    pub async fn start_with(
        &self,
        snapshot: Snapshot,
    ) -> (
        yoke_runtime::Metrics,
        watch::Sender<Option<Arc<Snapshot>>>,
        DrainTrigger,
    ) {
        let registry = yoke_runtime::Metrics::new(PROCESS);
        let (trigger, drain) = DrainTrigger::new();
        let (sender, snapshots) = watch::channel(Some(Arc::new(snapshot)));
        let (base, _) = mpsc::channel(1);
        self.serve(snapshots, base, Metrics::new(&registry), drain).await;
        (registry, sender, trigger)
    }

    /// What a server of Envoy's shows, and whom it admits.
    pub async fn tls(&self) -> TlsConfigs {
        let files = files_in(self.directory.path(), &self.directory.path().join("ca.crt"));
        Reload::load(files).await.unwrap().1
    }

    async fn serve(
        &self,
        snapshots: Snapshots,
        base: mpsc::Sender<Input>,
        metrics: Metrics,
        drain: Drain,
    ) -> (SocketAddr, JoinHandle<()>) {
        let tls = self.tls().await;
        // A program that another test starts has a copy of the last server's socket until it is executed.
        let bind = async || Server::bind(self.address).await.ok();
        let (server, _) = eventually("the server listens", PATIENCE, bind).await;
        let address = server.local_address();
        let serving = server.serve(Context {
            snapshots,
            base,
            tls,
            client_names: vec![CLIENT_NAME.into()],
            limits: self.gate,
            metrics,
            drain,
        });
        (address, tokio::spawn(async move { serving.await.unwrap() }))
    }
}

impl Xds {
    /// The host as it is: these clusters and nothing beside.
    pub async fn list(&self, clusters: &[&ClusterFixture]) {
        self.list_with(clusters, None).await;
    }

    /// The same, with a base configuration.
    pub async fn list_with(&self, clusters: &[&ClusterFixture], base: Option<&ConfigMap>) {
        if let Some(map) = base {
            self.apply_base(map).await;
        }
        let maps = base.into_iter().map(|map| ObjectKey::of(&map.metadata));
        self.see_base(Watched::Listed(maps.collect())).await;
        for cluster in clusters {
            self.apply(cluster).await;
        }
        let configs = clusters.iter().map(|c| ObjectKey::of(&c.config_map().metadata));
        self.send(Event::Config(Watched::Listed(configs.collect()))).await;
        let slices = clusters.iter().map(|c| ObjectKey::of(&c.slice().metadata));
        self.send(Event::Slice(Watched::Listed(slices.collect()))).await;
        let certificates = match &self.certificate {
            None => BTreeSet::new(),
            Some(leaf) => {
                self.show(leaf).await;
                let secret = certificate_secret(&leaf.certificate, &leaf.key);
                [ObjectKey::of(&secret.metadata)].into()
            }
        };
        self.send(Event::Certificate(Watched::Listed(certificates))).await;
    }

    /// The host's owner writes a base configuration.
    pub async fn apply_base(&self, map: &ConfigMap) {
        self.see_base(Watched::Applied(Box::new(map.clone()))).await;
    }

    pub async fn see_base(&self, seen: Watched<ConfigMap>) {
        self.base.send(Input::Seen(seen)).await.unwrap();
    }

    /// What the host's owner is told next.
    pub async fn notice(&self) -> Notice {
        let mut notices = self.notices.lock().await;
        let told = tokio::time::timeout(PATIENCE, notices.recv()).await;
        told.expect("the owner is told").unwrap()
    }

    /// The ingress gets another certificate.
    pub async fn show(&self, leaf: &Leaf) {
        let secret = certificate_secret(&leaf.certificate, &leaf.key);
        self.send(Event::Certificate(Watched::Applied(Box::new(secret)))).await;
    }

    pub async fn apply(&self, cluster: &ClusterFixture) {
        self.apply_map(cluster.config_map()).await;
        self.send(Event::Slice(Watched::Applied(Box::new(cluster.slice()))))
            .await;
    }

    /// A ConfigMap as it is.
    pub async fn apply_map(&self, map: ConfigMap) {
        self.send(Event::Config(Watched::Applied(Box::new(map)))).await;
    }

    pub async fn delete(&self, cluster: &ClusterFixture) {
        let config = ObjectKey::of(&cluster.config_map().metadata);
        self.send(Event::Config(Watched::Deleted(config))).await;
        let slice = ObjectKey::of(&cluster.slice().metadata);
        self.send(Event::Slice(Watched::Deleted(slice))).await;
    }

    pub async fn send(&self, event: Event) {
        self.events.send(event).await.unwrap();
    }

    pub fn is_ready(&self) -> bool {
        self.readiness.failing().is_empty()
    }

    /// One number of its metrics; 0 if it was never counted.
    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.registry, name)
    }

    /// The samples of each cluster's traffic.
    pub fn traffic(&self) -> Vec<String> {
        let text = self.registry.to_text().unwrap();
        let samples = text
            .lines()
            .filter(|line| line.starts_with("yoke_ingress_xds_cluster_"));
        samples.map(str::to_owned).collect()
    }

    /// Ends it as a signal would.
    pub async fn stop(self) {
        self.trigger.start();
        for task in self.tasks {
            let ended = tokio::time::timeout(Duration::from_secs(10), task).await;
            ended.expect("the drain ends every task").unwrap();
        }
    }
}

pub fn metric(registry: &yoke_runtime::Metrics, name: &str) -> u64 {
    let text = registry.to_text().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |value| value.parse().unwrap())
}
