//! `make up`: brings the stack from any state to running, one step at a time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use yoke_supervisor::programs::find_program;

use crate::credentials::{self, host_pki};
use crate::demo;
use crate::environment;
use crate::files::link;
use crate::host_cluster::node::Node;
use crate::host_cluster::services::Services;
use crate::host_cluster::{HostStore, manifests};
use crate::images::{self, Images};
use crate::kernel;
use crate::kubectl::Kubectl;
use crate::layout::{FIRST_NODE, Layout};
use crate::network::Network;
use crate::nodes;
use crate::recipes::rust::{self, Profile};
use crate::recipes::{self, Made, debian, go};
use crate::releases::Releases;
use crate::steps::{self, Progress, Reporter, Step};
use crate::supervisor::Service;
use crate::supervisor::client;
use crate::yoke;

const PROCESS_LIMIT: Duration = Duration::from_secs(90);
const ROLLOUT_LIMIT: Duration = Duration::from_secs(180);

/// Options of `make up`.
#[derive(Debug)]
pub struct Options {
    /// Datastore of the host API.
    pub store: HostStore,
    /// Cargo profile of this workspace's binaries.
    pub profile: Profile,
    /// Kubernetes versions that tenants can choose.
    pub releases: Releases,
    /// Whether workers have metrics-server.
    pub metrics_server: bool,
    /// The steps to run.
    pub plan: Vec<Step>,
}

/// Runs the planned steps.
pub async fn up(layout: &Layout, options: Options) -> Result<()> {
    let mut reporter = Reporter::new(options.plan.len());
    let Options {
        store,
        profile,
        releases,
        metrics_server,
        plan,
    } = options;
    let mut stack = Stack {
        layout,
        store,
        profile,
        releases,
        metrics_server,
        network: None,
        nodes: Vec::new(),
        namespaces: None,
    };
    for step in plan {
        steps::show(&mut reporter, step.label(), |progress| stack.perform(step, progress)).await?;
    }
    steps::print_line(&format!("\nup in {}", reporter.elapsed()));
    if let Some(namespaces) = &stack.namespaces {
        steps::print_line(&build_final_message(layout, namespaces));
    }
    Ok(())
}

/// Results that steps pass to later steps.
struct Stack<'a> {
    layout: &'a Layout,
    store: HostStore,
    profile: Profile,
    releases: Releases,
    metrics_server: bool,
    network: Option<Network>,
    /// The first node, followed by the added nodes.
    nodes: Vec<Node>,
    /// Namespaces of the demo cluster, as kubectl printed them.
    namespaces: Option<String>,
}

