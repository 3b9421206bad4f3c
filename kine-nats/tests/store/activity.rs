//! A real kube-apiserver reports its users in audit events, with the files and arguments of a
//! control plane.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::net::TcpStream;
use yoke_test_support::free_port;
use yoke_test_support::kubernetes::{OWNER_TOKEN, Options};

use crate::harness::{Kine, Nats, WAIT, find, http_get};

const FILES: &str = include_str!("../../../operator/testdata/build/idle/out.configmap.yaml");
const CONTROL_PLANE: &str = include_str!("../../../operator/testdata/build/idle/out.statefulset.yaml");
/// Address of the audit listener in a control plane.
const LISTEN: &str = "127.0.0.1:2382";
/// Interval at which events are sent. An event that has not arrived after twice this time never
/// will.
const SENT: Duration = Duration::from_secs(4);
const NODE_TOKEN: &str = "node";
const PERSON_TOKEN: &str = "person";

/// The API server and the store of a control plane.
struct ControlPlane {
    kine: Kine,
    url: String,
    _server: yoke_test_support::Process,
    _nats: Nats,
    dir: tempfile::TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Report {
    since: i64,
    last: i64,
    open: i64,
}

/// The kube-apiserver arguments for audit events.
fn arguments(dir: &Path) -> Vec<String> {
    let set: Value = serde_saphyr::from_str(CONTROL_PLANE).unwrap();
    let containers = set["spec"]["template"]["spec"]["containers"]
        .as_array()
        .unwrap()
        .clone();
    let server = containers
        .iter()
        .find(|container| container["name"] == "kube-apiserver");
    let arguments = server.unwrap()["command"].as_array().unwrap().iter();
    let audit = arguments
        .map(|argument| argument.as_str().unwrap())
        .filter(|it| it.starts_with("--audit-"));
    let folder = dir.display().to_string();
    let audit: Vec<_> = audit.map(|it| it.replace("/etc/kubernetes/config", &folder)).collect();
    assert!(audit.len() > 3, "{audit:?}");
    audit
}

impl ControlPlane {
    async fn start() -> Self {
        let (nats, dir, port) = (Nats::start().await, tempfile::tempdir().unwrap(), free_port());
        let own = format!("127.0.0.1:{port}");
        let flags = [format!("--audit={own}"), "--ignore-user-agent=k9s/*".to_owned()];
        let kine = Kine::start(&nats, "activity", &flags.each_ref().map(String::as_str)).await;
        let files: Value = serde_saphyr::from_str(FILES).unwrap();
        for name in ["audit-policy.yaml", "audit-webhook.yaml"] {
            let text = files["data"][name].as_str().unwrap().replace(LISTEN, &own);
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let tokens = format!(
            "{OWNER_TOKEN},yoke:operator,operator,\"system:masters\"\n\
             {NODE_TOKEN},system:node:a,node,\"system:nodes\"\n{PERSON_TOKEN},person,person,\"system:masters\"\n"
        );
        let path = dir.path().join("more.csv");
        std::fs::write(&path, tokens).unwrap();
        let mut arguments = arguments(dir.path());
        // The last argument counts.
        arguments.push(format!("--token-auth-file={}", path.display()));
        let store = kine.url();
        let options = Options {
            arguments: &arguments,
            ..Options::new(&store)
        };
        let (url, (server, _)) = (options.url(), options.start(dir.path()).await);
        Self {
            kine,
            url,
            _server: server,
            _nats: nats,
            dir,
        }
    }

    async fn report(&self) -> Report {
        let stream = TcpStream::connect(self.kine.metrics_address()).await.unwrap();
        let answer = http_get(stream, "/activity").await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{head}");
        let said: Value = serde_json::from_str(body).unwrap();
        let number = |name: &str| said[name].as_i64().unwrap();
        Report {
            since: number("since"),
            last: number("last"),
            open: number("open"),
        }
    }

    async fn until(&self, what: &str, so: impl Fn(Report) -> bool) -> Report {
        let report = async || Ok::<_, Infallible>(self.report().await);
        yoke_test_support::eventually(what, WAIT, report, |report| so(*report))
            .await
            .unwrap()
    }

    /// The report after all events so far had time to arrive.
    async fn settled(&self) -> Report {
        tokio::time::sleep(SENT).await;
        self.report().await
    }

    fn kubectl(&self, token: &str, arguments: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(find("kubectl"));
        command
            .args(["--insecure-skip-tls-verify", "--server", &self.url, "--token", token])
            .args(arguments)
            .env_clear()
            .env("HOME", self.dir.path())
            .stdout(std::process::Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn asks(&self, token: &str) {
        let status = self.kubectl(token, &["get", "namespaces"]).status().await.unwrap();
        assert!(status.success());
    }

    /// Sends a request under another client name.
    async fn asks_as(&self, agent: &str) {
        let client = yoke_test_support::kubernetes::connect(&self.url, PERSON_TOKEN);
        let request = http::Request::get("/api/v1/namespaces").header("user-agent", agent);
        client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_users_of_a_cluster_count_as_activity() {
    let plane = ControlPlane::start().await;
    let first = plane.settled().await;
    assert_eq!(
        (first.last, first.open),
        (first.since, 0),
        "it has started, and the operator asked"
    );

    // Clients that do not count.
    plane.asks(NODE_TOKEN).await;
    plane.asks(OWNER_TOKEN).await;
    plane.asks_as("k9s/v0.50.0").await;
    for path in ["/readyz?verbose", "/livez/ping", "/healthz"] {
        let mut request = plane.kubectl(PERSON_TOKEN, &["get", "--raw", path]);
        assert!(request.status().await.unwrap().success(), "{path}");
    }
    // A client that is not in the list.
    assert!(
        !plane
            .kubectl("nobody", &["get", "namespaces"])
            .status()
            .await
            .unwrap()
            .success()
    );
    assert_eq!(plane.settled().await, first);

    plane.asks(PERSON_TOKEN).await;
    let used = plane
        .until("a request of a person", |report| report.last > first.last)
        .await;
    assert_eq!(used.open, 0);

    // An open request counts until it ends.
    let mut watch = plane
        .kubectl(PERSON_TOKEN, &["get", "namespaces", "-w"])
        .spawn()
        .unwrap();
    plane.until("an open watch", |report| report.open == 1).await;
    let mut nodes = plane.kubectl(NODE_TOKEN, &["get", "namespaces", "-w"]).spawn().unwrap();
    assert_eq!(plane.settled().await.open, 1, "those of nodes do not");
    nodes.kill().await.unwrap();
    watch.kill().await.unwrap();
    let ended = plane.until("the watch to end", |report| report.open == 0).await;
    assert!(ended.last > used.last);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_activity_messages_are_accepted() {
    let plane = ControlPlane::start().await;
    let before = plane.settled().await;
    // Every message is accepted, or it would be sent again.
    let listen = plane.dir.path().join("audit-webhook.yaml");
    let listen: Value = serde_json::from_str(&std::fs::read_to_string(listen).unwrap()).unwrap();
    let address = listen["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned();
    let address = address
        .trim_start_matches("http://")
        .trim_end_matches("/audit")
        .to_owned();
    for body in [vec![b'x'; 10], vec![b'x'; 1_000_000]] {
        let answer = post(&address, &body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    assert!(plane.report().await.last > before.last, "somebody did something");
}

async fn post(address: &str, body: &[u8]) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /audit HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
