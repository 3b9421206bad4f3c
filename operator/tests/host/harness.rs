//! A real host API of a test's own: nats-server, kine-nats and kube-apiserver on free ports of loopback, with the operator's
//! own watches on it. Nothing else runs there: no kubelet, no controller manager; what they would do, a test does.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use yoke_api::{Cluster, Tenant};
use yoke_operator::apply::Applier;
use yoke_operator::cluster::Rule;
use yoke_operator::config::{Config, NatsConfig};
use yoke_operator::context::Context;
use yoke_operator::events::Events;
use yoke_operator::loss::Losses;
use yoke_operator::metrics::OperatorMetrics;
use yoke_operator::nats::{Account, Nats, Size, streams};
use yoke_operator::notice::Notices;
use yoke_operator::reaper::{Pace, Reaper};
use yoke_operator::signer::Signer;
use yoke_operator::slots::Slots;
use yoke_operator::tenant_api::{TenantApis, build_base};
use yoke_operator::{ReconcileError, cache, cluster, join_token, tenant};
use yoke_pki::cert_manager::Certificate;
use yoke_runtime::{Metrics, Supervisor};
use yoke_test_support::kubernetes::{OWNER_TOKEN, Options, install_crds};
use yoke_test_support::{Process, free_port};

use crate::issuer::CertManager;
use crate::support::Server;

const HOST_STORE: &str = "hhhhhhhhh2";
/// How long anything may take here.
const LIMIT: Duration = Duration::from_secs(40);
/// The Tenant of a test.
pub(crate) const TENANT: &str = "demo";
/// Silent Nodes are looked for as often as a test reconciles.
const PACE: Pace = Pace {
    every: Duration::ZERO,
    looks: 4,
    doubt: Duration::from_secs(1),
    // Kubernetes looks each 20 s which Pods are on machines that are out of service.
    linger: Duration::from_secs(25),
    known: Duration::ZERO,
};
/// Namespace of the certificate authorities.
pub(crate) const PKI: &str = "yoke-pki";

/// A host with the operator's view of it; dropped, its processes end.
pub(crate) struct Host {
    pub(crate) client: Client,
    pub(crate) context: Arc<Context>,
    pub(crate) issuer: CertManager,
    /// Clusters that the operator's watches of tenants' own APIs call for.
    pub(crate) called: mpsc::Receiver<ObjectRef<Cluster>>,
    _supervisor: Supervisor,
    _api: Process,
    _store: Process,
    pub(crate) nats: Server,
    url: String,
    dir: tempfile::TempDir,
}

/// Where a host name is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    /// In what the ingress is told.
    pub(crate) is_published: bool,
    /// In the Certificate of the API server.
    pub(crate) is_asked_for: bool,
}

impl Host {
    /// Starts a host with the Tenant [`TENANT`], reconciled once.
    pub(crate) async fn start() -> Self {
        Self::start_on(Server::start().await).await
    }

