//! The real server, assembled as in the process, with objects from a channel in place of the host
//! API.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinHandle;
use yoke_api::names::{KONNECTIVITY_PORT, PKI_NAMESPACE};
use yoke_ingress_xds::activator::tls::{Certificates, build_configs, update_certificates};
use yoke_ingress_xds::activator::wake::{WakeLimits, WakeRequest, Waker};
use yoke_ingress_xds::activator::{Activator, ActivatorContext, ActivatorLimits};
use yoke_ingress_xds::authz::GateLimits;
use yoke_ingress_xds::base::{Input, Notice, Tracker};
use yoke_ingress_xds::metrics::{Metrics, PROCESS};
use yoke_ingress_xds::model::observation::Event;
use yoke_ingress_xds::model::observation::{ObjectKey, Watched};
use yoke_ingress_xds::routing::Routing;
use yoke_ingress_xds::server::{Server, ServerContext};
use yoke_ingress_xds::snapshot::{Snapshot, Snapshots};
use yoke_ingress_xds::tls::files_in;
use yoke_ingress_xds::traffic::{SeriesRegistry, TrafficCollector};
use yoke_ingress_xds::translate::EnvoyLimits;
use yoke_ingress_xds::validate::Rules;
use yoke_runtime::budget::Rate;
use yoke_runtime::tls::{Reload, TlsConfigs};
use yoke_runtime::{Drain, DrainTrigger, Readiness};
use yoke_test_support::free_port;

use super::fixtures::{BASE_DOMAIN, ClusterFixture, activator_secret, certificate_secret, replica_slice};
use super::pki::{Ca, Leaf, write_secret};
use super::{CLIENT_NAME, PATIENCE, SERVER_NAME, eventually};

/// Ports of Envoy in the chart.
const ENVOY_PORTS: [u16; 3] = [8443, 8081, 9901];
const MANY: Rate = Rate {
    per_second: 100_000,
    burst: 100_000,
};

/// State that survives a restart of the server.
pub struct Site {
    pub ca: Ca,
    pub address: SocketAddr,
    pub api_port: u16,
    pub konnectivity_port: u16,
    pub limits: EnvoyLimits,
    pub gate: GateLimits,
    /// Rate limits for wakes.
    pub wakes: WakeLimits,
    /// Number of clusters with traffic series of their own.
    pub series: usize,
    /// The certificate for clients whose TLS ends at Envoy.
    pub certificate: Option<Leaf>,
    /// The certificate for clients of sleeping clusters.
    pub activator: Option<Leaf>,
    /// The address of the activator.
    pub activator_at: SocketAddr,
    /// Limits of the activator.
    pub activator_limits: ActivatorLimits,
    directory: TempDir,
}

/// One run of the server.
pub struct Xds {
    // Dropped first, so that the tasks drain before their channels close.
    trigger: DrainTrigger,
    pub address: SocketAddr,
    /// The address of the activator.
    pub activator: SocketAddr,
    events: mpsc::Sender<Event>,
    base: mpsc::Sender<Input>,
    notices: Mutex<mpsc::Receiver<Notice>>,
    wakes: Mutex<mpsc::Receiver<WakeRequest>>,
    secrets: mpsc::Sender<Watched<Secret>>,
    registry: yoke_runtime::Metrics,
    readiness: Readiness,
    certificate: Option<Leaf>,
    sleeping: JoinHandle<()>,
    tasks: Vec<JoinHandle<()>>,
}

impl Site {
    pub async fn new(api_port: u16) -> Self {
        yoke_runtime::install_crypto();
        let ca = Ca::new("yoke-system");
        let directory = TempDir::new().unwrap();
        write_secret(directory.path(), &ca.leaf("xds", &[SERVER_NAME]), &ca.pem);
        let rate = MANY;
        Self {
            ca,
            address: super::loopback(free_port()),
            api_port,
            konnectivity_port: KONNECTIVITY_PORT,
            limits: EnvoyLimits::default(),
            gate: GateLimits {
                source: rate,
                source_connections: u32::MAX,
                name: rate,
                requests: rate,
                refusal_delay: Duration::ZERO,
                sleeping: rate,
            },
            wakes: WakeLimits {
                tenant: rate,
                source: rate,
            },
            series: 10,
            certificate: None,
            activator: None,
            activator_at: super::loopback(0),
            // Long timeouts, so that a busy machine cuts off no client.
            activator_limits: ActivatorLimits {
                first: PATIENCE,
                ..ActivatorLimits::default()
            },
            directory,
        }
    }

