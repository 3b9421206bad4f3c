//! Checks `kubectl top` for two workers: the API server calls metrics-server through konnectivity,
//! and metrics-server calls the kubelets. Every certificate is verified.
//!
//! ```text
//!  kubectl ─▶ kube-apiserver ═ unix socket ═ konnectivity-server ═ agents on both ─▶ kube-proxy ─▶ metrics-server ─▶ kubelets
//! ```

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use rcgen::{DnType, ExtendedKeyUsagePurpose};
use serde_json::{Value, json};
use yoke_test_support::kubernetes::OWNER_TOKEN;
use yoke_test_support::{Process, eventually, free_port};

use crate::bundle::{self, bin};
use crate::cluster::{Cluster, create};
use crate::machine::{Init, JOIN_LIMIT, Machine, POD_LIMIT, Worker, until};
use crate::network::Network;
use crate::pair::join_both;
use crate::program::path;
use crate::signer::Authority;

const NAME: &str = "metrics-server";
const NAMESPACE: &str = "kube-system";
const FRONT: &str = "front-proxy-client";

/// A process in a network namespace. Dropping it ends the process.
struct Part(Child);

impl Part {
    fn start(machine: &Machine, net: &Path, program: &str, arguments: &[String]) -> Self {
        let log = std::fs::File::create(machine.folder("parts").join(format!("{program}.log"))).unwrap();
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", path(net)));
        command.arg(bin().join(program)).args(arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        Self(child.unwrap())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Certificates and files of a control plane that reaches its workers through agents, and calls
/// other API servers.
struct ControlPlaneFiles {
    dir: PathBuf,
    host: String,
    port: u16,
}

impl ControlPlaneFiles {
    fn make(dir: &Path, host: &str) -> Self {
        let front = Authority::new("front");
        let client = front.issue(&[], &[(DnType::CommonName, FRONT)], ExtendedKeyUsagePurpose::ClientAuth);
        let agents = Authority::new("agents");
        let server = agents.issue(&[host], &[], ExtendedKeyUsagePurpose::ServerAuth);
        let agent = agents.issue(
            &[],
            &[(DnType::CommonName, "agent")],
            ExtendedKeyUsagePurpose::ClientAuth,
        );
        let transport = json!({"uds": {"udsName": dir.join("konnectivity.sock")}});
        let egress = json!({
            "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
            "egressSelections": [{"name": "cluster", "connection": {"proxyProtocol": "GRPC", "transport": transport}}],
        });
        for (name, text) in [
            ("front.crt", &front.pem),
            ("front-client.crt", &client.0),
            ("front-client.key", &client.1),
            ("agents.crt", &agents.pem),
            ("door.crt", &server.0),
            ("door.key", &server.1),
            ("agent.crt", &agent.0),
            ("agent.key", &agent.1),
            ("egress.yaml", &egress.to_string()),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        Self {
            dir: dir.to_owned(),
            host: host.to_owned(),
            port: free_port(),
        }
    }

    fn file(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", path(&self.dir.join(name)))
    }

    /// Arguments of kube-apiserver.
    fn to_arguments(&self) -> Vec<String> {
        vec![
            self.file("egress-selector-config-file", "egress.yaml"),
            self.file("proxy-client-cert-file", "front-client.crt"),
            self.file("proxy-client-key-file", "front-client.key"),
            self.file("requestheader-client-ca-file", "front.crt"),
            format!("--requestheader-allowed-names={FRONT}"),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-username-headers=X-Remote-User".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
        ]
    }

    fn serve(&self) -> Process {
        let arguments = [
            "--mode=grpc".into(),
            self.file("uds-name", "konnectivity.sock"),
            "--server-port=0".into(),
            format!("--agent-port={}", self.port),
            format!("--admin-port={}", free_port()),
            format!("--health-port={}", free_port()),
            self.file("cluster-cert", "door.crt"),
            self.file("cluster-key", "door.key"),
            self.file("cluster-ca-cert", "agents.crt"),
            "--proxy-strategies=destHost,default".into(),
        ];
        Process::spawn(&self.dir, "proxy-server", &arguments)
    }

    /// Starts what the add-ons run on a worker.
    fn start_addon_programs(&self, machine: &Machine, net: &Path, address: &str) -> [Part; 2] {
        let agent = [
            format!("--proxy-server-host={}", self.host),
            format!("--proxy-server-port={}", self.port),
            self.file("ca-cert", "agents.crt"),
            self.file("agent-cert", "agent.crt"),
            self.file("agent-key", "agent.key"),
            format!("--agent-identifiers=host={address}"),
        ];
        let proxy = [
            self.file("kubeconfig", "owner.kubeconfig"),
            format!("--hostname-override={}", machine.name),
            "--proxy-mode=nftables".into(),
            "--cluster-cidr=10.232.0.0/16".into(),
            "--conntrack-max-per-core=0".into(),
            "--conntrack-min=0".into(),
            "--conntrack-tcp-timeout-established=0s".into(),
            "--conntrack-tcp-timeout-close-wait=0s".into(),
        ];
        [("proxy-agent", &agent[..]), ("kube-proxy", &proxy)]
            .map(|(program, arguments)| Part::start(machine, net, program, arguments))
    }

    fn write_kubeconfig(&self, cluster: &Cluster) -> PathBuf {
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": cluster.url(), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": OWNER_TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let file = self.dir.join("owner.kubeconfig");
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        file
    }
}

/// Returns the objects of the add-on, as the operator builds them.
fn objects() -> Vec<Value> {
    let text = include_str!("../../../operator/testdata/addons.yaml");
    let all = text
        .split("---\n")
        .map(|text| serde_saphyr::from_str::<Value>(text).unwrap());
    all.filter(|object| object["metadata"]["labels"]["yoke.drzzl.io/addon"] == NAME)
        .collect()
}

fn url_of(object: &Value) -> String {
    let (group, kinds) = match object["kind"].as_str().unwrap() {
        "ServiceAccount" => ("api/v1", "serviceaccounts"),
        "ConfigMap" => ("api/v1", "configmaps"),
        "Service" => ("api/v1", "services"),
        "Pod" => ("api/v1", "pods"),
        "EndpointSlice" => ("apis/discovery.k8s.io/v1", "endpointslices"),
        "ClusterRole" => ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
        "ClusterRoleBinding" => ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
        "RoleBinding" => ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
        "APIService" => ("apis/apiregistration.k8s.io/v1", "apiservices"),
        other => panic!("who makes {other}?"),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{group}/namespaces/{namespace}/{kinds}"),
        None => format!("/{group}/{kinds}"),
    }
}

async fn make(client: &Client, object: &Value) {
    create(client, &url_of(object), object).await;
}

/// Creates an EndpointSlice. Elsewhere a controller does that.
async fn make_slice(client: &Client, (namespace, service): (&str, &str), address: &str, port: u64) {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": service, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
    });
    make(client, &slice).await;
}

/// Builds the Pod of the Deployment, with what the admission plugin for ServiceAccounts adds.
fn build_pod(deployment: &Value, node: &str) -> Value {
    let template = &deployment["spec"]["template"];
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = NAME.into();
    pod["metadata"]["namespace"] = NAMESPACE.into();
    pod["spec"]["nodeName"] = node.into();
    let sources = json!([
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]);
    let volumes = pod["spec"]["volumes"].as_array_mut().unwrap();
    volumes.push(json!({"name": "api", "projected": {"sources": sources}}));
    let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().unwrap();
    mounts.push(json!({"name": "api", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}));
    pod
}

/// Installs the add-on on this worker.
async fn turn_on(cluster: &Cluster, kubelets: &Authority, worker: &Worker, node: &str) {
    let client = &cluster.client;
    let root = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt", "namespace": NAMESPACE},
        "data": {"ca.crt": cluster.servers.pem},
    });
    make(client, &root).await;
    make_slice(
        client,
        ("default", "kubernetes"),
        &cluster.address.ip().to_string(),
        cluster.address.port().into(),
    )
    .await;
    for mut object in objects() {
        match object["kind"].as_str().unwrap() {
            "ConfigMap" => object["data"]["kubelet-ca.crt"] = kubelets.pem.clone().into(),
            "Deployment" => object = build_pod(&object, node),
            _ => {}
        }
        make(client, &object).await;
    }
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let address = async || pods.get(NAME).await.unwrap().status?.pod_ip;
    until(worker, "an address of metrics-server", POD_LIMIT, async || {
        address().await.is_some()
    })
    .await;
    make_slice(client, (NAMESPACE, NAME), &address().await.unwrap(), 10250).await;
}

