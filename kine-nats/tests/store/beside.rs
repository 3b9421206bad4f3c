//! `yoke-launch --writer` runs a program only beside the process that writes, and only once the API
//! server is alive. The controllers of a control plane with a standby pod run this way.

use crate::harness::{Kine, Nats, etcdctl, eventually};
use futures::StreamExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use yoke_test_support::free_port;

/// Serving certificates have only DNS names.
const NAME: &str = "kubernetes.test";
const STAND_BY: [&str; 2] = ["--follow", "--end-when-replaced"];

/// Responses of a kube-apiserver while it starts, and afterwards. It begins with the first.
struct ApiServer {
    is_alive: Arc<AtomicBool>,
    tls: TlsAcceptor,
    ca: PathBuf,
}

impl ApiServer {
    fn new(folder: &Path) -> Self {
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        let ca = folder.join("ca.crt");
        std::fs::write(&ca, own.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        yoke_runtime::install_crypto();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![own.cert.der().clone()], key).unwrap();
        Self {
            is_alive: Arc::default(),
            tls: TlsAcceptor::from(Arc::new(config)),
            ca,
        }
    }

    fn serve(&self, listener: TcpListener) {
        let (is_alive, tls) = (Arc::clone(&self.is_alive), self.tls.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = tls.accept(stream).await else {
                    continue;
                };
                let mut request = [0; "GET /livez HTTP/1.0\r\n\r\n".len()];
                let is_read = stream.read_exact(&mut request).await.is_ok();
                let status = match is_read && request.starts_with(b"GET /livez ") && is_alive.load(Ordering::Relaxed) {
                    true => "200 OK",
                    false => "500 Internal Server Error",
                };
                let _ = stream.write_all(format!("HTTP/1.0 {status}\r\n\r\n").as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
    }
}

/// A program beside a store.
struct Beside {
    launch: Child,
    /// Receives the pid of the program each time it starts.
    pids: PathBuf,
}

impl Beside {
    fn start(kine: &Kine, (server, ca): (&str, &Path), folder: &Path, name: &str, program: &str) -> Self {
        let pids = folder.join(name);
        let program = format!("echo $$ >> {}; {program}", pids.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_yoke-launch"));
        command.args([
            "--writer",
            &kine.metrics_address(),
            "--after",
            server,
            "--name",
            NAME,
            "--ca",
        ]);
        command.arg(ca);
        command.args(["50", "sh", "-c", &program]);
        Self {
            launch: command.spawn().unwrap(),
            pids,
        }
    }

    fn begun(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.pids).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn runs(&self) -> bool {
        self.begun().iter().any(|pid| Path::new("/proc").join(pid).exists())
    }

    async fn until(&self, runs: bool, times: usize) {
        let what = format!("{times} starts of the program, and its running state {runs}");
        eventually(&what, || {
            std::future::ready((self.runs() == runs && self.begun().len() == times).then_some(()))
        })
        .await;
    }

    async fn ended(&mut self) -> Option<i32> {
        let status = eventually("the launcher to exit", || {
            std::future::ready(self.launch.try_wait().unwrap())
        })
        .await;
        status.code()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(self.begun()).status();
        let _ = self.launch.kill();
        let _ = self.launch.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singleton_programs_run_beside_the_writer() {
    let (nats, folder) = (Nats::start().await, tempfile::tempdir().unwrap());
    let mut first = Kine::start(&nats, "beside", &STAND_BY).await;
    let mut second = Kine::start(&nats, "beside", &STAND_BY).await;
    let server = format!("127.0.0.1:{}", free_port());
    let api = ApiServer::new(folder.path());
    let start =
        |kine: &Kine, name: &str| Beside::start(kine, (&server, &api.ca), folder.path(), name, "exec sleep 1000");
    let (mut one, other) = (start(&first, "one"), start(&second, "other"));
    // The API server is absent at first, then it listens, then it serves, and then its start-up
    // work is done.
    sleep(Duration::from_secs(1)).await;
    assert!(one.begun().is_empty());
    let listener = TcpListener::bind(&server).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert!(one.begun().is_empty());
    api.serve(listener);
    sleep(Duration::from_secs(1)).await;
    assert!(one.begun().is_empty());
    api.is_alive.store(true, Ordering::Relaxed);
    one.until(true, 1).await;
    assert!(!other.runs());

    // Another process writes while the writer is suspended. When it resumes, it exits, and the
    // program beside it is stopped.
    first.signal("STOP");
    other.until(true, 1).await;
    first.signal("CONT");
    let status = eventually("the replaced process to exit", || std::future::ready(first.exited())).await;
    assert!(!status.success(), "{}", first.log());
    one.until(false, 1).await;
    // The next one follows, and the program beside it waits.
    first.restart().await;
    both_are_members(&second).await;
    assert!(!one.runs() && other.runs());

    second.terminate().await;
    one.until(true, 2).await;
    other.until(false, 1).await;
    // A signal is forwarded to the program.
    let id = one.launch.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    assert_eq!(one.ended().await, Some(128 + 15));
    assert!(!one.runs());
    // A launcher that waits exits on a signal, too.
    let mut other = other;
    let id = other.launch.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    assert_eq!(other.ended().await, Some(128 + 15));

    let mut short = Beside::start(&first, (&server, &api.ca), folder.path(), "short", "exit 7");
    assert_eq!(short.ended().await, Some(7));
    assert_eq!(short.begun().len(), 1, "the kubelet starts it again");
}

#[tokio::test]
async fn a_single_writer_sends_no_announcements() {
    let nats = Nats::start().await;
    let kine = Kine::start(&nats, "alone", &STAND_BY).await;
    let mut client = kine.client().await;
    client.put("/a", b"").await.unwrap();
    let observer = async_nats::connect(nats.url()).await.unwrap();
    let mut said = observer.subscribe("kine.alone.rpc.>").await.unwrap();
    let quiet = tokio::time::timeout(Duration::from_secs(3), said.next());
    assert!(quiet.await.is_err(), "it says something");
    let _follower = Kine::start(&nats, "alone", &STAND_BY).await;
    both_are_members(&kine).await;
    assert!(said.next().await.is_some());
}

async fn both_are_members(kine: &Kine) {
    eventually("two members", || async {
        let list = etcdctl(&kine.url(), &["member", "list"]).unwrap();
        (list.lines().count() == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_writer_answers_while_it_stores_a_snapshot() {
    let nats = Nats::start().await;
    let mut writer = Kine::start(&nats, "saves", &STAND_BY).await;
    let follower = Kine::start(&nats, "saves", &STAND_BY).await;
    let (mut old, mut new) = (writer.client().await, follower.client().await);
    // More than a stopping writer leaves without a snapshot.
    let value = vec![b'a'; 1 << 20];
    for number in 0..8 {
        old.put(&format!("/large/{number}"), &value).await.unwrap();
    }
    let revision = new.put("/a", b"").await.unwrap();
    writer.signal("TERM");
    let (mut longest, mut rounds) = (Duration::ZERO, 0);
    while writer.exited().is_none() {
        let asked = Instant::now();
        assert!(new.put("/a", b"").await.unwrap() > revision);
        assert_eq!(new.get("/a").await.unwrap().value.as_ref(), b"");
        longest = longest.max(asked.elapsed());
        rounds += 1;
    }
    let log = writer.log();
    let (_, last) = log.split_once("Stopping").unwrap();
    assert!(last.contains("Stored a snapshot"), "{log}");
    println!("{rounds} writes and reads while it ended, the longest in {longest:?}");
    assert!(rounds > 5, "they wait until it has ended: {rounds}");
}
