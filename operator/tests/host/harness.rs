//! A real host API per test: nats-server, kine-nats and kube-apiserver on free loopback ports, with
//! the operator's own watches. There is no kubelet and no controller manager: the test does their
//! work.

use std::convert::Infallible;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::channel::mpsc;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use yoke_api::{Cluster, Tenant};
use yoke_operator::testing::cluster::{self, Context, QueueLimits};
use yoke_operator::testing::host_api::Host as HostApi;
use yoke_operator::testing::host_api::cache::{self, CacheMetrics};
use yoke_operator::testing::nats::{Account, Nats, Size, streams};
use yoke_operator::testing::{Config, Contexts, NatsConfig, ReapIntervals, ReconcileError, join_token, loss, tenant};
use yoke_pki::cert_manager::Certificate;
use yoke_runtime::{Metrics, Supervisor};
use yoke_test_support::kubernetes::{OWNER_TOKEN, Options, build_cert_manager_crds, install_crds};
use yoke_test_support::nats::Server;
use yoke_test_support::{Process, eventually, free_port};

use crate::issuer::CertManager;

const HOST_STORE: &str = "hhhhhhhhh2";
/// Timeout of every wait.
const LIMIT: Duration = Duration::from_secs(40);
/// The Tenant of a test.
pub(crate) const TENANT: &str = "demo";
/// Checks for silent Nodes as often as a test reconciles.
const INTERVALS: ReapIntervals = ReapIntervals {
    every: Duration::ZERO,
    checks: 4,
    taint_after: Duration::from_secs(1),
    // Kubernetes checks every 20 s which Pods are on Nodes that are out of service.
    delete_after: Duration::from_secs(25),
    min_observed: Duration::ZERO,
};
/// Namespace of the CAs.
pub(crate) const PKI: &str = "yoke-pki";

/// A host and the operator's state of it. Its processes end when this is dropped.
pub(crate) struct Host {
    pub(crate) client: Client,
    /// Context of the Cluster controller.
    pub(crate) context: Arc<Context>,
    pub(crate) tenant: Arc<tenant::Context>,
    pub(crate) join_token: Arc<join_token::Context>,
    pub(crate) loss: Arc<loss::Context>,
    pub(crate) issuer: CertManager,
    /// Clusters that the operator's watches of tenants' own APIs requeue.
    pub(crate) requeued: mpsc::Receiver<ObjectRef<Cluster>>,
    _supervisor: Supervisor,
    _api: Process,
    _store: Process,
    pub(crate) nats: Server,
    url: String,
    dir: tempfile::TempDir,
}

/// Whether a host name is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// The published ingress configuration contains the name.
    pub(crate) is_published: bool,
    /// The Certificate of the API server requests the name.
    pub(crate) is_requested: bool,
}

impl Names {
    /// The name is in use everywhere.
    pub(crate) const BOTH: Self = Self {
        is_published: true,
        is_requested: true,
    };
    /// The name is in use nowhere.
    pub(crate) const NEITHER: Self = Self {
        is_published: false,
        is_requested: false,
    };
}

/// A value that was observed after a reconciliation, and the error of that reconciliation.
///
/// A failed wait prints both.
#[derive(Debug)]
struct Observed<T> {
    value: T,
    // Only `Debug` reads it.
    #[allow(dead_code)]
    reconcile_error: Option<ReconcileError>,
}

impl Host {
    /// Starts a host with the Tenant [`TENANT`], reconciled once.
    pub(crate) async fn start() -> Self {
        Self::start_on(Server::start().await).await
    }

    /// Starts a host on this nats-server.
    pub(crate) async fn start_on(nats: Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = start_store(dir.path(), &nats).await;
        let socket = store_url(dir.path());
        let options = Options::new(&socket);
        let (url, (api, client)) = (options.url(), options.start(dir.path()).await);
        prepare(&client).await;
        let issuer = CertManager::start(&client).await;
        let (contexts, requeued, supervisor) = connect(&client, build_config(nats_config(&nats))).await;
        let host = Self {
            client,
            context: contexts.cluster,
            tenant: contexts.tenant,
            join_token: contexts.join_token,
            loss: contexts.loss,
            issuer,
            requeued,
            _supervisor: supervisor,
            _api: api,
            _store: store,
            nats,
            url,
            dir,
        };
        host.create_tenant().await;
        host
    }

