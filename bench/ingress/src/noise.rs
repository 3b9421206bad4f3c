//! A noisy tenant that uses all capacity it can get. A separate process, so that its CPU time is
//! not taken from the measuring process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::door::{Answer, Door, INSIDE, open};
use crate::support::pki::trust;

/// Concurrent workers that open connections.
const WORKERS: u32 = 64;
/// Source addresses of the tenant: one for each of its machines.
const MACHINES: u32 = 16;
/// Concurrent requests of each machine, all on one connection.
const STREAMS: u32 = 50;
/// Record type of a TLS handshake record: the first byte of a successful answer.
const HANDSHAKE: u8 = 22;
/// Timeout for one connection attempt.
const PATIENCE: Duration = Duration::from_secs(1);

/// The kind of load that the tenant generates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// Opens connections to the public name and closes each after the first byte of the answer.
    Connections,
    /// Sends requests with a pod's token.
    Requests,
}

/// Arguments of the noise process.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    kind: Kind,
    #[arg(long)]
    ingress: SocketAddr,
    #[arg(long)]
    name: String,
    #[arg(long)]
    bearer: String,
    #[arg(long)]
    root: PathBuf,
    /// Seconds before counting starts. By then the tenant has used up the burst that the limits
    /// allow.
    #[arg(long)]
    lead: f64,
    #[arg(long)]
    seconds: f64,
}

/// The load of the noisy tenant, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Made {
    /// Connections or requests that were attempted.
    pub(crate) tried: f64,
    /// Attempts that reached the tenant's control plane.
    pub(crate) passed: f64,
}

/// Generates the load, and prints the attempts and successes per second.
pub(crate) async fn make(args: Args) -> Result<()> {
    let length = Duration::from_secs_f64(args.seconds);
    let door = Arc::new(Door::new(args.ingress, trust(&std::fs::read_to_string(&args.root)?)));
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let mut workers = JoinSet::new();
    let args = Arc::new(args);
    match args.kind {
        Kind::Connections => {
            let hello: Arc<[u8]> = door.hello(&args.name)?.into();
            for worker in 0..WORKERS {
                let (hello, counts, ingress) = (Arc::clone(&hello), Arc::clone(&counts), args.ingress);
                workers.spawn(async move {
                    loop {
                        let tried = tokio::time::timeout(PATIENCE, knock(machine(worker), ingress, &hello));
                        count(&counts, matches!(tried.await, Ok(Ok(true))));
                    }
                });
            }
        }
        Kind::Requests => {
            for worker in 0..MACHINES {
                let (door, counts, args) = (Arc::clone(&door), Arc::clone(&counts), Arc::clone(&args));
                workers.spawn(async move {
                    loop {
                        let connected = door.connect_from(machine(worker), INSIDE).await;
                        let Ok(connection) = connected else { continue };
                        let mut streams = JoinSet::new();
                        for _ in 0..STREAMS {
                            let (mut connection, counts) = (connection.fork(), Arc::clone(&counts));
                            let bearer = args.bearer.clone();
                            streams.spawn(async move {
                                while let Ok(answer) = connection.ask(Some(&bearer)).await {
                                    count(&counts, matches!(answer, Answer::From(_)));
                                }
                            });
                        }
                        while streams.join_next().await.is_some() {}
                    }
                });
            }
        }
    }
    tokio::time::sleep(Duration::from_secs_f64(args.lead)).await;
    let read = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    let before = read();
    tokio::time::sleep(length).await;
    let after = read();
    let [tried, passed] = [0, 1].map(|which| (after[which] - before[which]) as f64 / length.as_secs_f64());
    println!("{tried} {passed}");
    Ok(())
}

fn count(counts: &[AtomicU64; 2], passed: bool) {
    counts[0].fetch_add(1, Ordering::Relaxed);
    counts[1].fetch_add(u64::from(passed), Ordering::Relaxed);
}

fn machine(worker: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 2, 0, 1)) + worker % MACHINES)
}

/// Opens a connection. Returns whether the server started the TLS handshake.
async fn knock(source: Ipv4Addr, ingress: SocketAddr, hello: &[u8]) -> Result<bool> {
    let mut stream = open(source, ingress).await?;
    stream.write_all(hello).await?;
    Ok(stream.read_u8().await? == HANDSHAKE)
}

/// The noise process. Killed when this is dropped.
pub(crate) struct Noise(Child);

impl Noise {
    /// Starts the process with a lower CPU priority than the measured ones. Counting starts after
    /// `lead` and lasts for `length`.
    pub(crate) fn start(
        kind: Kind,
        ingress: SocketAddr,
        (name, bearer): (&str, &str),
        root: &Path,
        [lead, length]: [Duration; 2],
    ) -> Result<Self> {
        let kind = match kind {
            Kind::Connections => "connections",
            Kind::Requests => "requests",
        };
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(std::env::current_exe()?).arg("noise");
        command.args(["--kind", kind, "--name", name, "--bearer", bearer]);
        command.arg(format!("--ingress={ingress}"));
        command.arg(format!("--lead={}", lead.as_secs_f64()));
        command.arg(format!("--seconds={}", length.as_secs_f64()));
        command.arg("--root").arg(root);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        Ok(Self(child.context("starting a noisy tenant")?))
    }

    /// Waits until the process exits, and returns its counts.
    pub(crate) async fn end(self) -> Result<Made> {
        let output = self.0.wait_with_output().await?;
        ensure!(output.status.success(), "the noisy tenant ended with {}", output.status);
        parse(&String::from_utf8(output.stdout)?)
    }
}

fn parse(text: &str) -> Result<Made> {
    let (tried, passed) = text
        .trim()
        .split_once(' ')
        .context("reading what the noisy tenant said")?;
    Ok(Made {
        tried: tried.parse()?,
        passed: passed.parse()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_is_understood() {
        let made = Made {
            tried: 5000.5,
            passed: 640.0,
        };
        assert_eq!(parse("5000.5 640\n").unwrap(), made);
        assert!(parse("5000.5").is_err());
    }
}
