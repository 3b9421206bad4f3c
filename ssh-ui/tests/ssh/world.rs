//! A host with two Tenants and the server, as the chart and the operator set them up.

use std::convert::Infallible;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::watch;
use yoke_api::{Cluster, Tenant};
use yoke_runtime::budget::Rate;
use yoke_runtime::{Metrics as Registry, Readiness, Supervisor};
use yoke_ssh_ui::identity::key_registry::KeyRegistry;
use yoke_ssh_ui::identity::tenants_watch::keep_key_registry;
use yoke_ssh_ui::limits::admission::{Admission, Limits};
use yoke_ssh_ui::metrics::Metrics;
use yoke_ssh_ui::shared::Shared;
use yoke_ssh_ui::ssh::host_key::{self, HostKeyError};
use yoke_ssh_ui::ssh::server::Server;
use yoke_test_support::kubernetes::{Options, connect, install_crds};
use yoke_test_support::{Process, eventually, free_port};

use crate::api;
use crate::audit::Log;
use crate::person::{Person, run};

const SERVER: &str = "system:serviceaccount:yoke-system:yoke-ssh-ui";
pub(crate) const SERVER_TOKEN: &str = "ssh-server";
pub(crate) const NAMESPACE: &str = "yoke-system";
pub(crate) const HOST_KEY: &str = "yoke-ssh-host-key";
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Burst of commands with one key in these tests.
pub(crate) const BURST: u32 = 250;
pub(crate) const LIMITS: Limits = Limits {
    connections: 64,
    source_connections: 64,
    newcomers: 32,
    source_newcomers: 16,
    tenant_connections: 4,
    tenant_interfaces: 2,
    tenant_downloads: 1,
    source: Rate {
        per_second: 1,
        burst: 1000,
    },
    key: Rate {
        per_second: 1,
        burst: BURST,
    },
};

pub(crate) const CONTACT: &str = "owner@example.org";

/// The host and its users.
pub(crate) struct World {
    /// User of Tenant `a`, with an ed25519 key.
    pub(crate) alice: Person,
    /// User of Tenant `b`, with an ECDSA key.
    pub(crate) bob: Person,
    /// User without a Tenant.
    pub(crate) mallory: Person,
    /// Client with the permissions of the host's owner.
    pub(crate) admin: Client,
    /// Client with the server's own permissions.
    pub(crate) server: Client,
    /// Address of the host's API.
    pub(crate) address: String,
    pub(crate) dir: tempfile::TempDir,
    port: AtomicU16,
    /// Port of the HTTPS API.
    pub(crate) api_port: u16,
    /// The audit log of the server.
    pub(crate) log: Log,
    registry: Registry,
    _running: Supervisor,
    _api: Process,
    _store: Process,
}