impl Stack<'_> {
    /// Runs one step and returns a note on what it did.
    async fn perform(&mut self, step: Step, progress: Progress) -> Result<String> {
        match step {
            Step::Prerequisites => {
                debian::check_prerequisites()?;
                self.store.record_choice(self.layout)?;
                kernel::prepare()
            }
            Step::Packages => Ok(match debian::install().await?.join(" ") {
                nothing if nothing.is_empty() => "all are installed".to_owned(),
                packages => packages,
            }),
            Step::Binaries => self.make_binaries(&progress).await,
            Step::Workspace => {
                let changed = rust::make(self.layout, self.profile).await?;
                Ok(format!("{changed} of {} changed", rust::BINARIES.len()))
            }
            Step::Network => self.create_network().await,
            Step::Credentials => {
                let made = credentials::apply(self.layout, self.network()?)?;
                for node in self.added() {
                    host_pki::add_node(self.layout, self.network()?, node).context("issuing a node's certificate")?;
                }
                Ok(if made { "created" } else { "unchanged" }.to_owned())
            }
            Step::Supervisor => self.start_supervisor().await,
            Step::Nats => self.run(self.services()?.nats()?).await,
            Step::HostStore => self.run(self.services()?.store(self.store)?).await,
            Step::HostApi => self.start_control_plane(&progress).await,
            Step::Containerd => {
                for node in &self.nodes {
                    nodes::run(node, self.services_of(node)?.containerd()?).await?;
                }
                Ok(String::new())
            }
            Step::Images => self.load_images().await,
            Step::Node => self.start_node(&progress).await,
            Step::Dns => {
                let manifest = manifests::build_coredns(self.network()?);
                self.deploy(manifest, "kube-system", "coredns").await
            }
            Step::CertManager => self.start_cert_manager().await,
            Step::Yoke => self.install_yoke(&progress).await,
            Step::Demo => {
                let created = demo::create(self.layout).await?;
                self.namespaces = Some(created.namespaces);
                let woken = if created.woken { "woken from sleep, " } else { "" };
                Ok(format!("{woken}Ready after {:.1}s", created.took.as_secs_f64()))
            }
        }
    }

    fn network(&self) -> Result<&Network> {
        self.network.as_ref().context("this step needs the step `network`")
    }

    fn first(&self) -> Result<&Node> {
        self.nodes.first().context("this step needs the step `network`")
    }

    fn added(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().skip(1)
    }

    fn services(&self) -> Result<Services<'_>> {
        self.services_of(self.first()?)
    }

    fn services_of<'a>(&'a self, node: &'a Node) -> Result<Services<'a>> {
        Ok(Services {
            layout: self.layout,
            network: self.network()?,
            node,
        })
    }

    fn kubectl(&self) -> Kubectl<'_> {
        Kubectl::new(self.layout)
    }

    /// Chooses the network, and creates the namespaces of all nodes.
    async fn create_network(&mut self) -> Result<String> {
        let network = Network::choose(self.layout).await?;
        let mut nodes = vec![Node::new(self.layout, &network.plan, FIRST_NODE)];
        nodes.extend(Node::added(self.layout, &network.plan));
        for node in &nodes {
            network.apply(node).await?;
        }
        environment::write(self.layout, &network)?;
        let notes = nodes
            .iter()
            .map(|node| format!("{} {} pods {}", node.name, node.plan.ip, node.plan.pods));
        let note = notes.collect::<Vec<_>>().join(", ");
        (self.network, self.nodes) = (Some(network), nodes);
        Ok(note)
    }

    async fn make_binaries(&self, progress: &Progress) -> Result<String> {
        let mut built = Vec::new();
        let metrics_server = self.metrics_server.then_some(&go::METRICS_SERVER);
        let others = self.releases.recipes().chain(metrics_server);
        for recipe in go::RECIPES.iter().chain(others) {
            progress.at(recipe.module);
            if recipe.make(self.layout).await? == Made::Built {
                built.push(recipe.module);
            }
        }
        progress.at("envoy");
        if recipes::envoy(self.layout).await.context("downloading Envoy")? == Made::Built {
            built.push("envoy");
        }
        let ctr = find_program("ctr").context("ctr is not installed")?;
        link(&ctr, &self.layout.binary("ctr"))?;
        Ok(if built.is_empty() {
            "all from the cache".to_owned()
        } else {
            format!("built {}", built.join(" "))
        })
    }

    async fn start_supervisor(&self) -> Result<String> {
        let changed = rust::install_self(self.layout)?;
        for node in &self.nodes {
            nodes::start_supervisor(node, self.network()?, changed).await?;
        }
        Ok(String::new())
    }

    /// Starts a service of the first node, and waits until it is healthy.
    async fn run(&self, service: Service) -> Result<String> {
        nodes::run(self.first()?, service).await
    }

    async fn start_control_plane(&self, progress: &Progress) -> Result<String> {
        let services = self.services()?;
        progress.at("kube-apiserver");
        self.run(services.api_server()?).await?;
        progress.at("kube-controller-manager, kube-scheduler");
        let (manager, scheduler) = (services.controller_manager()?, services.scheduler()?);
        client::run_service(self.layout, manager.clone()).await?;
        client::run_service(self.layout, scheduler.clone()).await?;
        for service in [manager, scheduler] {
            client::wait_healthy(self.layout, &service.name, PROCESS_LIMIT).await?;
        }
        Ok(String::new())
    }

    async fn load_images(&self) -> Result<String> {
        let loaded = Images::open(self.layout).load_third_party(&self.releases).await?;
        self.mirror_images().await?;
        Ok(format!("{loaded} loaded"))
    }

    async fn start_node(&self, progress: &Progress) -> Result<String> {
        self.kubectl().apply(manifests::build_kube_router()).await?;
        let mut notes = Vec::new();
        for node in &self.nodes {
            let note = nodes::start(self.layout, self.network()?, node, progress.clone()).await?;
            notes.extend(Some(note).filter(|note| !note.is_empty()));
        }
        Ok(notes.join(", "))
    }

    /// Copies the first node's images to the other nodes.
    async fn mirror_images(&self) -> Result<()> {
        for node in self.added() {
            images::mirror(self.layout, &node.layout).await?;
        }
        Ok(())
    }

    async fn start_cert_manager(&self) -> Result<String> {
        let crds = go::module_dir(self.layout, "cert-manager", "github.com/cert-manager/cert-manager").await?;
        let mut manifest = String::new();
        let crds = crds.join("deploy/crds");
        for entry in fs::read_dir(&crds)
            .with_context(|| format!("reading {}", crds.display()))?
            .flatten()
        {
            let path = entry.path();
            let name = entry.file_name();
            if name.to_string_lossy().starts_with("cert-manager.io_") {
                manifest.push_str(&fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?);
                manifest.push_str("\n---\n");
            }
        }
        let kubectl = self.kubectl();
        kubectl
            .apply(manifest)
            .await
            .context("installing cert-manager's CRDs")?;
        let established = [
            "wait",
            "--for=condition=Established",
            "crd/certificates.cert-manager.io",
            "--timeout=2s",
        ];
        kubectl
            .until("cert-manager's CRDs to be served", &established, PROCESS_LIMIT)
            .await?;
        self.deploy(manifests::build_cert_manager(), "cert-manager", "cert-manager")
            .await
    }

    async fn install_yoke(&self, progress: &Progress) -> Result<String> {
        progress.at("images");
        let (names, loaded) = Images::open(self.layout).load_own().await?;
        self.mirror_images().await?;
        progress.at("chart");
        yoke::install(self.layout, self.network()?, &names, &self.releases).await?;
        let pruned = images::prune(self.layout).await.context("removing old images")?;
        self.mirror_images().await?;
        Ok(format!("{loaded} images changed, {pruned} old ones removed"))
    }

    async fn deploy(&self, manifest: String, namespace: &str, deployment: &str) -> Result<String> {
        let kubectl = self.kubectl();
        kubectl.apply(manifest).await?;
        kubectl.wait_rollout(namespace, deployment, ROLLOUT_LIMIT).await?;
        Ok(String::new())
    }
}

/// Final message with three things to paste.
fn build_final_message(layout: &Layout, namespaces: &str) -> String {
    let kubeconfig = layout.demo_kubeconfig();
    let bin = layout.bin();
    format!(
        "\n1. The kubeconfig of the tenant cluster `demo`:\n\n     {kubeconfig}\n\n\
         2. Its namespaces, through the ingress:\n\n     {bin}/kubectl --kubeconfig {kubeconfig} get namespaces\n\n{output}\n\n\
         3. Next: a tenant and a cluster of your own:\n\n     \
         source {env}\n     export KUBECONFIG={host}\n     \
         kubectl yoke create tenant first\n     kubectl yoke create cluster one -n first --wait\n",
        kubeconfig = kubeconfig.display(),
        bin = bin.display(),
        output = namespaces
            .trim_end()
            .lines()
            .map(|line| format!("     {line}"))
            .collect::<Vec<_>>()
            .join("\n"),
        env = layout.env_file().display(),
        host = layout.host_kubeconfig().display(),
    )
}
