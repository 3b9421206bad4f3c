//! Starts nats-server and kine-nats for one test, each in its own directory and on its own ports.

use rustix::process::{Pid, WaitOptions, waitpid};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tonic::transport::{Channel, Endpoint};
use yoke_kine_nats::proto::etcdserverpb as pb;
use yoke_kine_nats::proto::etcdserverpb::cluster_client::ClusterClient;
use yoke_kine_nats::proto::etcdserverpb::kv_client::KvClient;
use yoke_kine_nats::proto::etcdserverpb::lease_client::LeaseClient;
use yoke_kine_nats::proto::etcdserverpb::maintenance_client::MaintenanceClient;
use yoke_kine_nats::proto::etcdserverpb::watch_client::WatchClient;
use yoke_kine_nats::proto::mvccpb;
use yoke_test_support::free_port;

pub(crate) const WAIT: Duration = Duration::from_secs(30);

/// A nats-server that can be killed and restarted on the same files and the same port.
pub(crate) struct Nats {
    child: Option<Child>,
    port: u16,
    dir: TempDir,
    config: String,
}

/// The servers of the streams.
pub(crate) trait Servers {
    /// Their addresses, separated by commas.
    fn urls(&self) -> String;

    /// Number of replicas of each stream.
    fn replicas(&self) -> usize {
        1
    }
}

impl Servers for Nats {
    fn urls(&self) -> String {
        self.url()
    }
}

pub(crate) fn find(program: &str) -> PathBuf {
    let places = std::env::var_os("YOKE_BIN").into_iter().chain(std::env::var_os("PATH"));
    let found = places
        .flat_map(|list| std::env::split_paths(&list).collect::<Vec<_>>())
        .map(|dir| dir.join(program));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("{program} is neither in YOKE_BIN nor in PATH; `make tools` builds it into .dev/bin, then set YOKE_BIN=.dev/bin")
    })
}

impl Nats {
    pub(crate) async fn start() -> Self {
        Self::start_with(String::new()).await
    }

    /// Starts with additional lines of configuration.
    pub(crate) async fn start_with(config: String) -> Self {
        let mut nats = Self::new(config);
        nats.restart().await;
        nats
    }

    /// Creates a server without starting it.
    pub(crate) fn new(config: String) -> Self {
        Self {
            child: None,
            port: free_port(),
            dir: tempfile::tempdir().unwrap(),
            config,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) async fn restart(&mut self) {
        assert!(self.try_restart().await, "nats-server ended: {}", self.log());
    }

    /// Returns whether the server listens; otherwise it has exited.
    pub(crate) async fn try_restart(&mut self) -> bool {
        let store = self.store();
        let config = format!(
            "listen: 127.0.0.1:{}\nmax_payload: 8MB\njetstream {{ store_dir: {:?}, max_file_store: 100GB, sync_interval: always }}\n{}",
            self.port, store, self.config
        );
        let path = self.dir.path().join("nats.conf");
        std::fs::write(&path, config).unwrap();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("nats.log"))
            .unwrap();
        let mut command = Command::new(find("nats-server"));
        command
            .arg("-c")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
        let port = self.port;
        let child = &mut self.child;
        let listens = yoke_test_support::eventually_some("nats-server to listen or to exit", WAIT, async || {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Some(true);
            }
            let exited = |child: &mut Child| child.try_wait().unwrap().is_some();
            child.as_mut().is_some_and(exited).then_some(false)
        });
        listens.await.unwrap_or_else(|error| panic!("{error}: {}", self.log()))
    }

    /// Replaces the additional lines of configuration, from the next start on.
    pub(crate) fn set_config(&mut self, config: &str) {
        config.clone_into(&mut self.config);
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("nats.log")).unwrap()
    }

    /// Directory of its streams.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("jetstream")
    }

    /// Creates another server, not started, with a copy of this one's data.
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new(self.config.clone());
        copy.take_files(self);
        copy
    }

    /// Replaces its data by that of another server. Neither runs.
    pub(crate) fn take_files(&self, other: &Self) {
        let _ = std::fs::remove_dir_all(self.store());
        let copied = Command::new("cp")
            .arg("-r")
            .args([other.store(), self.store()])
            .status();
        assert!(copied.unwrap().success());
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.as_ref().unwrap(), name);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A kine-nats process.
pub(crate) struct Kine {
    child: Option<Child>,
    port: u16,
    metrics: u16,
    log: PathBuf,
    command: Vec<String>,
    /// Limit of open files.
    files: Option<u32>,
    _dir: TempDir,
}

