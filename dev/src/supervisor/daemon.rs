//! The daemon: owns the runners and serves the control socket.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use yoke_supervisor::State;

use super::runner::{Runner, STOP_LIMIT};
use super::{Reply, Request, Service, ServiceStatus};
use crate::cgroups;
use crate::layout::Layout;

const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Stopped services are deleted next, so there is no need to wait for kube-apiserver's watches.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// Delay before an exited daemon is replaced. It limits the load if the daemon cannot start at all.
const GUARD_PAUSE: Duration = Duration::from_millis(300);

/// The runners are ordered by first start, which is the order of their dependencies.
struct Daemon {
    layout: Layout,
    runners: Vec<Runner>,
}

enum After {
    GoOn,
    End,
}

/// Runs a daemon, and replaces it when it is killed, until a daemon exits with success.
pub async fn guard(layout: &Layout) -> Result<()> {
    let program = std::env::current_exe().context("finding the supervisor's own binary")?;
    cgroups::join_host(&layout.control_group())?;
    loop {
        let status = tokio::process::Command::new(&program)
            .args(["supervise", "--unguarded", "--node", &layout.node_number().to_string()])
            .current_dir(layout.root())
            .status()
            .await
            .context("starting the supervisor's daemon")?;
        if status.success() {
            return Ok(());
        }
        log(
            layout,
            &format!("the daemon exited with {status}; starting another one"),
        );
        tokio::time::sleep(GUARD_PAUSE).await;
    }
}

/// Runs a daemon until a request ends it.
pub async fn run(layout: Layout) -> Result<()> {
    cgroups::join_host(&layout.control_group())?;
    for dir in [services_dir(&layout), pids_dir(&layout), layout.log()] {
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    }
    let socket = layout.control_socket();
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
    let mut daemon = Daemon {
        runners: Vec::new(),
        layout,
    };
    daemon.take_over()?;
    log(
        &daemon.layout,
        &format!(
            "daemon {} supervises {} services",
            std::process::id(),
            daemon.runners.len()
        ),
    );
    loop {
        let (stream, _) = listener.accept().await.context("accepting on the control socket")?;
        match tokio::time::timeout(REQUEST_LIMIT, read(stream)).await {
            Ok(Ok((request, stream))) => {
                let (reply, after) = daemon.handle(request).await;
                answer(stream, &reply).await;
                if let After::End = after {
                    return Ok(());
                }
            }
            Ok(Err(error)) => log(&daemon.layout, &format!("unreadable request: {error:#}")),
            Err(_) => log(&daemon.layout, "a client connected but sent no request in time"),
        }
    }
}

