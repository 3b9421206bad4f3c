//! Starts a real kube-apiserver for one test.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use yoke_pki::service_account::ServiceAccountKey;

use crate::{Process, eventually, free_port};

/// Token of a user with all permissions.
pub const OWNER_TOKEN: &str = "host-admin";
/// Timeout until the server is ready, and until a new kind is served.
const LIMIT: Duration = Duration::from_secs(40);

/// Options of a server.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// URL of its store.
    pub store: &'a str,
    /// Address to listen on.
    pub address: SocketAddr,
    /// Further users: token, name. With users, RBAC is on; without users, everyone may do
    /// everything.
    pub users: &'a [(&'a str, &'a str)],
    /// Additional arguments.
    pub arguments: &'a [String],
    /// Environment variables.
    pub environment: &'a [(&'a str, &'a str)],
}

impl<'a> Options<'a> {
    /// A server on a free loopback port without further users.
    pub fn new(store: &'a str) -> Self {
        Self {
            store,
            address: ([127, 0, 0, 1], free_port()).into(),
            users: &[],
            arguments: &[],
            environment: &[],
        }
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Starts the server with its files in `dir`, and waits until it is ready.
    ///
    /// # Panics
    ///
    /// Panics if the server is not ready in time.
    pub async fn start(&self, dir: &Path) -> (Process, Client) {
        let arguments = self.prepare(dir);
        let process = Process::spawn_with(dir, "kube-apiserver", &arguments, self.environment);
        let client = connect(&self.url(), OWNER_TOKEN);
        let ask = async || {
            let request = http::Request::get("/readyz").body(Vec::new()).expect("a request");
            client.request_text(request).await
        };
        if let Err(error) = eventually("kube-apiserver to be ready", LIMIT, ask, |_| true).await {
            panic!("{error}; its log: {}", process.log());
        }
        (process, client)
    }

    /// Writes the files of the server into `dir`. Returns its arguments.
    ///
    /// # Panics
    ///
    /// Panics if the files cannot be written.
    pub fn prepare(&self, dir: &Path) -> Vec<String> {
        let key = ServiceAccountKey::generate().expect("a key can be drawn");
        let mut tokens = format!("{OWNER_TOKEN},admin,admin,\"system:masters\"\n");
        tokens.extend(
            self.users
                .iter()
                .map(|(token, name)| format!("{token},{name},{name}\n")),
        );
        for (name, text) in [
            ("sa.key", key.private_pem()),
            ("sa.pub", key.public_pem()),
            ("tokens.csv", &tokens),
        ] {
            std::fs::write(dir.join(name), text).expect("the folder can be written");
        }
        self.to_arguments(dir)
    }

    fn to_arguments(&self, dir: &Path) -> Vec<String> {
        let path = dir.display();
        let mode = if self.users.is_empty() { "AlwaysAllow" } else { "RBAC" };
        let [high, low] = self.address.port().to_be_bytes();
        let mut arguments = vec![
            format!("--etcd-servers={}", self.store),
            format!("--bind-address={}", self.address.ip()),
            format!("--secure-port={}", self.address.port()),
            format!("--cert-dir={path}/certificates"),
            format!("--token-auth-file={path}/tokens.csv"),
            format!("--authorization-mode={mode}"),
            "--disable-admission-plugins=ServiceAccount,PodSecurity".into(),
            "--endpoint-reconciler-type=none".into(),
            "--service-account-issuer=https://host.example".into(),
            format!("--service-account-key-file={path}/sa.pub"),
            format!("--service-account-signing-key-file={path}/sa.key"),
            // Service addresses are loopback addresses. The range depends on the port, so each
            // server has its own.
            format!("--service-cluster-ip-range=127.{high}.{low}.0/24"),
        ];
        arguments.extend_from_slice(self.arguments);
        arguments
    }
}

/// A client that authenticates with a token. It does not verify the server's certificate.
///
/// # Panics
///
/// Panics if the URL is invalid.
pub fn connect(url: &str, token: &str) -> Client {
    let mut config = kube::Config::new(url.parse().expect("a URL"));
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(token.to_owned().into());
    Client::try_from(config).expect("a client")
}

/// Installs Yoke's CRDs and `more`, and waits until the server serves every kind.
///
/// # Panics
///
/// Panics if the server refuses a CRD, or does not serve it in time.
pub async fn install_crds(client: &Client, more: &[CustomResourceDefinition]) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds");
    let files = std::fs::read_dir(folder).expect("the folder of CRDs");
    let own = files.map(|file| {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        serde_saphyr::from_str(&text).expect("a CRD")
    });
    for crd in own.chain(more.iter().cloned()) {
        crds.create(&PostParams::default(), &crd)
            .await
            .expect("the CRD is taken");
    }
    let find_missing = async || {
        let all = crds.list(&Default::default()).await?.items;
        let missing = all.into_iter().filter(|crd| !is_served(crd));
        Ok::<_, kube::Error>(missing.filter_map(|crd| crd.metadata.name).collect::<Vec<_>>())
    };
    eventually("no CRD to be missing", LIMIT, find_missing, Vec::is_empty)
        .await
        .expect("CRDs are established");
}

/// Builds the CRDs of cert-manager that Yoke uses, with schemas that accept every object.
pub fn build_cert_manager_crds() -> [CustomResourceDefinition; 3] {
    let kinds = [
        ("certificates", "Certificate"),
        ("certificaterequests", "CertificateRequest"),
        ("issuers", "Issuer"),
    ];
    kinds.map(|(plural, kind)| {
        let crd = serde_json::json!({
            "metadata": {"name": format!("{plural}.cert-manager.io")},
            "spec": {
                "group": "cert-manager.io", "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
            },
        });
        serde_json::from_value(crd).expect("a CRD")
    })
}

fn is_served(crd: &CustomResourceDefinition) -> bool {
    let mut conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}