    /// The same, on a nats-server that was started for it.
    pub(crate) async fn start_on(nats: Server) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = start_store(dir.path(), &nats).await;
        let socket = store_url(dir.path());
        let options = Options::new(&socket);
        let (url, (api, client)) = (options.url(), options.start(dir.path()).await);
        prepare(&client).await;
        let issuer = CertManager::start(&client).await;
        let (context, called, supervisor) = connect(&client, build_config(nats.config())).await;
        let host = Self {
            client,
            context,
            issuer,
            called,
            _supervisor: supervisor,
            _api: api,
            _store: store,
            nats,
            url,
            dir,
        };
        host.make_tenant().await;
        host
    }

    /// Starts the controller that counts what ResourceQuotas are about.
    pub(crate) fn start_counting(&self) -> Process {
        self.start_controllers(&self.url, "resourcequota-controller")
    }

    /// Starts controllers of Kubernetes' own, for an API.
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

    /// Starts the real API of a Cluster, in the host's store, where the Service says and with the certificate that was
    /// issued for it; what its controllers make first is there.
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

    /// A folder of a test's own, which goes with the host.
    pub(crate) fn make_dir(&self, name: &str) -> std::path::PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        dir
    }

    async fn make_tenant(&self) {
        let mut tenant = Tenant::new(TENANT, Default::default());
        tenant.spec.quota.clusters = 3;
        let api = Api::<Tenant>::all(self.client.clone());
        api.create(&PostParams::default(), &tenant).await.unwrap();
        self.until("the Tenant is ready", async || {
            let _ = self.reconcile_tenant().await;
            let status = api.get(TENANT).await.unwrap().status.unwrap_or_default();
            let mut conditions = status.conditions.iter();
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        })
        .await;
    }

    /// An operator that has just started on the same host: what is kept in memory only is gone.
    pub(crate) async fn restart_operator(&mut self) {
        self.restart_operator_with(build_config(self.nats.config())).await;
    }

    /// The same, of another release: what each control plane has as its store is another image.
    pub(crate) async fn upgrade_operator(&mut self, store: &str) {
        let config = Config {
            kine_nats_image: store.into(),
            ..build_config(self.nats.config())
        };
        self.restart_operator_with(config).await;
    }

    async fn restart_operator_with(&mut self, config: Config) {
        (self.context, self.called, self._supervisor) = connect(&self.client, config).await;
    }

    /// The same, where nobody listens at the address of NATS.
    pub(crate) async fn restart_operator_without_nats(&mut self) {
        let config = NatsConfig {
            urls: vec!["tls://127.0.0.1:9".into()],
            ..self.nats.config()
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

    /// The reasons of the warnings that the Tenant was told.
    pub(crate) async fn events(&self) -> Vec<String> {
        let events = self.api::<Event>(TENANT).list(&Default::default()).await.unwrap().items;
        let warned = events.into_iter().filter(|it| it.type_.as_deref() == Some("Warning"));
        warned.filter_map(|event| event.reason).collect()
    }

    /// Makes a Cluster in the Tenant's namespace.
    pub(crate) async fn make_cluster(&self, name: &str) {
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

    /// One reconciliation of the Cluster as it is.
    pub(crate) async fn reconcile(&self, name: &str) -> Result<Action, ReconcileError> {
        self.settle().await;
        if self.known_cluster(name).await.is_none() {
            return Ok(Action::await_change());
        }
        self.reconcile_known(name).await
    }

    /// Ends the operator's watches when they have told all of the Cluster: by what is written from now on they lag behind.
    pub(crate) async fn stop_watches(&mut self, name: &str) {
        self.settle().await;
        self.known_cluster(name).await.unwrap();
        self._supervisor = Supervisor::new(Duration::ZERO);
    }

    /// One reconciliation by what the operator's watches have told.
    pub(crate) async fn reconcile_known(&self, name: &str) -> Result<Action, ReconcileError> {
        let key = ObjectRef::new(name).within(TENANT);
        Box::pin(cluster::reconcile(key, Arc::clone(&self.context))).await
    }

    /// A Cluster as the operator knows it, when it has seen what is there now.
    async fn known_cluster(&self, name: &str) -> Option<Arc<Cluster>> {
        let key = ObjectRef::new(name).within(TENANT);
        loop {
            let there = self.clusters().get_opt(name).await.unwrap()?;
            let known = self.context.caches.clusters.get(&key);
            if let Some(known) = known.filter(|known| known.resource_version() == there.resource_version()) {
                return Some(known);
            }
            self.settle().await;
        }
    }

    pub(crate) async fn reconcile_tenant(&self) -> Result<Action, ReconcileError> {
        self.settle().await;
        let api = Api::<Tenant>::all(self.client.clone());
        let Some(tenant) = api.get_opt(TENANT).await.unwrap() else {
            return Ok(Action::await_change());
        };
        Box::pin(tenant::reconcile(Arc::new(tenant), Arc::clone(&self.context))).await
    }

    /// Gives the watches a moment to see what was just written. What they have not seen by then, a later reconciliation
    /// does: whoever waits for a result calls [`Self::bring`] or [`Self::until`], which go on until it is there.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(60)).await;
    }

    /// Reconciles the Cluster, with certificates issued, until it is so.
    pub(crate) async fn bring(&self, name: &str, what: &str, so: impl AsyncFn() -> bool) {
        self.until(what, async || {
            let result = self.reconcile(name).await;
            self.issuer.issue(&self.client).await;
            let so = so().await;
            if let (false, Err(error)) = (so, &result) {
                eprintln!("{what}: {error:?}");
            }
            so
        })
        .await;
    }

    /// Puts a pod on a machine, as the scheduler does.
    pub(crate) async fn bind(&self, hosted: &str, pod: &str, machine: &str) {
        let binding = serde_json::json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"kind": "Node", "name": machine}});
        let path = format!("/api/v1/namespaces/{hosted}/pods/{pod}/binding");
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(binding.to_string().into_bytes()).unwrap();
        self.client.request_text(request).await.unwrap();
    }

    /// Makes a Cluster and brings it so far that a control plane is asked for.
    pub(crate) async fn bring_up(&self, name: &str) -> Cluster {
        self.make_cluster(name).await;
        self.bring(name, "a control plane is asked for", async || {
            let hosted = self.hosted(name).await;
            let set = self.stateful_set(&hosted).await;
            set.is_some()
        })
        .await;
        self.cluster(name).await
    }

    /// Deletes a Cluster, and waits until it is gone.
    pub(crate) async fn take_down(&self, name: &str) {
        let hosted = self.hosted(name).await;
        self.clusters().delete(name, &Default::default()).await.unwrap();
        self.until("the Cluster is gone", async || {
            let _ = self.reconcile(name).await;
            self.finalize(&hosted).await;
            self.clusters().get_opt(name).await.unwrap().is_none()
        })
        .await;
    }

    /// The hosted namespace of a Cluster; a name that no namespace has while it has none.
    pub(crate) async fn hosted(&self, name: &str) -> String {
        let cluster = self.clusters().get_opt(name).await.unwrap();
        let id = cluster.and_then(|cluster| cluster.id());
        id.map_or_else(|| "none".to_owned(), |id| id.hosted_namespace().to_string())
    }

    pub(crate) async fn stateful_set(&self, hosted: &str) -> Option<k8s_openapi::api::apps::v1::StatefulSet> {
        self.api(hosted).get_opt("control-plane").await.unwrap()
    }

    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Option<Secret> {
        self.api(namespace).get_opt(name).await.unwrap()
    }

    /// The text under a key of a Secret; empty if there is none.
    pub(crate) async fn text(&self, namespace: &str, name: &str, key: &str) -> String {
        let data = self.secret(namespace, name).await.and_then(|secret| secret.data);
        let bytes = data.and_then(|mut data| data.remove(key)).unwrap_or_default().0;
        String::from_utf8(bytes).unwrap()
    }

    /// Makes a Cluster that asks for one more host name, which its Tenant may have, and brings it so far that it has it.
    pub(crate) async fn bring_up_named(&self, name: &str, host_name: &str) {
        let domain = host_name.split_once('.').unwrap().1;
        self.patch_tenant(serde_json::json!({"spec": {"allowedDomains": [domain]}}))
            .await;
        let mut cluster = Cluster::new(name, Default::default());
        cluster.spec.endpoint.extra_sans = vec![host_name.into()];
        self.clusters().create(&PostParams::default(), &cluster).await.unwrap();
        self.bring(name, "it runs, under its name", async || {
            let names = self.names_of(name).await;
            names.is_published && names.is_asked_for && self.stateful_set(&self.hosted(name).await).await.is_some()
        })
        .await;
    }

    /// Where the one more host name of a Cluster is, or any other under `example.org`.
    pub(crate) async fn names_of(&self, name: &str) -> Names {
        let hosted = self.hosted(name).await;
        let is_more = |text: &str| text.contains("example.org");
        let told = self.api::<ConfigMap>(&hosted).get_opt("yoke-ingress").await.unwrap();
        let id = self.cluster(name).await.id();
        let leaf = format!("{}-apiserver", id.map_or_else(String::new, |id| id.to_string()));
        let asked = self.api::<Certificate>(PKI).get_opt(&leaf).await.unwrap();
        Names {
            is_published: told.is_some_and(|told| is_more(&format!("{:?}", told.data))),
            is_asked_for: asked.is_some_and(|asked| asked.spec.dns_names.iter().any(|name| is_more(name))),
        }
    }

    /// Objects that were applied up to now, by whomever, but for their status.
    pub(crate) async fn applied(&self) -> u64 {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = self.context.client.request_text(request).await.unwrap();
        let of_objects = |line: &&str| {
            line.starts_with("apiserver_request_total{")
                && line.contains(r#"verb="APPLY""#)
                && line.contains(r#"subresource="""#)
        };
        let counts = text
            .lines()
            .filter(of_objects)
            .map(|line| line.rsplit(' ').next().unwrap());
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    }

    /// Whether an account has the log of a Cluster.
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

    /// An account that has the name of an identity, and is no Cluster's.
    pub(crate) async fn make_account(&self, id: &str) -> String {
        let id = id.parse().unwrap();
        let account = Account::draw(&id, Size::default(), 0).unwrap();
        self.context.nats.ensure_account(&id, &account).await.unwrap();
        account.public_key
    }

    /// Whether a store's user is let in.
    pub(crate) async fn lets_in(&self, credentials: &str) -> bool {
        self.nats
            .connect_options(credentials)
            .connect(self.nats.url())
            .await
            .is_ok()
    }

    /// Deletes an object, and waits until the operator's watch knows.
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

    /// Deletes a Secret and waits until the operator's watch knows.
    pub(crate) async fn lose_secret(&self, namespace: &str, name: &str) {
        self.delete::<Secret>(namespace, name).await;
        let key = ObjectRef::<Secret>::new(name).within(namespace);
        self.until("the watch knows that a Secret is gone", async || {
            self.context.caches.secrets.get(&key).is_none()
        })
        .await;
    }

    /// Takes a Cluster's object away without the operator, and waits until the operator's watch knows.
    pub(crate) async fn lose_cluster(&self, name: &str) {
        let nothing = serde_json::json!({"metadata": {"finalizers": null}});
        self.patch_cluster(name, nothing).await;
        self.clusters().delete(name, &Default::default()).await.unwrap();
        let key = ObjectRef::<Cluster>::new(name).within(TENANT);
        self.until("the watch knows that a Cluster is gone", async || {
            self.context.caches.clusters.get(&key).is_none()
        })
        .await;
    }

    /// Ends a namespace that is being deleted, as its controller would.
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

    /// Waits until it is so; never for a time.
    pub(crate) async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if so().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!(
            "not so within {LIMIT:?}: {what}; logs are in {}",
            self.dir.path().display()
        );
    }
}