    pub fn client_leaf(&self) -> Leaf {
        self.ca.leaf("envoy", &[CLIENT_NAME])
    }

    /// Creates a new CA for both sides.
    pub fn rotate(&mut self) {
        self.ca = Ca::new("yoke-system, second");
        let leaf = self.ca.leaf("xds", &[SERVER_NAME]);
        write_secret(self.directory.path(), &leaf, &self.ca.pem);
    }

    /// Starts the server. Its host objects are not listed yet: see [`Xds::list`].
    pub async fn start(&self) -> Xds {
        let activator = Activator::bind(self.activator_at).await.unwrap();
        let rules = Rules {
            activator: self.activator.is_some().then(|| activator.local_address()),
            replicas: true,
            port: self.api_port,
            konnectivity_port: self.konnectivity_port,
            loopback: true,
            ..Rules::new(BASE_DOMAIN)
        };
        let (registry, readiness) = (yoke_runtime::Metrics::new(PROCESS), Readiness::new());
        let metrics = Metrics::new(&registry);
        let (trigger, drain) = DrainTrigger::new();
        let synced = readiness.check("host-objects");
        let series = SeriesRegistry::new(self.series);
        let other = Arc::clone(series.other());
        let base = Tracker::new(&ENVOY_PORTS);
        let (routing, snapshots) = Routing::new(rules, base, self.limits, series, metrics.clone(), synced);
        Metrics::register_traffic(&registry, TrafficCollector::new(snapshots.clone(), other));
        let (events, observed) = mpsc::channel(1024);
        let (base, inputs) = mpsc::channel(1024);
        let (notices, told) = mpsc::channel(16);
        let routing = routing.run(observed, inputs, notices, drain.clone());
        let routing = tokio::spawn(async move { routing.await.unwrap() });
        let (waker, wakes) = Waker::new(self.wakes, metrics.clone(), Instant::now());
        let activator_address = activator.local_address();
        let has_activator = self.activator.is_some();
        let (secrets, seen) = mpsc::channel(16);
        let (certificates, shown) = watch::channel(Certificates::new());
        let keeping = update_certificates(seen, certificates, events.clone(), drain.clone());
        let sleeping = activator.serve(ActivatorContext {
            tls: build_configs(shown, snapshots.clone()).unwrap(),
            limits: self.activator_limits,
            snapshots: snapshots.clone(),
            waker: waker.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
        });
        // Without activators in the routes there is nothing to wait for.
        let sleeping = tokio::spawn(async move {
            if has_activator {
                tokio::join!(keeping, sleeping);
            }
        });
        if let Some(leaf) = &self.activator {
            let secret = activator_secret(PKI_NAMESPACE, &leaf.certificate, &leaf.key);
            let listed = Watched::Listed([ObjectKey::of(&secret.metadata)].into());
            secrets.send(Watched::Applied(Box::new(secret))).await.unwrap();
            secrets.send(listed).await.unwrap();
        }
        let alone = Event::Replicas(Watched::Listed(BTreeSet::new()));
        events.send(alone).await.unwrap();
        let (address, serving) = self.serve(snapshots, base.clone(), waker, metrics, drain).await;
        Xds {
            wakes: Mutex::new(wakes),
            secrets,
            address,
            activator: activator_address,
            events,
            base,
            notices: Mutex::new(told),
            registry,
            readiness,
            trigger,
            certificate: self.certificate.clone(),
            sleeping,
            tasks: vec![routing, serving],
        }
    }