/// Returns the output of `kubectl top`.
fn top(kubeconfig: &Path, what: &str) -> String {
    let mut kubectl = Command::new(bin().join("kubectl"));
    kubectl
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("top")
        .arg(what)
        .arg("--no-headers");
    let output = kubectl.output().unwrap();
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Reports whether a line starts with the name, and has numbers for CPU and memory.
fn has_usage(output: &str, name: &str) -> bool {
    output.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |unit| {
            let mut numbers = words
                .iter()
                .filter_map(|word| word.strip_suffix(unit)?.parse::<u64>().ok());
            numbers.next()
        };
        words.first() == Some(&name) && number("m").is_some() && number("Mi").is_some_and(|memory| memory > 0)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_top_knows_both_workers() {
    let dir = tempfile::Builder::new().prefix("yw").tempdir().unwrap();
    let (router, networks) = Network::make_two();
    let signers = (Authority::new("clients"), Authority::new("kubelets"));
    let doors = ControlPlaneFiles::make(dir.path(), &router.host);
    let cluster = Cluster::start_with(dir.path(), &router.host, &signers.0, &signers.1, &doors.to_arguments()).await;
    let kubeconfig = doors.write_kubeconfig(&cluster);
    let _server = doors.serve();
    let make = |network, name: &'static str, pods| {
        Machine::make(&dir.path().join(name), network, &cluster, (name, pods), Init::None)
    };
    let [near, far] = networks;
    let (one, two) = (make(near, "one", "10.232.7.0/24"), make(far, "two", "10.232.8.0/24"));
    let deployment = objects()
        .into_iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        .as_str()
        .unwrap();
    bundle::add_image(&one.folder("bundle"), image, NAME);
    // One worker in its machine's network, and one in a sandbox, whose Node has the address of its
    // Pod range's gateway.
    let (mut first, mut second) = (one.run(&[]), two.run(&["--rm"]));
    let machine = Path::new("/run/netns").join(&one.network.namespace);
    let _near = doors.start_addon_programs(&one, &machine, &one.network.worker);
    until(&second, "the network of the second worker", JOIN_LIMIT, async || {
        two.own_network().is_some()
    })
    .await;
    let _far = doors.start_addon_programs(&two, &two.own_network().unwrap(), "10.232.8.1");
    join_both(&cluster.client, &signers, (&one, &first), (&two, &second)).await;

    turn_on(&cluster, &signers.1, &first, "one").await;
    // Each Node has a Pod of the same name.
    for what in ["nodes", "pods"] {
        let usage = async || Ok::<_, Infallible>(top(&kubeconfig, what));
        let has_both = |output: &String| ["one", "two"].iter().all(|name| has_usage(output, name));
        let wanted = format!("usage of both {what}");
        if let Err(error) = eventually(&wanted, JOIN_LIMIT, usage, has_both).await {
            panic!("{error}\n{}", first.last_output());
        }
    }
    for worker in [&mut first, &mut second] {
        assert_eq!(worker.end().await, Some(0), "{}", worker.last_output());
    }
}