impl Daemon {
    /// Starts the services that the previous daemon persisted.
    fn take_over(&mut self) -> Result<()> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(services_dir(&self.layout))
            .context("reading the persisted services")?
            .flatten()
        {
            // A file that was incomplete at a crash is written again by the next `up`.
            let complete = entry.path().extension().is_some_and(|extension| extension == "json");
            let service = fs::read(entry.path())
                .ok()
                .and_then(|bytes| serde_json::from_slice(&bytes).ok());
            if let (true, Some(service)) = (complete, service) {
                found.insert(entry.file_name(), service);
            }
        }
        for service in found.into_values() {
            self.spawn(service);
        }
        Ok(())
    }

    fn spawn(&mut self, service: Service) {
        let log = self.log_file(&service.name);
        let record = pids_dir(&self.layout).join(format!("{}.json", service.name));
        self.runners.push(Runner::spawn(service, log, record));
    }

    async fn handle(&mut self, request: Request) -> (Reply, After) {
        let reply = match request {
            Request::Keep(service) => self.set_service(*service).await,
            Request::Restart(name) => match self.runners.iter().find(|runner| runner.service.name == name) {
                Some(runner) => {
                    runner.restart().await;
                    Ok(Reply::Done)
                }
                None => Ok(Reply::Refused(format!("no service is called {name}"))),
            },
            Request::Status { probe } => Ok(Reply::Status(self.status(probe).await)),
            Request::HandOver => {
                for runner in self.runners.drain(..) {
                    runner.detach().await;
                }
                return (Reply::Done, After::End);
            }
            Request::Shutdown => {
                let stops: Vec<_> = self
                    .runners
                    .drain(..)
                    .map(|runner| tokio::spawn(runner.stop(SHUTDOWN_LIMIT)))
                    .collect();
                for stop in stops {
                    let _ = stop.await;
                }
                return (Reply::Done, After::End);
            }
        };
        (
            reply.unwrap_or_else(|error| Reply::Refused(format!("{error:#}"))),
            After::GoOn,
        )
    }

    async fn set_service(&mut self, service: Service) -> Result<Reply> {
        let at = self
            .runners
            .iter()
            .position(|runner| runner.service.name == service.name);
        if at.is_some_and(|at| self.runners[at].service == service) {
            return Ok(Reply::Done);
        }
        // The number keeps the order for the next daemon.
        let number = at.unwrap_or(self.runners.len());
        let file = services_dir(&self.layout).join(format!("{number:02}-{}.json", service.name));
        let partial = file.with_extension("partial");
        fs::write(&partial, serde_json::to_vec_pretty(&service)?).context("recording a service")?;
        fs::rename(&partial, &file).context("recording a service")?;
        match at {
            None => self.spawn(service),
            Some(at) if self.runners[at].service.same_process(&service) => self.runners[at].service = service,
            Some(at) => {
                self.runners.remove(at).stop(STOP_LIMIT).await;
                self.spawn(service);
                let runner = self.runners.pop().context("a runner was just added")?;
                self.runners.insert(at, runner);
            }
        }
        Ok(Reply::Done)
    }

    async fn status(&self, probe: bool) -> Vec<ServiceStatus> {
        let probes = self.runners.iter().map(|runner| {
            let health = runner.service.probe.clone();
            tokio::spawn(async move { if probe { health.check().await } else { None } })
        });
        let probes: Vec<_> = probes.collect();
        let mut services = Vec::new();
        for (runner, probe) in self.runners.iter().zip(probes) {
            let answer = probe.await.unwrap_or_else(|error| Some(error.to_string()));
            let state = runner.state();
            services.push(ServiceStatus {
                name: runner.service.name.clone(),
                pid: state.pid,
                restarts: state.exits,
                problem: to_problem(&state, answer),
                log: self.log_file(&runner.service.name),
            });
        }
        services
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.layout.log().join(format!("{name}.log"))
    }
}

/// Judges a service. Without a running process it is down, even if another process answers the
/// probe.
fn to_problem(state: &State, probe: Option<String>) -> Option<String> {
    match (&state.pid, &state.last_end) {
        (None, Some(end)) => Some(format!("not running: {end}")),
        (None, None) => Some("not started yet".to_owned()),
        (Some(_), _) => probe,
    }
}

async fn read(stream: UnixStream) -> Result<(Request, UnixStream)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).await?;
    Ok((serde_json::from_str(&line)?, reader.into_inner()))
}

async fn answer(mut stream: UnixStream, reply: &Reply) {
    if let Ok(mut line) = serde_json::to_vec(reply) {
        line.push(b'\n');
        // The client may have gone.
        let _ = stream.write_all(&line).await;
    }
}

fn services_dir(layout: &Layout) -> PathBuf {
    layout.run().join("services")
}

fn pids_dir(layout: &Layout) -> PathBuf {
    layout.run().join("pids")
}

fn log(layout: &Layout, message: &str) {
    let path = layout.log().join("supervisor.log");
    if let Ok(mut file) = fs::OpenOptions::new().create(true).append(true).open(path) {
        let _ = writeln!(file, "{} {message}", jiff::Timestamp::now());
    }
}
