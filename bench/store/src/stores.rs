//! The measured stores, and how to start each.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use tempfile::TempDir;
use yoke_bench_harness::{Peak, Usage, disk, usage};
use yoke_test_support::free_port;

use crate::client::Client;
use crate::process::{Cores, Process};

const START_LIMIT: Duration = Duration::from_secs(180);

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// etcd with this number of members.
    Etcd(usize),
    /// The kine of k3s, with its NATS driver and one nats-server.
    GoKine,
    /// kine-nats with this number of nats-servers.
    KineNats(usize),
}

/// A store, and whether it writes to disk before it acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Store {
    pub(crate) kind: Kind,
    /// An acknowledged write survives a power failure.
    pub(crate) durable: bool,
}

impl std::str::FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "etcd" => Ok(Self::Etcd(1)),
            "etcd-replicated" => Ok(Self::Etcd(3)),
            "go-kine" => Ok(Self::GoKine),
            "kine-nats" => Ok(Self::KineNats(1)),
            "kine-nats-replicated" => Ok(Self::KineNats(3)),
            _ => anyhow::bail!("not one of etcd, etcd-replicated, go-kine, kine-nats, kine-nats-replicated"),
        }
    }
}

impl Store {
    /// All measured stores. Only stores with the same `durable` are compared.
    pub(crate) const ALL: [Self; 8] = [
        Self::of(Kind::Etcd(1), true),
        Self::of(Kind::GoKine, true),
        Self::of(Kind::KineNats(1), true),
        Self::of(Kind::Etcd(3), true),
        Self::of(Kind::KineNats(3), true),
        Self::of(Kind::Etcd(1), false),
        Self::of(Kind::GoKine, false),
        Self::of(Kind::KineNats(1), false),
    ];

    const fn of(kind: Kind, durable: bool) -> Self {
        Self { kind, durable }
    }

    /// Heading of the store's column.
    pub(crate) fn name(self) -> &'static str {
        match self.kind {
            Kind::Etcd(1) => "etcd",
            Kind::Etcd(_) => "etcd, three members",
            Kind::GoKine => "Go kine + NATS",
            Kind::KineNats(1) => "kine-nats, single",
            Kind::KineNats(_) => "kine-nats, replicated",
        }
    }
}

/// A running store.
pub(crate) struct Running {
    /// The process that serves the clients.
    pub(crate) front: Process,
    /// The NATS servers or the other etcd members, with their client ports.
    behind: Vec<(Process, u16)>,
    port: u16,
    dir: TempDir,
}

impl Running {
    /// Starts an empty store, and waits until it answers. `more` are additional arguments of
    /// kine-nats.
    pub(crate) async fn start(store: Store, cores: &Cores, more: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("store-bench-").tempdir()?;
        let mut running = match store.kind {
            Kind::Etcd(members) => start_etcd(members, store.durable, cores, dir)?,
            Kind::GoKine => {
                let behind = start_nats(1, store.durable, cores, dir.path()).await?;
                let port = free_port();
                let arguments = [
                    "kine".to_owned(),
                    format!("--endpoint={}?noEmbed=true&bucket=bench", urls(&behind)),
                    format!("--listen-address=tcp://127.0.0.1:{port}"),
                    "--metrics-bind-address=0".to_owned(),
                ];
                Self {
                    front: Process::start(cores, &arguments, &dir.path().join("front.log"))?,
                    behind,
                    port,
                    dir,
                }
            }
            Kind::KineNats(servers) => {
                let behind = start_nats(servers, store.durable, cores, dir.path()).await?;
                let port = free_port();
                let arguments = kine_nats(port, &behind, more);
                Self {
                    front: Process::start(cores, &arguments, &dir.path().join("front.log"))?,
                    behind,
                    port,
                    dir,
                }
            }
        };
        running
            .ready()
            .await
            .with_context(|| format!("starting {}", store.name()))?;
        if matches!(store.kind, Kind::Etcd(2..)) {
            running.lead().await?;
        }
        Ok(running)
    }

