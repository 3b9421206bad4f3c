//! A machine of the host is lost with a control plane on it, and comes back from the dead: the cluster goes on elsewhere, with
//! all that was acknowledged, and the former control plane does no harm.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use yoke_e2e::acknowledged::{Clients, name_of};
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::host_node::place_of;
use yoke_e2e::stack::client;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::victim::signal;
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, network, wait_for, wait_until};

/// Generous: how long it takes is printed. Without the operator, Kubernetes takes more than five minutes.
const BACK_LIMIT: Duration = Duration::from_secs(60);
/// A store that was cut off connects again, and hears of its successor.
const FENCE_LIMIT: Duration = Duration::from_secs(60);
const FENCED: &str = "fenced by the writer of epoch";
/// Writes before, and after, that show that all goes on.
const WRITES: u64 = 20;

const EXPECTED: [Expected; 1] = [Expected {
    says: "",
    because: "a node of the host is lost",
}];

/// The cluster, and where it runs.
struct Moved {
    stack: Stack,
    node: HostNode,
    tenant: TenantFixture,
    hosted: String,
    kubeconfig: PathBuf,
    pod: Pod,
}

impl Moved {
    /// A Cluster whose control plane is on the second node.
    async fn place(test: &str) -> Result<Self> {
        let stack = Stack::connect().await?;
        let node = HostNode::second(&stack).await?;
        let tenant = TenantFixture::create(&stack, test).await?.expecting(&EXPECTED);
        let (hosted, kubeconfig, pod) = node.ready_cluster(&tenant, "a").await?;
        Ok(Self {
            stack,
            node,
            tenant,
            hosted,
            kubeconfig,
            pod,
        })
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.stack.host.clone(), &self.hosted);
        Ok(pods.list(&ListParams::default()).await?.items)
    }

    /// Waits until another pod answers, on another node.
    async fn wait_elsewhere(&self) -> Result<()> {
        let api = client(&self.kubeconfig).await?;
        wait_until("the API to answer from elsewhere", BACK_LIMIT, async || {
            let pods = self.pods().await?;
            let seen: Vec<_> = pods.iter().map(|pod| (&pod.metadata.uid, place_of(pod))).collect();
            let elsewhere =
                |pod: &Pod| pod.metadata.uid != self.pod.metadata.uid && place_of(pod) != Some(&self.node.name);
            ensure!(pods.len() == 1 && pods.iter().all(elsewhere), "{seen:?}");
            let answer = tokio::time::timeout(Duration::from_secs(2), api.apiserver_version()).await;
            answer.context("no answer")??;
            Ok(true)
        })
        .await
    }

    /// What the former store has said, as long as this is held: the kubelet removes the file.
    fn open_log(&self) -> Result<std::fs::File> {
        let uid = self.pod.metadata.uid.as_deref().context("a pod without a uid")?;
        let folder = format!("log/pods/{}_control-plane-0_{uid}/kine-nats/0.log", self.hosted);
        let path = self.node.folder().join(folder);
        std::fs::File::open(&path).with_context(|| format!("opening {}", path.display()))
    }

    /// Waits until nothing of the former pod runs any more.
    async fn wait_gone(&self, former: u32) -> Result<()> {
        wait_until("the former control plane to end", READY_LIMIT, async || {
            Ok(!PathBuf::from(format!("/proc/{former}")).exists())
        })
        .await?;
        let pods = self.pods().await?;
        ensure!(pods.len() == 1, "{} pods", pods.len());
        Ok(())
    }
}

fn read_all(file: &mut std::fs::File) -> Result<String> {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text).context("reading a log")?;
    Ok(text)
}

/// Waits until the clients have got so far.
async fn wait_appended(watch: &HeldWatch, number: u64) -> Result<()> {
    watch.wait_for(&name_of(number), READY_LIMIT).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_comes_back_from_the_dead_does_no_harm() -> Result<()> {
    let moved = Moved::place("node-loss").await?;
    let done = lose_and_find(&moved).await;
    // Whatever came of it: others use the node, too.
    moved.node.mend().await?;
    println!("{}", done?);
    moved.tenant.remove().await
}

/// What came of it.
async fn lose_and_find(moved: &Moved) -> Result<String> {
    let store = network::container_pid(&moved.stack, &moved.pod, "kine-nats").await?;
    let api_server = network::container_pid(&moved.stack, &moved.pod, "kube-apiserver").await?;
    let mut log = moved.open_log()?;
    let watch = HeldWatch::begin(client(&moved.kubeconfig).await?).await?;
    let clients = Clients::begin(&moved.kubeconfig).await?;
    wait_appended(&watch, WRITES).await?;

    moved.node.cut().await?;
    let cut = Instant::now();
    moved.wait_elsewhere().await?;
    let elsewhere = cut.elapsed();

    // The former store is to be fenced by its log, and not by a kubelet that was quicker.
    let kubelet = moved.node.kubelet()?;
    signal(kubelet, "STOP").await?;
    moved.node.mend().await?;
    let mended = Instant::now();
    let fenced = wait_for("the former store to be fenced", FENCE_LIMIT, async || {
        let said = read_all(&mut log.try_clone()?)?;
        let last: Vec<_> = said.lines().rev().take(4).collect();
        ensure!(said.contains(FENCED), "it says {last:?}");
        Ok(Some(mended.elapsed()))
    })
    .await;
    signal(kubelet, "CONT").await?;
    let fenced = fenced?;
    moved.wait_gone(store).await?;
    moved.wait_gone(api_server).await?;
    let ended = mended.elapsed();
    ensure!(read_all(&mut log)?.contains(FENCED), "its log is another one");

    let record = clients.end().await?;
    wait_appended(&watch, record.appended - 1).await?;
    let (gap, lists) = watch.interruptions();
    watch.check(&record)?;
    Ok(format!(
        "The API answered from another node {elsewhere:.1?} after the cut. The node was back: the former store found that it was \
         replaced after {fenced:.1?}, and had ended after {ended:.1?}.\n\
         {} objects and {} changes of one, all as acknowledged; the longest outage {:.1?}. The watch told all of them once, in \
         order, paused {gap:.1?} and listed anew {lists} times.",
        record.appended,
        record.counted,
        record.longest_outage()
    ))
}