impl World {
    pub(crate) async fn start() -> Self {
        yoke_runtime::install_crypto();
        let log = Log::hear();
        let dir = tempfile::tempdir().unwrap();
        let [client, peer] = [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
        let store = Process::spawn(
            dir.path(),
            "etcd",
            &[
                format!("--data-dir={}/etcd", dir.path().display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--unsafe-no-fsync".into(),
            ],
        );
        let options = Options {
            users: &[(SERVER_TOKEN, SERVER)],
            ..Options::new(&client)
        };
        let (api, admin) = options.start(dir.path()).await;
        install_crds(&admin, &[]).await;
        let mut alice = Person::new(dir.path(), "alice", "ed25519").await;
        let mut bob = Person::new(dir.path(), "bob", "ecdsa").await;
        let mut mallory = Person::new(dir.path(), "mallory", "ed25519").await;
        install_server(&admin).await;
        add_tenant(&admin, "a", "laptop", &alice.public).await;
        add_tenant(&admin, "b", "desk", &bob.public).await;

        let address = options.url();
        let server = connect(&address, SERVER_TOKEN);
        let registry = Registry::new("ssh_ui");
        let (running, port, api_port) = serve(&server, &registry, dir.path()).await;
        let known_hosts = dir.path().join("known_hosts");
        let secret = Api::<Secret>::namespaced(admin.clone(), NAMESPACE)
            .get(HOST_KEY)
            .await
            .unwrap();
        let public = &secret.data.unwrap()[host_key::PUBLIC].0;
        let public = std::str::from_utf8(public).unwrap();
        std::fs::write(&known_hosts, format!("[127.0.0.1]:{port} {public}")).unwrap();
        for person in [&mut alice, &mut bob, &mut mallory] {
            person.meet(port, &known_hosts);
        }
        Self {
            alice,
            bob,
            mallory,
            admin,
            server,
            address,
            dir,
            port: port.into(),
            api_port,
            log,
            registry,
            _running: running,
            _api: api,
            _store: store,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the directory of the worker programs, which does not exist at first.
    pub(crate) fn workers(&self) -> PathBuf {
        self.path("workers")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.load(Ordering::Relaxed)
    }

    /// Returns the value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (text, name) = (self.registry.to_text().unwrap(), format!("yoke_ssh_ui_{name} "));
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn clusters(&self, tenant: &str) -> Api<Cluster> {
        Api::namespaced(self.admin.clone(), tenant)
    }

    /// Sets the status of a Cluster as the operator does, and its kubeconfig once it is ready.
    pub(crate) async fn tell(&self, tenant: &str, name: &str, is_ready: bool, message: &str) {
        let api = self.clusters(tenant);
        let generation = api.get(name).await.unwrap().metadata.generation;
        let (status, reason) = if is_ready {
            ("True", "AsExpected")
        } else {
            ("False", "PodPending")
        };
        let kubeconfig = is_ready.then(|| json!({"name": format!("{name}-kubeconfig")}));
        let status = json!({"status": {
            "observedGeneration": generation, "phase": "Running", "version": "v1.35.4", "kubeconfigRef": kubeconfig,
            "conditions": [{"type": "Ready", "status": status, "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }});
        if is_ready {
            let text = format!("apiVersion: v1\nkind: Config\nclusters: []\n# of {tenant}/{name}\n");
            self.set_kubeconfig(tenant, name, &text).await;
            put(&self.admin, &role_of(tenant, &[name])).await;
        }
        let params = PatchParams::default();
        api.patch_status(name, &params, &Patch::Merge(&status)).await.unwrap();
    }

    /// Sets the status of a sleeping Cluster as the operator does.
    pub(crate) async fn tell_asleep(&self, tenant: &str, name: &str) {
        let api = self.clusters(tenant);
        let generation = api.get(name).await.unwrap().metadata.generation;
        let status = json!({"status": {"observedGeneration": generation, "phase": "Asleep",
            "conditions": [{"type": "Asleep", "status": "True", "reason": "AsleepByOwner", "message": "It sleeps.",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
        let params = PatchParams::default();
        api.patch_status(name, &params, &Patch::Merge(&status)).await.unwrap();
    }

    /// Writes the kubeconfig Secret as the operator does.
    pub(crate) async fn set_kubeconfig(&self, tenant: &str, name: &str, text: &str) {
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": format!("{name}-kubeconfig"), "namespace": tenant}, "stringData": {"value": text}});
        put(&self.admin, &secret).await;
    }

    /// Sets the endpoint of a Cluster's API in its status.
    pub(crate) async fn set_address(&self, tenant: &str, name: &str, address: &str) {
        let endpoint = json!({"url": "https://name.example.org", "serverName": "name.example.org", "address": address,
            "audience": "x", "issuer": "x"});
        let patch = json!({"status": {"endpoint": endpoint}});
        let (api, params) = (self.clusters(tenant), PatchParams::default());
        api.patch_status(name, &params, &Patch::Merge(&patch)).await.unwrap();
    }

    /// Replaces the keys of a Tenant: names and lines.
    pub(crate) async fn set_keys(&self, tenant: &str, keys: &[(&str, &str)]) {
        let keys: Vec<_> = keys
            .iter()
            .map(|(name, line)| json!({"name": name, "publicKey": line}))
            .collect();
        let patch = json!({"spec": {"sshKeys": keys}});
        let api = Api::<Tenant>::all(self.admin.clone());
        api.patch(tenant, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// Waits until a value fulfills a condition. `what` completes the sentence "waited for …".
    pub(crate) async fn until<T: Debug>(
        &self,
        what: &str,
        mut observe: impl AsyncFnMut() -> T,
        holds: impl FnMut(&T) -> bool,
    ) {
        let observe = async || Ok::<_, Infallible>(observe().await);
        eventually(what, LIMIT, observe, holds).await.unwrap();
    }

    /// Waits until a metric of the server has a value.
    pub(crate) async fn until_metric(&self, name: &str, expected: u64) {
        let what = format!("{name} to be {expected}");
        self.until(&what, async || self.metric(name), |value| *value == expected)
            .await;
    }

    pub(crate) async fn unusable_host_keys_are_errors(&self) {
        for (name, kind, passphrase) in [("encrypted", "ed25519", "secret"), ("rsa", "rsa", "")] {
            let file = self.path(&format!("host-{name}"));
            let file = file.to_str().unwrap();
            run(Command::new("ssh-keygen").args(["-q", "-t", kind, "-N", passphrase, "-f", file]))
                .await
                .ok();
            let text = std::fs::read_to_string(file).unwrap();
            let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE},
                "stringData": {host_key::PRIVATE: text}});
            put(&self.admin, &secret).await;
        }
        let load = async |name: &str| host_key::load(self.admin.clone(), NAMESPACE, name).await.unwrap_err();
        assert!(matches!(load("encrypted").await, HostKeyError::Encrypted(name) if name == "encrypted"));
        let error = load("rsa").await;
        assert!(
            matches!(&error, HostKeyError::Kind { kind, .. } if kind == "ssh-rsa"),
            "{error:?}"
        );
    }

    pub(crate) async fn restarted_server_has_the_same_key(&self) {
        let before = host_key::load(self.server.clone(), NAMESPACE, HOST_KEY).await.unwrap();
        let again = host_key::load(self.server.clone(), NAMESPACE, HOST_KEY).await.unwrap();
        assert_eq!(before.public_key(), again.public_key());
        let known = std::fs::read_to_string(self.path("known_hosts")).unwrap();
        let line = format!(
            "[127.0.0.1]:{} {}",
            self.port(),
            before.public_key().to_openssh().unwrap()
        );
        assert_eq!(known.trim(), line);
    }
}

/// Serves as the process does, with other limits.
async fn serve(client: &Client, registry: &Registry, folder: &Path) -> (Supervisor, u16, u16) {
    let mut supervisor = Supervisor::new(Duration::from_secs(1));
    let metrics = Metrics::new(registry);
    let readiness = Readiness::new();
    let listed = readiness.check("tenants");
    let key = host_key::load(client.clone(), NAMESPACE, HOST_KEY).await.unwrap();
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = server.local_address().port();
    let (keys, known) = watch::channel(KeyRegistry::default());
    let drain = supervisor.drain();
    let watching = keep_key_registry(client.clone(), keys, metrics.clone(), listed, drain.clone());
    supervisor.spawn("tenants", watching);
    let shared = Arc::new(Shared {
        host: client.clone(),
        keys: known,
        admission: Admission::new(LIMITS, Instant::now()).into(),
        contact: Some(CONTACT.into()),
        worker_binaries: Some(folder.join("workers")),
        write_limit: Duration::from_secs(3),
        metrics,
    });
    let api = api::serve(&mut supervisor, &shared, folder).await;
    supervisor.spawn("ssh", server.serve(shared, key, Duration::from_secs(60), drain));
    let failing = async || Ok::<_, Infallible>(readiness.failing());
    eventually("no failing check", LIMIT, failing, |failing| failing.is_empty())
        .await
        .unwrap();
    (supervisor, port, api)
}

/// Creates what the chart creates for the server: permissions, and an empty Secret. `cargo xtask
/// check` checks the templates, and e2e tests check their permissions on the running stack.
async fn install_server(admin: &Client) {
    let named = |kind: &str, rest: Value| {
        let mut object =
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "yoke-ssh-ui"}});
        object
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        object
    };
    let subjects = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": SERVER}]);
    let reference = |kind: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "yoke-ssh-ui"});
    put(admin, &namespace(NAMESPACE)).await;
    let rules = json!([
        {"apiGroups": ["yoke.drzzl.io"], "resources": ["tenants"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["yoke-ssh"], "verbs": ["impersonate"]},
    ]);
    put(admin, &named("ClusterRole", json!({"rules": rules}))).await;
    let binding = json!({"roleRef": reference("ClusterRole"), "subjects": subjects});
    put(admin, &named("ClusterRoleBinding", binding)).await;
    let own = json!({"name": "yoke-ssh-ui", "namespace": NAMESPACE});
    let rules =
        json!([{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [HOST_KEY], "verbs": ["get", "update"]}]);
    put(admin, &named("Role", json!({"metadata": own, "rules": rules}))).await;
    let binding = json!({"metadata": own, "roleRef": reference("Role"), "subjects": subjects});
    put(admin, &named("RoleBinding", binding)).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": HOST_KEY, "namespace": NAMESPACE}});
    put(admin, &secret).await;
}

/// Creates what the operator creates for a Tenant with a key.
async fn add_tenant(admin: &Client, name: &str, key: &str, line: &str) {
    let spec = json!({"sshKeys": [{"name": key, "publicKey": line}]});
    put(
        admin,
        &json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}),
    )
    .await;
    put(admin, &namespace(name)).await;
    put(admin, &role_of(name, &[])).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "yoke-tenant", "namespace": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "yoke-tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": "yoke-ssh", "namespace": name}],
    });
    put(admin, &binding).await;
}

fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

fn role_of(tenant: &str, clusters: &[&str]) -> Value {
    let verbs = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
    ];
    let mut rules = vec![
        json!({"apiGroups": ["yoke.drzzl.io"], "resources": ["clusters", "jointokens"], "verbs": verbs}),
        json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["get", "list", "watch"]}),
    ];
    if !clusters.is_empty() {
        let names: Vec<_> = clusters.iter().map(|name| format!("{name}-kubeconfig")).collect();
        rules.push(json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get"]}));
    }
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "yoke-tenant", "namespace": tenant}, "rules": rules})
}

/// Creates or updates an object.
pub(crate) async fn put(client: &Client, object: &Value) {
    let version = object["apiVersion"].as_str().unwrap();
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = object["kind"].as_str().unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let name = object["metadata"]["name"].as_str().unwrap();
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams::apply("test").force();
    api.patch(name, &params, &Patch::Apply(object)).await.unwrap();
}