    /// Makes the etcd leader the member that serves the clients, because the leader answers
    /// fastest.
    pub(crate) async fn lead(&mut self) -> Result<()> {
        for index in 0..self.behind.len() {
            if Client::new(self.behind[index].1)?.leads().await? {
                std::mem::swap(&mut self.front, &mut self.behind[index].0);
                std::mem::swap(&mut self.port, &mut self.behind[index].1);
            }
        }
        anyhow::ensure!(self.client()?.leads().await?, "no member of etcd leads");
        Ok(())
    }

    /// A new connection to another etcd member than the one that serves the clients.
    pub(crate) fn client_behind(&self) -> Result<Client> {
        let (_, port) = self.behind.first().context("etcd of one member")?;
        Client::new(*port)
    }

    /// Starts a second kine-nats on the same streams, and waits until it answers.
    pub(crate) async fn beside(&self, cores: &Cores, more: &[&str]) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("store-bench-").tempdir()?;
        let port = free_port();
        let mut running = Self {
            front: Process::start(
                cores,
                &kine_nats(port, &self.behind, more),
                &dir.path().join("front.log"),
            )?,
            behind: vec![],
            port,
            dir,
        };
        running.ready().await.context("starting another kine-nats")?;
        Ok(running)
    }

    /// Host and port for clients.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A new connection.
    pub(crate) fn client(&self) -> Result<Client> {
        Client::new(self.port)
    }

    /// Waits until a linearizable read is answered.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let begun = Instant::now();
        let client = self.client()?;
        while client.get("/registry/health").await.is_err() {
            self.front.check()?;
            anyhow::ensure!(begun.elapsed() < START_LIMIT, "no answer within {START_LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Stops the serving process with `signal`, starts it again and waits until it answers. Returns
    /// the time of the start.
    pub(crate) async fn again(&mut self, signal: Signal) -> Result<Instant> {
        self.front.end(signal)?;
        let begun = Instant::now();
        self.front.begin()?;
        self.ready().await?;
        Ok(begun)
    }

    /// Disk space of the store's files, in MiB.
    pub(crate) fn disk(&self) -> Result<f64> {
        Ok(disk::used_by(self.dir.path())? as f64 / 1024.0 / 1024.0)
    }

    /// Total resource usage of all processes.
    pub(crate) fn used(&self) -> Result<Usage> {
        Usage::of_threads(&self.ids())
    }

    /// Bytes that all processes caused to be written to disk.
    pub(crate) fn written(&self) -> Result<f64> {
        usage::written(&self.ids())
    }

    /// Resource usage of the serving process, and of the processes behind it, if there are any.
    pub(crate) fn used_apart(&self) -> Result<(Usage, Option<Usage>)> {
        let behind: Vec<_> = self.behind.iter().map(|(process, _)| process.id()).collect();
        let used = (!behind.is_empty()).then(|| Usage::of_threads(&behind));
        Ok((Usage::of_threads(&[self.front.id()])?, used.transpose()?))
    }

    /// Starts to record the maximum memory of all processes.
    pub(crate) fn peak(&self) -> Peak {
        Peak::of(self.ids())
    }

    fn ids(&self) -> Vec<u32> {
        std::iter::once(&self.front)
            .chain(self.behind.iter().map(|(process, _)| process))
            .map(Process::id)
            .collect()
    }
}

/// Starts the members of a new etcd. A cluster of several members has a leader once they answer.
fn start_etcd(members: usize, durable: bool, cores: &Cores, dir: TempDir) -> Result<Running> {
    let url = |port: &u16| format!("http://127.0.0.1:{port}");
    let peers: Vec<_> = (0..members).map(|_| free_port()).collect();
    let cluster: Vec<_> = peers
        .iter()
        .enumerate()
        .map(|(member, port)| format!("m{member}={}", url(port)))
        .collect();
    let mut started = Vec::new();
    for (member, peer) in peers.iter().enumerate() {
        let port = free_port();
        let mut arguments = vec![
            "etcd".to_owned(),
            format!("--name=m{member}"),
            format!("--data-dir={}", dir.path().join(format!("data-{member}")).display()),
            format!("--listen-client-urls={}", url(&port)),
            format!("--advertise-client-urls={}", url(&port)),
            format!("--listen-peer-urls={}", url(peer)),
            format!("--initial-advertise-peer-urls={}", url(peer)),
            format!("--initial-cluster={}", cluster.join(",")),
            "--log-level=warn".to_owned(),
            format!("--quota-backend-bytes={}", 8u64 << 30),
        ];
        if !durable {
            arguments.push("--unsafe-no-fsync".to_owned());
        }
        let log = dir.path().join(format!("etcd-{member}.log"));
        started.push((Process::start(cores, &arguments, &log)?, port));
    }
    let (front, port) = started.pop().context("etcd without a member")?;
    Ok(Running {
        front,
        behind: started,
        port,
        dir,
    })
}

/// Arguments of kine-nats on streams with a replica on every server.
fn kine_nats(port: u16, servers: &[(Process, u16)], more: &[&str]) -> Vec<String> {
    let fixed = [
        "kine-nats".to_owned(),
        format!("--listen=http://127.0.0.1:{port}"),
        format!("--nats={}", urls(servers)),
        "--stream=KINE_bench".to_owned(),
        "--create".to_owned(),
        format!("--replicas={}", servers.len()),
        // Enough for a million objects.
        format!("--quota={}", 4u64 << 30),
        format!("--max-bytes={}", 9u64 << 30),
    ];
    fixed.into_iter().chain(more.iter().map(ToString::to_string)).collect()
}

/// URLs of the NATS servers for clients.
fn urls(servers: &[(Process, u16)]) -> String {
    let urls: Vec<_> = servers
        .iter()
        .map(|(_, port)| format!("nats://127.0.0.1:{port}"))
        .collect();
    urls.join(",")
}

/// Starts nats-servers, as a cluster if there are several. Waits until each reports that it is
/// healthy.
async fn start_nats(servers: usize, durable: bool, cores: &Cores, dir: &Path) -> Result<Vec<(Process, u16)>> {
    let ports = || (0..servers).map(|_| free_port()).collect::<Vec<_>>();
    let (clients, routes, monitors) = (ports(), ports(), ports());
    let peers: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let mut started = Vec::new();
    for server in 0..servers {
        let home = dir.join(format!("nats-{server}"));
        std::fs::create_dir(&home)?;
        // Without `always`, a nats-server syncs only every two minutes, and acknowledges earlier.
        let sync = if durable { "sync_interval: always" } else { "" };
        let mut config = format!(
            "listen: 127.0.0.1:{}\nhttp: 127.0.0.1:{}\nserver_name: n{server}\nmax_payload: 8MB\n\
             jetstream {{ store_dir: {:?}, max_file_store: 1TB, {sync} }}\n",
            clients[server],
            monitors[server],
            home.join("jetstream"),
        );
        if servers > 1 {
            config += &format!(
                "cluster {{ name: bench, listen: 127.0.0.1:{}, routes: {peers:?} }}\n",
                routes[server]
            );
        }
        let path = home.join("nats.conf");
        std::fs::write(&path, config)?;
        let arguments = ["nats-server".to_owned(), "-c".to_owned(), path.display().to_string()];
        let process = Process::start(cores, &arguments, &home.join("nats.log"))?;
        started.push((process, clients[server]));
    }
    for (index, (process, _)) in started.iter_mut().enumerate() {
        let begun = Instant::now();
        while !is_healthy(monitors[index]).await {
            process.check()?;
            anyhow::ensure!(begun.elapsed() < START_LIMIT, "nats-server is not healthy");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(started)
}

async fn is_healthy(monitor: u16) -> bool {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", monitor)).await?;
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    ask.await.is_ok_and(|answer| answer.starts_with("HTTP/1.0 200"))
}
