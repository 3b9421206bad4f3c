//! A control plane: the processes of a pod with their probes, without the pod.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::Request;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use yoke_bench_harness::Usage;
use yoke_test_support::free_port;

use super::certificates;
use super::report::{COLUMNS, Uses};
use super::template::Template;
use super::variants::{LAUNCH, Variant};
use crate::process::{Cores, Process};
use crate::stores::{Kind, Running, Store};

/// Paths and addresses in the operator's templates that are replaced here.
const PKI: &str = "/etc/kubernetes/pki";
const CONFIG: &str = "/etc/kubernetes/config";
const SOCKET: &str = "unix:///run/kine/kine.sock";
const AUDIT: &str = "127.0.0.1:2382";
const STORE: &str = "127.0.0.1:2381";
const API_SERVER: &str = "kube-apiserver";
/// Clients of the API server, with the ports of their probes.
const CLIENTS: [(&str, u16); 2] = [("kube-controller-manager", 10257), ("kube-scheduler", 10259)];
const API_PORT: u16 = 6443;
/// Option that sets the server name of the API server's certificate for its clients.
const NAME: &str = "--name";
/// The last of the initial objects that kube-controller-manager creates and the benchmark waits
/// for.
const LAST: &str = "/api/v1/namespaces/default/serviceaccounts/default";
/// Path that the load reads from a control plane in use.
const READ: &str = "/api/v1/namespaces/default";
const LIMIT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of concurrent requests.
const CONNECTIONS: u64 = 4;

/// A running control plane.
pub(super) struct Plane {
    pub(super) variant: Variant,
    /// Dropped in this order: clients before servers.
    _probes: JoinSet<()>,
    clients: Vec<Process>,
    api_server: Process,
    store: Running,
    url: String,
    owner: (String, String),
    _dir: TempDir,
}

/// A load of requests. Stops when this is dropped.
pub(super) struct Load {
    answered: Arc<AtomicUsize>,
    _sending: JoinSet<()>,
}

/// Options of a store that are taken from the operator's template. The addresses are set here.
const FLAGS: [&str; 4] = ["--audit=", "--ignore-user-agent=", "--follow", "--end-when-replaced"];

/// State of a control plane while its processes are started.
struct Site<'a> {
    variant: Variant,
    template: Template,
    cores: &'a Cores,
    path: &'a Path,
    /// Texts of the template, and their replacements.
    places: Vec<(String, String)>,
    probes: JoinSet<()>,
}

impl Site<'_> {
    fn apply(&self, text: &str) -> String {
        let places = self.places.iter();
        places.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    /// Starts the store. Also returns the address at which the API server finds it.
    async fn start_store(&mut self) -> Result<(Running, String)> {
        let store = Store {
            kind: self.variant.store(),
            durable: true,
        };
        let socket = format!("unix://{}", self.path.join("kine.sock").display());
        let metrics = format!("127.0.0.1:{}", free_port());
        let fixed = [format!("--listen={socket}"), format!("--metrics={metrics}")];
        let told = self.template.command("kine-nats")?.arguments;
        let told = told
            .iter()
            .filter(|text| FLAGS.iter().any(|flag| text.starts_with(flag)));
        let more: Vec<_> = fixed.into_iter().chain(told.map(|text| self.apply(text))).collect();
        let more: Vec<_> = more.iter().map(String::as_str).collect();
        let running = Running::start(store, self.cores, &more).await?;
        self.places.push((STORE.to_owned(), metrics));
        let address = match store.kind {
            Kind::KineNats(_) => socket,
            _ => format!("http://{}", running.address()),
        };
        Ok((running, address))
    }

    /// Starts a component. In the template, its probes use the port `usual`.
    fn start(&mut self, name: &str, usual: u16, port: u16) -> Result<Process> {
        // Each component mounts its own Secret on the same path; files that several of them use are
        // in the parent folder.
        let own = format!("{}/{name}/kubeconfig", self.path.display());
        let kubeconfig = format!("{PKI}/kubeconfig");
        let command = self.variant.change(name, self.template.command(name)?);
        let variables = command.environment.iter();
        let mut arguments = vec!["env".to_owned()];
        arguments.extend(variables.map(|(name, value)| format!("{name}={value}")));
        let texts = command.arguments.iter().map(|text| text.replace(&kubeconfig, &own));
        arguments.extend(texts.map(|text| self.apply(&text)));
        arguments.retain(|argument| !argument.starts_with("--secure-port="));
        arguments.push(format!("--secure-port={port}"));
        arguments.push("--bind-address=127.0.0.1".to_owned());
        let log = self.path.join(format!("{name}.log"));
        let process = Process::start(self.cores, &arguments, &log)?;
        self.probe(name, usual, port)?;
        Ok(process)
    }

    /// Probes as the kubelet does: on a new connection each time, without verifying the
    /// certificate.
    fn probe(&mut self, name: &str, usual: u16, port: u16) -> Result<()> {
        let container = self.template.container(name)?;
        let liveness = (&container.liveness_probe, self.variant.liveness());
        for (probe, period) in [liveness, (&container.readiness_probe, None)] {
            let Some(probe) = probe else { continue };
            let ask = probe.http_get.as_ref().context("a probe that is no request")?;
            ensure!(ask.port == IntOrString::Int(usual.into()), "{name} is probed elsewhere");
            let path = ask.path.clone().unwrap_or_default();
            let own = u64::try_from(probe.period_seconds.context("no period")?)?;
            let url = format!("https://127.0.0.1:{port}");
            self.probes.spawn(async move {
                let mut tick = interval(Duration::from_secs(period.unwrap_or(own)));
                tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
                loop {
                    tick.tick().await;
                    // The result does not matter. Other code checks whether the process still runs.
                    if let Ok(client) = connect(&url, None) {
                        let _ = get(&client, &path).await;
                    }
                }
            });
        }
        Ok(())
    }
}