impl Kine {
    pub(crate) async fn start(nats: &impl Servers, stream: &str, more: &[&str]) -> Self {
        let mut kine = Self::spawn(nats, stream, more);
        kine.ready().await;
        kine
    }

    /// Starts without waiting until the process serves.
    pub(crate) fn spawn(nats: &impl Servers, stream: &str, more: &[&str]) -> Self {
        let replicas = format!("--replicas={}", nats.replicas());
        Self::spawn_on(nats, stream, &[&["--create", &replicas], more].concat())
    }

    /// Starts on existing streams.
    pub(crate) fn spawn_on(nats: &impl Servers, stream: &str, more: &[&str]) -> Self {
        let (port, metrics, dir) = (free_port(), free_port(), tempfile::tempdir().unwrap());
        let mut command = vec![
            format!("--listen=http://127.0.0.1:{port}"),
            format!("--listen=unix://{}", dir.path().join("kine.sock").display()),
            format!("--metrics=127.0.0.1:{metrics}"),
            format!("--nats={}", nats.urls()),
            format!("--stream=KINE_{stream}"),
        ];
        command.extend(more.iter().map(ToString::to_string));
        let mut kine = Self {
            child: None,
            port,
            metrics,
            log: dir.path().join("kine.log"),
            command,
            files: None,
            _dir: dir,
        };
        kine.respawn();
        kine
    }

    pub(crate) fn respawn(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let program = env!("CARGO_BIN_EXE_kine-nats");
        let mut command = match self.files {
            None => Command::new(program),
            Some(files) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\""), program]);
                shell
            }
        };
        command.args(&self.command).stdin(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Sets the limit of open files, from the next start on.
    pub(crate) fn limit_files(&mut self, files: u32) {
        self.files = Some(files);
    }

    /// CPU time of the process so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let id = self.child.as_ref().unwrap().id();
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        // The second field is a name in parentheses; ticks of 10 ms follow, in user mode and in the
        // kernel.
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(10 * ticks)
    }

    /// How often its threads waited for something and were woken.
    pub(crate) fn wakeups(&self) -> u64 {
        let tasks = format!("/proc/{}/task", self.child.as_ref().unwrap().id());
        let statuses = std::fs::read_dir(tasks).unwrap().map(|task| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse::<u64>().unwrap()
        });
        statuses.sum()
    }

    /// Bytes that its clients sent and it has not read.
    pub(crate) fn unread(&self) -> u64 {
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let own = format!(":{:04X}", self.port);
        let bytes = sockets.lines().filter_map(|line| {
            // Address, peer address, state (1 is connected), and bytes to send and to read.
            let fields: Vec<_> = line.split_whitespace().collect();
            let (_, unread) = fields[4].split_once(':')?;
            (fields[1].ends_with(&own) && fields[3] == "01").then(|| u64::from_str_radix(unread, 16).unwrap())
        });
        bytes.sum()
    }

    pub(crate) async fn restart(&mut self) {
        self.respawn();
        self.ready().await;
    }

    pub(crate) async fn ready(&mut self) {
        let ready = yoke_test_support::eventually_true("kine-nats to be ready", WAIT, async || {
            if let Some(status) = self.exited() {
                panic!("kine-nats ended with {status}: {}", self.log());
            }
            self.is_ready().await
        });
        if let Err(error) = ready.await {
            panic!("{error}: {}", self.log());
        }
    }

    pub(crate) async fn is_ready(&self) -> bool {
        let Ok(stream) = tokio::net::TcpStream::connect(("127.0.0.1", self.metrics)).await else {
            return false;
        };
        let answer = http_get(stream, "/readyz").await;
        answer.is_some_and(|answer| answer.starts_with("HTTP/1.0 200"))
    }

    /// The metrics of the process, with the head of the response.
    pub(crate) fn metrics_address(&self) -> String {
        format!("127.0.0.1:{}", self.metrics)
    }

    pub(crate) async fn scrape(&self) -> String {
        let stream = tokio::net::TcpStream::connect(self.metrics_address()).await.unwrap();
        http_get(stream, "/metrics").await.unwrap()
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let text = self.scrape().await;
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(name))
            .unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self._dir.path().join("kine.sock")
    }

    /// Peak memory of the process in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = format!("/proc/{}/status", self.child.as_ref().unwrap().id());
        let status = std::fs::read_to_string(status).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    pub(crate) fn exited(&mut self) -> Option<std::process::ExitStatus> {
        self.child.as_mut().unwrap().try_wait().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.as_ref().unwrap(), name);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the process; returns whether it exited cleanly, and how long that took.
    pub(crate) async fn terminate(&mut self) -> Duration {
        let begun = Instant::now();
        self.signal("TERM");
        let status = eventually("kine-nats to exit", || std::future::ready(self.exited())).await;
        assert!(status.success(), "{status}: {}", self.log());
        begun.elapsed()
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn channel(&self) -> Channel {
        Endpoint::from_shared(self.url()).unwrap().connect_lazy()
    }

    pub(crate) async fn client(&self) -> Client {
        Client::new(self.channel())
    }
}

