//! A real kube-apiserver of a test's own on a free port of loopback, with Yoke's CRDs.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use yoke_test_support::free_port;

/// The token of the host's owner.
pub(crate) const OWNER_TOKEN: &str = "host-admin";
const LIMIT: Duration = Duration::from_secs(40);

/// A process; dropped, it ends.
pub(crate) struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program of `YOKE_BIN`, whose standard error goes into `dir`.
pub(crate) fn spawn(dir: &Path, program: &str, arguments: &[String]) -> Process {
    let bin = std::env::var_os("YOKE_BIN").map_or_else(PathBuf::new, PathBuf::from);
    let log = std::fs::File::create(dir.join(format!("{program}.log"))).unwrap();
    let child = Command::new(bin.join(program))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Process(child.unwrap_or_else(|error| panic!("{program} in YOKE_BIN: {error}")))
}

/// Starts a server that decides by RBAC, with the host's owner and further users: token, name. Says its address.
pub(crate) async fn start_api(dir: &Path, store: &str, users: &[(&str, &str)]) -> (Process, String) {
    let key = yoke_pki::service_account::ServiceAccountKey::generate().unwrap();
    std::fs::write(dir.join("sa.key"), key.private_pem()).unwrap();
    std::fs::write(dir.join("sa.pub"), key.public_pem()).unwrap();
    let mut tokens = format!("{OWNER_TOKEN},admin,admin,\"system:masters\"\n");
    tokens.extend(users.iter().map(|(token, name)| format!("{token},{name},{name}\n")));
    std::fs::write(dir.join("tokens.csv"), tokens).unwrap();
    let port = free_port();
    let path = dir.display();
    let process = spawn(
        dir,
        "kube-apiserver",
        &[
            format!("--etcd-servers={store}"),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={port}"),
            format!("--cert-dir={path}/certificates"),
            format!("--token-auth-file={path}/tokens.csv"),
            "--authorization-mode=RBAC".into(),
            "--disable-admission-plugins=ServiceAccount,PodSecurity".into(),
            "--endpoint-reconciler-type=none".into(),
            "--service-account-issuer=https://host.example".into(),
            format!("--service-account-key-file={path}/sa.pub"),
            format!("--service-account-signing-key-file={path}/sa.key"),
            // What is dialled there is this machine, where nothing listens.
            "--service-cluster-ip-range=127.96.0.0/16".into(),
        ],
    );
    let address = format!("https://127.0.0.1:{port}");
    let client = connect(&address, OWNER_TOKEN);
    let deadline = Instant::now() + LIMIT;
    loop {
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        if client.request_text(request).await.is_ok() {
            return (process, address);
        }
        let log = dir.join("kube-apiserver.log");
        assert!(
            Instant::now() < deadline,
            "kube-apiserver is not ready: {}",
            std::fs::read_to_string(log).unwrap_or_default()
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A client of that server with somebody's token.
pub(crate) fn connect(address: &str, token: &str) -> Client {
    let mut config = kube::Config::new(address.parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(token.to_owned().into());
    Client::try_from(config).unwrap()
}

/// Puts Yoke's CRDs there.
pub(crate) async fn install_crds(client: &Client) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds");
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let crd: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        crds.create(&PostParams::default(), &crd).await.unwrap();
    }
}

/// Waits until objects of every CRD can be made.
pub(crate) async fn until_crds_are_served(client: &Client) {
    let crds = Api::<CustomResourceDefinition>::all(client.clone());
    let deadline = Instant::now() + LIMIT;
    loop {
        let all = crds.list(&Default::default()).await.unwrap().items;
        let established = |crd: &CustomResourceDefinition| {
            let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|condition| condition.type_ == "Established" && condition.status == "True")
        };
        if all.iter().all(established) {
            return;
        }
        assert!(Instant::now() < deadline, "CRDs are not established");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