    /// Starts the server with a snapshot that the test builds; the returned sender keeps it alive.
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
        let metrics = Metrics::new(&registry);
        let (waker, _) = Waker::new(self.wakes, metrics.clone(), Instant::now());
        self.serve(snapshots, base, waker, metrics, drain).await;
        (registry, sender, trigger)
    }

    /// TLS configuration of the gRPC endpoint.
    pub async fn tls(&self) -> TlsConfigs {
        let files = files_in(self.directory.path(), &self.directory.path().join("ca.crt"));
        Reload::load(files).await.unwrap().1
    }

    async fn serve(
        &self,
        snapshots: Snapshots,
        base: mpsc::Sender<Input>,
        waker: Waker,
        metrics: Metrics,
        drain: Drain,
    ) -> (SocketAddr, JoinHandle<()>) {
        let tls = self.tls().await;
        // A program that another test starts has a copy of the previous server's socket until it is
        // executed.
        let bind = async || Server::bind(self.address).await.ok();
        let (server, _) = eventually("the server to listen", PATIENCE, bind).await;
        let address = server.local_address();
        let serving = server.serve(ServerContext {
            snapshots,
            base,
            tls,
            client_names: vec![CLIENT_NAME.into()],
            limits: self.gate,
            waker,
            metrics,
            drain,
        });
        (address, tokio::spawn(async move { serving.await.unwrap() }))
    }
}

impl Xds {
    /// Reports a complete list of the host: these clusters and nothing else.
    pub async fn list(&self, clusters: &[&ClusterFixture]) {
        self.list_with(clusters, None).await;
    }

    /// Reports a complete list of the host, with a base configuration.
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

    /// The next event for the host's owner.
    pub async fn notice(&self) -> Notice {
        let mut notices = self.notices.lock().await;
        let told = tokio::time::timeout(PATIENCE, notices.recv()).await;
        told.expect("the owner is told").unwrap()
    }

    /// The next wake request to the operator.
    pub async fn wake(&self) -> WakeRequest {
        let mut wakes = self.wakes.lock().await;
        let told = tokio::time::timeout(PATIENCE, wakes.recv()).await;
        told.expect("the operator is told").unwrap()
    }

    /// Whether there was any wake request.
    pub async fn has_woken(&self) -> bool {
        self.wakes.lock().await.try_recv().is_ok()
    }

    /// The ingress gets another certificate.
    pub async fn show(&self, leaf: &Leaf) {
        let secret = certificate_secret(&leaf.certificate, &leaf.key);
        self.send(Event::Certificate(Watched::Applied(Box::new(secret)))).await;
    }

    /// Replicas of this process are ready at these addresses.
    pub async fn set_replicas(&self, addresses: &[&str]) {
        let slice = replica_slice(addresses);
        self.send(Event::Replicas(Watched::Applied(Box::new(slice)))).await;
    }

    /// Stops the activator.
    pub fn lose_activator(&self) {
        self.sleeping.abort();
    }

    /// A cluster gets a certificate for its extra names, for its sleep.
    pub async fn show_asleep(&self, cluster: &ClusterFixture, leaf: &Leaf) {
        let secret = activator_secret(&cluster.namespace(), &leaf.certificate, &leaf.key);
        self.secrets.send(Watched::Applied(Box::new(secret))).await.unwrap();
    }

    pub async fn apply(&self, cluster: &ClusterFixture) {
        self.apply_map(cluster.config_map()).await;
        self.send(Event::Slice(Watched::Applied(Box::new(cluster.slice()))))
            .await;
    }

    /// Applies a ConfigMap as it is.
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

    /// Value of one metric; 0 if it has no sample.
    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.registry, name)
    }

    /// Samples of each cluster's traffic.
    pub fn traffic(&self) -> Vec<String> {
        let text = self.registry.to_text().unwrap();
        let samples = text
            .lines()
            .filter(|line| line.starts_with("yoke_ingress_xds_cluster_"));
        samples.map(str::to_owned).collect()
    }

    /// Starts a shutdown, as a signal would.
    pub fn drain(&self) {
        self.trigger.start();
    }

    /// Stops the server.
    pub async fn stop(self) {
        self.drain();
        for task in self.tasks.into_iter().chain([self.sleeping]) {
            let ended = tokio::time::timeout(PATIENCE, task).await;
            ended.expect("the drain ends every task").unwrap();
        }
    }
}

pub fn metric(registry: &yoke_runtime::Metrics, name: &str) -> u64 {
    let text = registry.to_text().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0, |value| value.parse().unwrap())
}