impl Drop for Kine {
    fn drop(&mut self) {
        self.kill();
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill")
        .args([format!("-{name}"), child.id().to_string()])
        .status();
    assert!(sent.unwrap().success());
    if name == "STOP" {
        // The threads continue until each of them has received the signal.
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }
}

/// Runs etcd's tool for servers. Returns its output, or its error output.
pub(crate) fn etcdctl(endpoint: &str, arguments: &[&str]) -> Result<String, String> {
    // If a limit is given twice, the last one counts.
    let options = ["--endpoints", endpoint, "--command-timeout=20s"];
    run_tool("etcdctl", &[&options, arguments].concat())
}

/// The first `bytes` that etcd's tool for servers prints for an input; fewer on a timeout.
pub(crate) fn etcdctl_begins(endpoint: &str, arguments: &[&str], input: &str, bytes: usize) -> String {
    let mut tool = Command::new("timeout")
        .arg("20")
        .arg(find("etcdctl"))
        .args(["--endpoints", endpoint])
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut printed = Vec::new();
    let output = tool.stdout.take().unwrap();
    output.take(bytes as u64).read_to_end(&mut printed).unwrap();
    signal(&tool, "TERM");
    tool.wait().unwrap();
    String::from_utf8(printed).unwrap()
}

/// Runs etcd's tool for files. Returns its output, or its error output.
pub(crate) fn etcdutl(arguments: &[&str]) -> Result<String, String> {
    run_tool("etcdutl", arguments)
}

fn run_tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(find(name)).args(arguments).env_clear().output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        let streams = [output.stdout, output.stderr].concat();
        Err(String::from_utf8(streams).unwrap())
    }
}

/// The output of a tool.
pub(crate) fn json(output: &str) -> serde_json::Value {
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Runs `kine-nats repair`. Returns its output, or its error output.
pub(crate) fn repair(nats: &impl Servers, stream: &str, more: &[&str]) -> Result<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_kine-nats"))
        .arg("repair")
        .args([format!("--nats={}", nats.urls()), format!("--stream=KINE_{stream}")])
        .args(more)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Sends a request with HTTP/1.0: the response arrives in one piece.
pub(crate) async fn http_get(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> Option<String> {
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").as_bytes())
        .await
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    Some(text)
}

/// Waits for a state. `what` completes the sentence "waited for …".
pub(crate) async fn eventually<T>(what: &str, state: impl AsyncFnMut() -> Option<T>) -> T {
    yoke_test_support::eventually_some(what, WAIT, state).await.unwrap()
}

/// All clients of one connection.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) kv: KvClient<Channel>,
    pub(crate) watch: WatchClient<Channel>,
    pub(crate) lease: LeaseClient<Channel>,
    pub(crate) maintenance: MaintenanceClient<Channel>,
    pub(crate) cluster: ClusterClient<Channel>,
}

impl Client {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            kv: KvClient::new(channel.clone()).max_decoding_message_size(64 << 20),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(64 << 20),
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            cluster: ClusterClient::new(channel),
        }
    }

    pub(crate) async fn unix(path: &Path) -> Self {
        Self::new(
            Endpoint::from_shared(format!("unix://{}", path.display()))
                .unwrap()
                .connect()
                .await
                .unwrap(),
        )
    }

    pub(crate) async fn put(&mut self, key: &str, value: &[u8]) -> Result<i64, tonic::Status> {
        let request = pb::PutRequest {
            key: key.to_owned().into(),
            value: value.to_vec().into(),
            ..Default::default()
        };
        Ok(self.kv.put(request).await?.into_inner().header.unwrap().revision)
    }

    /// Creates a key unless it exists, like Kubernetes. Returns the revision, or `None` if the key
    /// exists.
    pub(crate) async fn create(&mut self, key: &str, value: &[u8]) -> Result<Option<i64>, tonic::Status> {
        let compare = pb::Compare {
            target: pb::compare::CompareTarget::Mod as i32,
            key: key.to_owned().into(),
            target_union: Some(pb::compare::TargetUnion::ModRevision(0)),
            ..Default::default()
        };
        let put = pb::PutRequest {
            key: key.to_owned().into(),
            value: value.to_vec().into(),
            ..Default::default()
        };
        let success = vec![pb::RequestOp {
            request: Some(pb::request_op::Request::RequestPut(put)),
        }];
        let request = pb::TxnRequest {
            compare: vec![compare],
            success,
            failure: vec![],
        };
        let answer = self.kv.txn(request).await?.into_inner();
        Ok(answer.succeeded.then(|| answer.header.unwrap().revision))
    }

    pub(crate) async fn delete(&mut self, key: &str) -> i64 {
        let request = pb::DeleteRangeRequest {
            key: key.to_owned().into(),
            ..Default::default()
        };
        self.kv
            .delete_range(request)
            .await
            .unwrap()
            .into_inner()
            .header
            .unwrap()
            .revision
    }

    pub(crate) async fn compact(&mut self, revision: i64) -> Result<(), tonic::Status> {
        self.kv
            .compact(pb::CompactionRequest {
                revision,
                physical: false,
            })
            .await
            .map(|_| ())
    }

    pub(crate) async fn range(
        &mut self,
        key: &str,
        end: &str,
        revision: i64,
    ) -> Result<pb::RangeResponse, tonic::Status> {
        let request = pb::RangeRequest {
            key: key.to_owned().into(),
            range_end: end.to_owned().into(),
            revision,
            ..Default::default()
        };
        self.kv.range(request).await.map(tonic::Response::into_inner)
    }

    pub(crate) async fn get(&mut self, key: &str) -> Option<mvccpb::KeyValue> {
        self.range(key, "", 0).await.unwrap().kvs.first().map(decode)
    }

    pub(crate) async fn revision(&mut self) -> i64 {
        self.range("x", "", 0).await.unwrap().header.unwrap().revision
    }
}