/// The state and the reason of a condition, `Status/Reason`.
pub(crate) fn condition(cluster: &Cluster, type_: &str) -> String {
    let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    conditions
        .into_iter()
        .find(|condition| condition.type_ == type_)
        .map_or_else(String::new, |condition| {
            format!("{}/{}", condition.status, condition.reason)
        })
}

/// Where the store of a host with its files in `dir` listens.
fn store_url(dir: &Path) -> String {
    format!("unix://{}/kine.sock", dir.display())
}

async fn start_store(dir: &Path, server: &Server) -> Process {
    let nats = Nats::connect(&server.config()).await.unwrap();
    let size = Size {
        quota: 256 << 20,
        replicas: 1,
    };
    let id = HOST_STORE.parse().unwrap();
    let account = Account::draw(&id, size, 0).unwrap();
    streams::ensure(&nats, &id, &account, false).await.unwrap();
    std::fs::write(dir.join("host.creds"), account.user.unwrap().credentials).unwrap();
    std::fs::copy(server.config().secret_dir.join("ca.crt"), dir.join("nats-ca.crt")).unwrap();
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
    let kinds = [
        ("certificates", "Certificate"),
        ("certificaterequests", "CertificateRequest"),
        ("issuers", "Issuer"),
    ];
    let certificates = kinds.map(|(plural, kind)| {
        let crd = serde_json::json!({
            "metadata": {"name": format!("{plural}.cert-manager.io")},
            "spec": {
                "group": "cert-manager.io", "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        });
        serde_json::from_value(crd).unwrap()
    });
    install_crds(client, &certificates).await;
    let namespaces = Api::<Namespace>::all(client.clone());
    for name in ["yoke-system", PKI] {
        let namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    }
}

fn build_config(nats: NatsConfig) -> Config {
    let mut config = Config::parse(include_str!("../../testdata/config.yaml")).unwrap();
    config.nats = nats;
    config.ingress.probe = false;
    config
}

async fn connect(client: &Client, config: Config) -> (Arc<Context>, mpsc::Receiver<ObjectRef<Cluster>>, Supervisor) {
    let nats = Nats::connect(&config.nats).await.unwrap();
    let nats_ca = std::fs::read_to_string(config.nats.secret_dir.join("ca.crt")).unwrap();
    let metrics = OperatorMetrics::new(&Metrics::new("operator"));
    let mut supervisor = Supervisor::new(Duration::from_secs(1));
    let (caches, triggered) = cache::start(client, &mut supervisor, &metrics);
    let triggered = triggered.wait(&caches).await.unwrap();
    // Nobody heeds the triggers here: a test says when to reconcile.
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
    let (guard, keeper) = cluster::Guard::new();
    let (signer, signing) = Signer::new();
    let (reaper, reaping) = Reaper::new(PACE);
    let context = Context {
        guard,
        signer,
        reaper,
        // Nobody heeds these calls either.
        turns: cluster::Turns::new(Rule::MADE).0,
        restarts: cluster::Turns::new(Rule {
            at_once: 1,
            ..Rule::RESTARTED
        })
        .0,
        starts: cluster::Turns::new(Rule::of_starts(0)).0,
        losses: Losses::default(),
        notices: Notices::default(),
        join_token_slots: Slots::new(join_token::AT_ONCE),
        late_slots: Slots::new(cluster::LATE_AT_ONCE),
        join_tokens: Applier::new(client.clone(), join_token::CONTROLLER),
        base: build_base(&config.ingress.address, config.ingress.port),
        clusters: Applier::new(client.clone(), cluster::CONTROLLER),
        tenants: Applier::new(client.clone(), tenant::CONTROLLER),
        apis: TenantApis::default(),
        events: Events::new(client.clone()),
        metrics,
        root: tokio::sync::Mutex::default(),
        copying: tokio::sync::Semaphore::new(cluster::COPIED_AT_ONCE),
        seen: std::sync::Mutex::default(),
        awake: std::sync::Mutex::default(),
        client: client.clone(),
        config,
        nats_ca,
        nats,
        caches,
    };
    let context = Arc::new(context);
    let (calls, called) = mpsc::channel(1);
    let signed = signing.run(Arc::clone(&context), supervisor.drain());
    supervisor.spawn_background("signer", async move {
        signed.await;
        Ok::<_, std::io::Error>(())
    });
    let reaped = reaping.run(Arc::clone(&context), supervisor.drain());
    supervisor.spawn_background("reaper", async move {
        reaped.await;
        Ok::<_, std::io::Error>(())
    });
    let kept = keeper.run(Arc::clone(&context), calls, supervisor.drain());
    supervisor.spawn_background("keeper", async move {
        kept.await;
        Ok::<_, std::io::Error>(())
    });
    (context, called, supervisor)
}