    /// Starts the controller that counts for ResourceQuotas.
    pub(crate) fn start_counting(&self) -> Process {
        self.start_controllers(&self.url, "resourcequota-controller")
    }

    /// Starts controllers of Kubernetes for an API.
    pub(crate) fn start_controllers(&self, url: &str, names: &str) -> Process {
        let dir = self.dir.path().join("controllers");
        std::fs::create_dir(&dir).unwrap();
        let kubeconfig = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": OWNER_TOKEN}}]});
        let path = dir.join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let arguments = [
            format!("--kubeconfig={}", path.display()),
            format!("--cert-dir={}", dir.display()),
            format!("--controllers={names}"),
            "--leader-elect=false".into(),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={}", free_port()),
        ];
        Process::spawn(&dir, "kube-controller-manager", &arguments)
    }

    /// Starts the real API of a Cluster, with the host's store, at the address of its Service and
    /// with its issued certificate. Creates the objects that controllers would create first.
    pub(crate) async fn start_tenant_api(&self, name: &str) -> (Process, Client) {
        let hosted = self.hosted(name).await;
        let service = self.api::<Service>(&hosted).get(name).await.unwrap();
        let ip: std::net::IpAddr = service.spec.unwrap().cluster_ip.unwrap().parse().unwrap();
        let dir = self.dir.path().join(&hosted);
        std::fs::create_dir(&dir).unwrap();
        let mut arguments = vec![
            format!("--etcd-prefix=/{hosted}"),
            "--enable-bootstrap-token-auth=true".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
        ];
        for (flag, file) in [
            ("tls-cert-file", "tls.crt"),
            ("tls-private-key-file", "tls.key"),
            ("client-ca-file", "client-ca.crt"),
        ] {
            let path = dir.join(file);
            std::fs::write(&path, self.text(&hosted, "kube-apiserver", file).await).unwrap();
            arguments.push(format!("--{flag}={}", path.display()));
        }
        let store = store_url(self.dir.path());
        let options = Options {
            address: (ip, 6443).into(),
            arguments: &arguments,
            ..Options::new(&store)
        };
        let (process, client) = options.start(&dir).await;
        let account: ServiceAccount =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "default"}})).unwrap();
        let accounts = Api::namespaced(client.clone(), "default");
        accounts.create(&PostParams::default(), &account).await.unwrap();
        (process, client)
    }

    /// The URL of the host's API.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    /// Creates a folder for the test, which is deleted with the host.
    pub(crate) fn create_dir(&self, name: &str) -> std::path::PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    async fn create_tenant(&self) {
        let mut tenant = Tenant::new(TENANT, Default::default());
        tenant.spec.quota.clusters = 3;
        let api = Api::<Tenant>::all(self.client.clone());
        api.create(&PostParams::default(), &tenant).await.unwrap();
        let observe = async || {
            let _ = self.reconcile_tenant().await;
            let status = api.get(TENANT).await.unwrap().status.unwrap_or_default();
            let ready = status.conditions.into_iter().find(|found| found.type_ == "Ready");
            ready.map(|found| (found.status, found.message))
        };
        self.until("the Tenant to be Ready", observe, |ready| {
            ready.as_ref().is_some_and(|(status, _)| status == "True")
        })
        .await;
    }

    /// Replaces the operator by one that has just started: all its memory is lost.
    pub(crate) async fn restart_operator(&mut self) {
        self.restart_operator_with(build_config(nats_config(&self.nats))).await;
    }

    /// Replaces the operator by one of another release, with this image of the store.
    pub(crate) async fn upgrade_operator(&mut self, store: &str) {
        let config = Config {
            kine_nats_image: store.into(),
            ..build_config(nats_config(&self.nats))
        };
        self.restart_operator_with(config).await;
    }

    async fn restart_operator_with(&mut self, config: Config) {
        let contexts;
        (contexts, self.requeued, self._supervisor) = connect(&self.client, config).await;
        self.context = contexts.cluster;
        self.tenant = contexts.tenant;
        self.join_token = contexts.join_token;
        self.loss = contexts.loss;
    }

    /// Replaces the operator by one that cannot reach NATS.
    pub(crate) async fn restart_operator_without_nats(&mut self) {
        let config = NatsConfig {
            urls: vec!["tls://127.0.0.1:9".into()],
            ..nats_config(&self.nats)
        };
        self.restart_operator_with(build_config(config)).await;
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) fn clusters(&self) -> Api<Cluster> {
        self.api(TENANT)
    }

    /// Returns the reasons of the warning events in the Tenant's namespace.
    pub(crate) async fn events(&self) -> Vec<String> {
        let events = self.api::<Event>(TENANT).list(&Default::default()).await.unwrap().items;
        let warned = events.into_iter().filter(|it| it.type_.as_deref() == Some("Warning"));
        warned.filter_map(|event| event.reason).collect()
    }

    /// Creates a Cluster in the Tenant's namespace.
    pub(crate) async fn create_cluster(&self, name: &str) {
        let cluster = Cluster::new(name, Default::default());
        self.clusters().create(&PostParams::default(), &cluster).await.unwrap();
    }

    pub(crate) async fn cluster(&self, name: &str) -> Cluster {
        self.clusters().get(name).await.unwrap()
    }

    pub(crate) async fn patch_cluster(&self, name: &str, patch: serde_json::Value) {
        let params = PatchParams::default();
        self.clusters()
            .patch(name, &params, &Patch::Merge(patch))
            .await
            .unwrap();
    }

    pub(crate) async fn patch_tenant(&self, patch: serde_json::Value) {
        let api = Api::<Tenant>::all(self.client.clone());
        api.patch(TENANT, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
    }

    /// Reconciles the current Cluster once.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Action, ReconcileError> {
        self.settle().await;
        if self.known_cluster(name).await.is_none() {
            return Ok(Action::await_change());
        }
        self.reconcile_known(name).await
    }

    /// Stops the operator's watches once they have delivered the Cluster. From now on its caches
    /// are stale.
    pub(crate) async fn stop_watches(&mut self, name: &str) {
        self.settle().await;
        self.known_cluster(name).await.unwrap();
        self._supervisor = Supervisor::new(Duration::ZERO);
    }

    /// Reconciles once with what is in the operator's caches.
    pub(crate) async fn reconcile_known(&self, name: &str) -> Result<Action, ReconcileError> {
        let key = ObjectRef::new(name).within(TENANT);
        Box::pin(cluster::reconcile(key, Arc::clone(&self.context))).await
    }

    /// Waits until the operator's cache has the current version of a Cluster, and returns it.
    async fn known_cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        let key = ObjectRef::new(name).within(TENANT);
        let version = |cluster: &Cluster| cluster.resource_version();
        let observe = async || {
            let current = self.clusters().get_opt(name).await.unwrap();
            let cached = self.context.host.caches.clusters.get(&key);
            (current.as_ref().and_then(version), cached)
        };
        let (current, cached) = self
            .until("the cache to have the current Cluster", observe, |(current, cached)| {
                current.is_none() || cached.as_deref().and_then(version) == *current
            })
            .await;
        current.and(cached)
    }

    pub(crate) async fn reconcile_tenant(&self) -> Result<Action, ReconcileError> {
        self.settle().await;
        let api = Api::<Tenant>::all(self.client.clone());
        let Some(tenant) = api.get_opt(TENANT).await.unwrap() else {
            return Ok(Action::await_change());
        };
        Box::pin(tenant::reconcile(Arc::new(tenant), Arc::clone(&self.tenant))).await
    }

    /// Gives the watches a moment to deliver the last writes. A later reconciliation handles the
    /// writes that arrive after that: [`Self::reconcile_until`] and [`Self::until`] repeat it.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }

    /// Reconciles the Cluster and issues certificates until `holds` accepts the observed value, and
    /// returns that value.
    pub(crate) async fn reconcile_until<T: Debug>(
        &self,
        name: &str,
        what: &str,
        observe: impl AsyncFn() -> T,
        mut holds: impl FnMut(&T) -> bool,
    ) -> T {
        let observe = async || {
            let reconcile_error = self.reconcile(name).await.err();
            self.issuer.issue(&self.client).await;
            Observed {
                value: observe().await,
                reconcile_error,
            }
        };
        self.until(what, observe, |observed| holds(&observed.value)).await.value
    }

    /// Like [`Self::reconcile_until`], until the observed value is the expected one.
    pub(crate) async fn reconcile_until_equal<T, E>(
        &self,
        name: &str,
        what: &str,
        observe: impl AsyncFn() -> T,
        expected: E,
    ) where
        T: Debug + PartialEq<E>,
        E: Debug,
    {
        let what = format!("{what} to be {expected:?}");
        self.reconcile_until(name, &what, observe, |value| *value == expected)
            .await;
    }

    /// Like [`Self::reconcile_until`], until a condition of the Cluster is `Status/Reason`.
    pub(crate) async fn reconcile_until_condition(&self, name: &str, type_: &str, expected: &str) {
        let what = format!("condition {type_} of Cluster {name}");
        let observe = async || condition(&self.cluster(name).await, type_);
        self.reconcile_until_equal(name, &what, observe, expected).await;
    }

    /// Like [`Self::reconcile_until`], until the Cluster is Ready.
    pub(crate) async fn reconcile_until_ready(&self, name: &str) {
        self.reconcile_until_condition(name, "Ready", "True/AsExpected").await;
    }

    /// Like [`Self::reconcile_until`], until the StatefulSet of the Cluster requests this number of pods.
    pub(crate) async fn reconcile_until_replicas(&self, name: &str, expected: i32) {
        let what = format!("the replicas of Cluster {name}");
        let observe = async || self.replicas(name).await;
        self.reconcile_until_equal(name, &what, observe, Some(expected)).await;
    }

    /// Like [`Self::reconcile_until`], until the Cluster has a StatefulSet.
    pub(crate) async fn reconcile_until_started(&self, name: &str) {
        let has_set = async || self.stateful_set(&self.hosted(name).await).await.is_some();
        self.reconcile_until_equal(name, "the existence of a StatefulSet", has_set, true)
            .await;
    }

    /// Binds a pod to a node, as the scheduler does.
    pub(crate) async fn bind(&self, hosted: &str, pod: &str, node: &str) {
        let binding = serde_json::json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"kind": "Node", "name": node}});
        let path = format!("/api/v1/namespaces/{hosted}/pods/{pod}/binding");
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(binding.to_string().into_bytes()).unwrap();
        self.client.request_text(request).await.unwrap();
    }

    /// Creates a Cluster, and reconciles until its control plane is requested.
    pub(crate) async fn bring_up(&self, name: &str) -> Cluster {
        self.create_cluster(name).await;
        self.reconcile_until_started(name).await;
        self.cluster(name).await
    }

    /// Deletes a Cluster, and waits until it is gone.
    pub(crate) async fn take_down(&self, name: &str) {
        let hosted = self.hosted(name).await;
        self.clusters().delete(name, &Default::default()).await.unwrap();
        let observe = async || {
            let _ = self.reconcile(name).await;
            self.finalize(&hosted).await;
            self.clusters().get_opt(name).await.unwrap()
        };
        self.until_none("the deletion of the Cluster", observe).await;
    }

    /// Returns the control-plane namespace of a Cluster, or a name that no namespace has.
    pub(crate) async fn hosted(&self, name: &str) -> String {
        let cluster = self.clusters().get_opt(name).await.unwrap();
        let id = cluster.and_then(|cluster| cluster.id());
        id.map_or_else(|| "none".to_owned(), |id| id.hosted_namespace().to_string())
    }

    pub(crate) async fn stateful_set(&self, hosted: &str) -> Option<k8s_openapi::api::apps::v1::StatefulSet> {
        self.api(hosted).get_opt("control-plane").await.unwrap()
    }

    /// Returns the number of pods that the StatefulSet of a Cluster requests; `None` if there is none.
    pub(crate) async fn replicas(&self, name: &str) -> Option<i32> {
        let set = self.stateful_set(&self.hosted(name).await).await?;
        set.spec.unwrap().replicas
    }

    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        self.api(namespace).get_opt(name).await.unwrap()
    }

    /// Returns the text in a Secret; empty if there is none.
    pub(crate) async fn text(&self, namespace: &str, name: &str, key: &str) -> String {
        let data = self.secret(namespace, name).await.and_then(|secret| secret.data);
        let bytes = data.and_then(|mut data| data.remove(key)).unwrap_or_default().0;
        String::from_utf8(bytes).unwrap()
    }

    /// Creates a Cluster with an allowed extra host name, and reconciles until it has the name.
    pub(crate) async fn bring_up_named(&self, name: &str, host_name: &str) {
        let domain = host_name.split_once('.').unwrap().1;
        self.patch_tenant(serde_json::json!({"spec": {"allowedDomains": [domain]}}))
            .await;
        let mut cluster = Cluster::new(name, Default::default());
        cluster.spec.endpoint.extra_sans = vec![host_name.into()];
        self.clusters().create(&PostParams::default(), &cluster).await.unwrap();
        self.reconcile_until_started(name).await;
        self.reconcile_until_names(name, Names::BOTH).await;
    }

    /// Like [`Self::reconcile_until`], until the extra host name of the Cluster is in use like this.
    pub(crate) async fn reconcile_until_names(&self, name: &str, expected: Names) {
        let what = format!("the use of the host name of Cluster {name}");
        let observe = async || self.names_of(name).await;
        self.reconcile_until_equal(name, &what, observe, expected).await;
    }

    /// Returns how the extra host name of a Cluster is in use, or any other under `example.org`.
    pub(crate) async fn names_of(&self, name: &str) -> Names {
        let hosted = self.hosted(name).await;
        let is_extra = |text: &str| text.contains("example.org");
        let published = self.api::<ConfigMap>(&hosted).get_opt("yoke-ingress").await.unwrap();
        let id = self.cluster(name).await.id();
        let serving = format!("{}-apiserver", id.map_or_else(String::new, |id| id.to_string()));
        let requested = self.api::<Certificate>(PKI).get_opt(&serving).await.unwrap();
        Names {
            is_published: published.is_some_and(|map| is_extra(&format!("{:?}", map.data))),
            is_requested: requested.is_some_and(|found| found.spec.dns_names.iter().any(|name| is_extra(name))),
        }
    }

    /// Number of server-side applies so far, by any client, without those of a status.
    pub(crate) async fn count_applies(&self) -> u64 {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = self.context.host.client.request_text(request).await.unwrap();
        let counts_objects = |line: &&str| {
            line.starts_with("apiserver_request_total{")
                && line.contains(r#"verb="APPLY""#)
                && line.contains(r#"subresource="""#)
        };
        let counts = text
            .lines()
            .filter(counts_objects)
            .map(|line| line.rsplit(' ').next().unwrap());
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    /// Returns whether an account has the log of a Cluster.
    pub(crate) async fn has_stream(&self, account: &str, id: &str) -> bool {
        let Ok(client) = self.context.nats.connect_account(account).await else {
            return false;
        };
        let answer = client
            .request(format!("$JS.API.STREAM.INFO.KINE_{id}"), "".into())
            .await;
        let answer: serde_json::Value = serde_json::from_slice(&answer.unwrap().payload).unwrap();
        answer.get("error").is_none()
    }

    /// Creates an account with the name of an identity, which belongs to no Cluster.
    pub(crate) async fn create_account(&self, id: &str) -> String {
        let id = id.parse().unwrap();
        let account = Account::draw(&id, Size::default(), 0).unwrap();
        self.context.nats.ensure_account(&id, &account).await.unwrap();
        account.public_key
    }

    /// Returns whether NATS accepts the credentials of a store's user.
    pub(crate) async fn accepts_user(&self, credentials: &str) -> bool {
        self.nats
            .connect_options(credentials)
            .connect(self.nats.url())
            .await
            .is_ok()
    }

    /// Deletes an object, and waits until the operator's watch has delivered that.
    pub(crate) async fn delete<K>(&self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        self.api::<K>(namespace)
            .delete(name, &Default::default())
            .await
            .unwrap();
        self.settle().await;
    }

    /// Deletes a Secret, and waits until the operator's watch has delivered that.
    pub(crate) async fn lose_secret(&self, namespace: &str, name: &str) {
        self.delete::<Secret>(namespace, name).await;
        let key = ObjectRef::<Secret>::new(name).within(namespace);
        let observe = async || self.context.host.caches.secrets.get(&key).is_some();
        self.until_equal("the presence of the Secret in the cache", observe, false)
            .await;
    }

    /// Deletes a Cluster's object without the operator, and waits until the operator's watch has
    /// delivered that.
    pub(crate) async fn lose_cluster(&self, name: &str) {
        let nothing = serde_json::json!({"metadata": {"finalizers": null}});
        self.patch_cluster(name, nothing).await;
        self.clusters().delete(name, &Default::default()).await.unwrap();
        let key = ObjectRef::<Cluster>::new(name).within(TENANT);
        let observe = async || self.context.host.caches.clusters.get(&key).is_some();
        self.until_equal("the presence of the Cluster in the cache", observe, false)
            .await;
    }

    /// Finalizes a namespace that is being deleted, as its controller would.
    pub(crate) async fn finalize(&self, name: &str) {
        let api = Api::<Namespace>::all(self.client.clone());
        let Some(mut namespace) = api.get_opt(name).await.unwrap() else {
            return;
        };
        if namespace.metadata.deletion_timestamp.is_none() {
            return;
        }
        namespace.spec = None;
        let body = serde_json::to_vec(&namespace).unwrap();
        let request = http::Request::put(format!("/api/v1/namespaces/{name}/finalize"))
            .header("content-type", "application/json")
            .body(body)
            .unwrap();
        self.client.request_text(request).await.unwrap();
    }

    /// Observes until `holds` accepts the value, and returns that value. The failure of the wait
    /// prints the last value.
    pub(crate) async fn until<T: Debug>(
        &self,
        what: &str,
        observe: impl AsyncFn() -> T,
        holds: impl FnMut(&T) -> bool,
    ) -> T {
        let observe = async || Ok::<_, Infallible>(observe().await);
        eventually(what, LIMIT, observe, holds)
            .await
            .unwrap_or_else(|error| panic!("{error}; logs are in {}", self.dir.path().display()))
    }

    /// Like [`Self::until`], until the observed value is the expected one.
    pub(crate) async fn until_equal<T, E>(&self, what: &str, observe: impl AsyncFn() -> T, expected: E)
    where
        T: Debug + PartialEq<E>,
        E: Debug,
    {
        let what = format!("{what} to be {expected:?}");
        self.until(&what, observe, |value| *value == expected).await;
    }

    /// Like [`Self::until`], until there is no value.
    pub(crate) async fn until_none<T: Debug>(&self, what: &str, observe: impl AsyncFn() -> Option<T>) {
        self.until(what, observe, Option::is_none).await;
    }
}

/// Returns status and reason of a condition, `Status/Reason`.
pub(crate) fn condition(cluster: &Cluster, type_: &str) -> String {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .find(|condition| condition.type_ == type_)
        .map_or_else(String::new, |condition| {
            format!("{}/{}", condition.status, condition.reason)
        })
}

/// Listener of the store of a host with its files in `dir`.
fn store_url(dir: &Path) -> String {
    format!("unix://{}/kine.sock", dir.display())
}

async fn start_store(dir: &Path, server: &Server) -> Process {
    let nats = Nats::connect(&nats_config(server)).await.unwrap();
    let size = Size {
        quota: 256 << 20,
        replicas: 1,
    };
    let id = HOST_STORE.parse().unwrap();
    let account = Account::draw(&id, size, 0).unwrap();
    streams::ensure(&nats, &id, &account, false).await.unwrap();
    std::fs::write(dir.join("host.creds"), account.user.unwrap().credentials).unwrap();
    std::fs::copy(server.secret_dir().join("ca.crt"), dir.join("nats-ca.crt")).unwrap();
    Process::spawn(
        dir,
        "kine-nats",
        &[
            format!("--listen={}", store_url(dir)),
            format!("--nats={}", server.url()),
            format!("--creds={}/host.creds", dir.display()),
            format!("--nats-ca={}/nats-ca.crt", dir.display()),
            format!("--stream=KINE_{HOST_STORE}"),
        ],
    )
}

async fn prepare(client: &Client) {
    install_crds(client, &build_cert_manager_crds()).await;
    let namespaces = Api::<Namespace>::all(client.clone());
    for name in ["yoke-system", PKI] {
        let namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }
}

/// Configuration of the operator for a nats-server.
fn nats_config(server: &Server) -> NatsConfig {
    yoke_operator::testing::nats_config(server.port(), server.secret_dir())
}

fn build_config(nats: NatsConfig) -> Config {
    let mut config = Config::parse(include_str!("../../testdata/config.yaml")).unwrap();
    config.nats = nats;
    config.ingress.probe = false;
    config
}

async fn connect(client: &Client, config: Config) -> (Contexts, mpsc::Receiver<ObjectRef<Cluster>>, Supervisor) {
    let nats = Nats::connect(&config.nats).await.unwrap();
    let nats_ca = std::fs::read_to_string(config.nats.secret_dir.join("ca.crt")).unwrap();
    let metrics = Metrics::new("operator");
    let mut supervisor = Supervisor::new(Duration::from_secs(1));
    let (caches, triggered) = cache::start(
        client,
        &mut supervisor,
        &CacheMetrics::new(&metrics),
        cluster::resources::stateful_set::keep_facts,
    );
    let triggered = triggered.wait(&caches).await.unwrap();
    // A test decides itself when to reconcile, so it ignores these.
    let mut clusters = triggered.clusters;
    let mut tenants = triggered.tenants;
    let mut join_tokens = triggered.join_tokens;
    supervisor.spawn_background("triggers", async move {
        use futures::StreamExt as _;
        loop {
            tokio::select! {
                Some(_) = clusters.next() => {}
                Some(_) = tenants.next() => {}
                Some(_) = join_tokens.next() => {}
                else => return Ok::<_, std::io::Error>(()),
            }
        }
    });
    let host = Arc::new(HostApi::new(client.clone(), config, caches));
    let (contexts, tasks) = Contexts::new(Arc::clone(&host), nats, nats_ca, INTERVALS, &metrics);
    // Admissions are ignored, too.
    drop(tasks.due);
    contexts.cluster.queues.restarts.set_rule(QueueLimits {
        at_once: 1,
        ..QueueLimits::RESTARTED
    });
    let (requeues, requeued) = mpsc::channel(1);
    let signer = tasks
        .signer
        .run(Arc::clone(&host), tasks.signer_metrics, supervisor.drain());
    supervisor.spawn_background("signer", async move {
        signer.await;
        Ok::<_, std::io::Error>(())
    });
    let reaper = tasks.reaper.run(host, tasks.reaper_metrics, supervisor.drain());
    supervisor.spawn_background("reaper", async move {
        reaper.await;
        Ok::<_, std::io::Error>(())
    });
    let kept = tasks.endpoint_guard.run(
        Arc::clone(&contexts.cluster.memory),
        contexts.cluster.base_objects.clone(),
        requeues,
        supervisor.drain(),
    );
    supervisor.spawn_background("keeper", async move {
        kept.await;
        Ok::<_, std::io::Error>(())
    });
    (contexts, requeued, supervisor)
}