pub(crate) fn decode(bytes: &bytes::Bytes) -> mvccpb::KeyValue {
    prost::Message::decode(bytes.clone()).unwrap()
}

type Requests = tokio_stream::wrappers::ReceiverStream<pb::WatchRequest>;

/// A request of a client that requires a leader.
pub(crate) fn led<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    request
}

/// An open watch stream.
pub(crate) struct Watching {
    pub(crate) requests: tokio::sync::mpsc::Sender<pb::WatchRequest>,
    pub(crate) answers: tonic::Streaming<pb::WatchResponse>,
}

impl Watching {
    pub(crate) async fn open(client: &mut Client, create: pb::WatchCreateRequest) -> Result<Self, tonic::Status> {
        Self::ask(client, create, tonic::Request::new).await
    }

    /// Opens it as a client that requires a leader, like kube-apiserver.
    pub(crate) async fn open_led(client: &mut Client, create: pb::WatchCreateRequest) -> Result<Self, tonic::Status> {
        Self::ask(client, create, led).await
    }

    async fn ask(
        client: &mut Client,
        create: pb::WatchCreateRequest,
        request: impl FnOnce(Requests) -> tonic::Request<Requests>,
    ) -> Result<Self, tonic::Status> {
        let (requests, receiver) = tokio::sync::mpsc::channel(16);
        requests.send(create_request(create)).await.unwrap();
        let answers = client.watch.watch(request(Requests::new(receiver))).await?.into_inner();
        Ok(Self { requests, answers })
    }

    pub(crate) async fn next(&mut self) -> Result<pb::WatchResponse, tonic::Status> {
        let message = tokio::time::timeout(WAIT, self.answers.message())
            .await
            .expect("an answer in time")?;
        message.ok_or_else(|| tonic::Status::unavailable("the stream has ended"))
    }
}

pub(crate) fn create_request(create: pb::WatchCreateRequest) -> pb::WatchRequest {
    pb::WatchRequest {
        request_union: Some(pb::watch_request::RequestUnion::CreateRequest(create)),
    }
}

pub(crate) fn prefix(key: &str, start_revision: i64) -> pb::WatchCreateRequest {
    let mut end = key.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    pb::WatchCreateRequest {
        key: key.to_owned().into(),
        range_end: end.into(),
        start_revision,
        prev_kv: true,
        ..Default::default()
    }
}

pub(crate) fn events(answer: &pb::WatchResponse) -> Vec<mvccpb::Event> {
    answer
        .events
        .iter()
        .map(|bytes| prost::Message::decode(bytes.clone()).unwrap())
        .collect()
}