impl Plane {
    /// Starts the control plane, and waits until the objects of a new cluster exist.
    pub(super) async fn start(variant: Variant, cores: &Cores) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("store-bench-").tempdir()?;
        let (path, port) = (dir.path(), free_port());
        let url = format!("https://127.0.0.1:{port}");
        let owner = certificates::write(path, &url)?;
        let config = path.join("config");
        std::fs::create_dir(&config)?;
        let template = Template::read(variant.case())?;
        let name = template.option(CLIENTS[0].0, NAME)?;
        let mut site = Site {
            variant,
            template,
            cores,
            path,
            places: vec![
                (PKI.to_owned(), path.display().to_string()),
                (CONFIG.to_owned(), config.display().to_string()),
                (AUDIT.to_owned(), format!("127.0.0.1:{}", free_port())),
                (format!("127.0.0.1:{API_PORT}"), format!("127.0.0.1:{port}")),
                // The API server's certificate is valid for its address here.
                (name, "127.0.0.1".to_owned()),
                // Found in PATH, as are the programs that it starts.
                (LAUNCH.to_owned(), "yoke-launch".to_owned()),
            ],
            probes: JoinSet::new(),
        };
        let (store, address) = site.start_store().await?;
        site.places.push((SOCKET.to_owned(), address));
        for (name, text) in &site.template.files {
            std::fs::write(config.join(name), site.apply(text))?;
        }
        let mut api_server = site.start(API_SERVER, API_PORT, port)?;
        wait(&mut api_server, &connect(&url, None)?, "/readyz").await?;
        let clients = CLIENTS.map(|(name, usual)| site.start(name, usual, free_port()));
        let clients = clients.into_iter().collect::<Result<Vec<_>>>()?;
        wait(&mut api_server, &connect(&url, Some(&owner))?, LAST).await?;
        Ok(Self {
            variant,
            _probes: site.probes,
            clients,
            api_server,
            store,
            url,
            owner,
            _dir: dir,
        })
    }

    /// Resource usage of the processes.
    pub(super) fn used(&self) -> Result<Uses> {
        let used = |process: &Process| Usage::of_threads(&process.family()?);
        let mut uses: Uses = [None; COLUMNS.len()];
        let (store, behind) = self.store.used_apart()?;
        uses[0] = Some(used(&self.api_server)?);
        for (place, client) in uses[1..].iter_mut().zip(&self.clients) {
            *place = Some(used(client)?);
        }
        uses[3] = Some(store);
        uses[4] = behind;
        Ok(uses)
    }

    /// Fails if one of the processes has exited.
    pub(super) fn check(&mut self) -> Result<()> {
        for process in self
            .clients
            .iter_mut()
            .chain([&mut self.api_server, &mut self.store.front])
        {
            process.check()?;
        }
        Ok(())
    }

    /// Sends requests at a rate, like a user of the cluster.
    pub(super) fn load(&self, rate: u64) -> Result<Load> {
        let answered = Arc::new(AtomicUsize::new(0));
        let mut sending = JoinSet::new();
        let period = Duration::from_secs_f64(CONNECTIONS as f64 / rate as f64);
        for _ in 0..CONNECTIONS {
            let client = connect(&self.url, Some(&self.owner))?;
            let answered = Arc::clone(&answered);
            sending.spawn(async move {
                let mut tick = interval(period);
                loop {
                    tick.tick().await;
                    if get(&client, READ).await.is_ok() {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        Ok(Load {
            answered,
            _sending: sending,
        })
    }
}

impl Load {
    /// Number of answered requests so far.
    pub(super) fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // Clients stop first, because a client without its server would fill its log with errors.
        self.clients.clear();
    }
}

fn connect(url: &str, owner: Option<&(String, String)>) -> Result<kube::Client> {
    let mut config = kube::Config::new(url.parse()?);
    config.accept_invalid_certs = true;
    config.default_retry = false;
    if let Some((certificate, key)) = owner {
        let data = |pem: &str| Some(data_encoding::BASE64.encode(pem.as_bytes()));
        config.auth_info.client_certificate_data = data(certificate);
        config.auth_info.client_key_data = data(key).map(Into::into);
    }
    Ok(kube::Client::try_from(config)?)
}

async fn get(client: &kube::Client, path: &str) -> Result<String> {
    Ok(client.request_text(Request::get(path).body(Vec::new())?).await?)
}

/// Waits until a path is answered.
async fn wait(server: &mut Process, client: &kube::Client, path: &str) -> Result<()> {
    let begun = Instant::now();
    while let Err(error) = get(client, path).await {
        server.check()?;
        ensure!(begun.elapsed() < LIMIT, "{path} is not there: {error:#}");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
