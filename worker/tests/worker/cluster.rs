//! A real API server on a test's own network.

use std::net::SocketAddr;
use std::path::Path;

use kube::Client;
use rcgen::{DnType, ExtendedKeyUsagePurpose};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use yoke_test_support::kubernetes::Options;
use yoke_test_support::{Process, free_port};

use crate::egress;
use crate::program::{encode, path};
use crate::signer::Authority;

/// Name of the API server in join tokens.
const NAME: &str = "api.worker.test";
/// Address of the API server for Pods.
const IN_CLUSTER: &str = "10.96.0.1";
const BOOTSTRAP: (&str, &str) = ("abcdef", "0123456789abcdef");

/// A running API server.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) token: String,
    /// CA of the API server's certificate.
    #[cfg(feature = "slow")]
    pub(crate) servers: Authority,
    pub(crate) address: SocketAddr,
    server: Process,
    _store: Process,
}

impl Cluster {
    /// Starts an API server that trusts client certificates of `clients`, and kubelet certificates
    /// of `kubelets`.
    pub(crate) async fn start(dir: &Path, host: &str, clients: &Authority, kubelets: &Authority) -> Self {
        Self::start_with(dir, host, clients, kubelets, &[egress::serve(dir)]).await
    }

    /// Starts an API server with these arguments as well. They must configure how it reaches kubelets.
    pub(crate) async fn start_with(
        dir: &Path,
        host: &str,
        clients: &Authority,
        kubelets: &Authority,
        more: &[String],
    ) -> Self {
        let servers = Authority::new("servers");
        let serving = servers.issue(&[NAME, IN_CLUSTER], &[], ExtendedKeyUsagePurpose::ServerAuth);
        let owner = [
            (DnType::OrganizationName, "system:masters"),
            (DnType::CommonName, "kube-apiserver"),
        ];
        let asking = clients.issue(&[], &owner, ExtendedKeyUsagePurpose::ClientAuth);
        for (name, text) in [
            ("serving.crt", &serving.0),
            ("serving.key", &serving.1),
            ("asking.crt", &asking.0),
            ("asking.key", &asking.1),
            ("clients.crt", &clients.pem),
            ("kubelets.crt", &kubelets.pem),
        ] {
            std::fs::write(dir.join(name), text).unwrap();
        }
        let (store, store_url) = start_etcd(dir);
        let address: SocketAddr = format!("{host}:{}", free_port()).parse().unwrap();
        let file = |flag: &str, name: &str| format!("--{flag}={}", path(&dir.join(name)));
        let arguments = [
            file("tls-cert-file", "serving.crt"),
            file("tls-private-key-file", "serving.key"),
            file("client-ca-file", "clients.crt"),
            file("kubelet-certificate-authority", "kubelets.crt"),
            file("kubelet-client-certificate", "asking.crt"),
            file("kubelet-client-key", "asking.key"),
            "--kubelet-preferred-address-types=InternalIP".into(),
            "--authorization-mode=Node".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            "--enable-bootstrap-token-auth=true".into(),
        ];
        let arguments = [&arguments, more].concat();
        let mut options = Options::new(&store_url);
        (options.address, options.users, options.arguments) = (address, &[("nobody", "nobody")], &arguments);
        let (server, client) = options.start(dir).await;
        allow(&client).await;
        Self {
            client,
            // No DNS record of the name exists.
            token: encode(&json!({
                "server": format!("{NAME}:{}", address.port()),
                "address": address.ip(),
                "ca": servers.pem,
                "clientCa": clients.pem,
                "token": format!("{}.{}", BOOTSTRAP.0, BOOTSTRAP.1),
                "version": "v1.35.4",
            })),
            #[cfg(feature = "slow")]
            servers,
            address,
            server,
            _store: store,
        }
    }

    #[cfg(feature = "slow")]
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Sends a signal to kube-apiserver.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.server.id()).ok().and_then(Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

fn start_etcd(dir: &Path) -> (Process, String) {
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let (clients, peers) = (url(free_port()), url(free_port()));
    let arguments = [
        format!("--data-dir={}", path(&dir.join("etcd"))),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        "--log-level=error".into(),
    ];
    (Process::spawn(dir, "etcd", &arguments), clients)
}

/// Creates what the operator creates for workers in a tenant cluster: a bootstrap token, and its
/// RBAC rules.
async fn allow(client: &Client) {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{}", BOOTSTRAP.0)},
        "stringData": {
            "token-id": BOOTSTRAP.0, "token-secret": BOOTSTRAP.1, "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:yoke",
        },
    });
    create(client, "/api/v1/namespaces/kube-system/secrets", &secret).await;
    let base = include_str!("../../../operator/testdata/base.json");
    let base: Value = serde_json::from_str(base).unwrap();
    for object in base["items"].as_array().unwrap() {
        let url = match object["kind"].as_str() {
            Some("ClusterRole") => "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            Some("ClusterRoleBinding") => "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            Some("ValidatingAdmissionPolicy") => "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            Some("ValidatingAdmissionPolicyBinding") => {
                "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
            }
            other => panic!("who makes {other:?}?"),
        };
        create(client, url, object).await;
    }
}

/// Creates an object.
pub(crate) async fn create(client: &Client, url: &str, body: &serde_json::Value) {
    let request = http::Request::post(url).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).unwrap();
    client
        .request_text(request)
        .await
        .unwrap_or_else(|error| panic!("{url}: {error}"));
}
