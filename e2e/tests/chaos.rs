//! Random losses under clients that write down what was acknowledged: `make chaos`.
//!
//! ```text
//!  faults ─▶ control plane, Envoy, ingress-xds, operator, NATS     one every few seconds
//!  faults ─▶ the second node of the host, where there is one       all of it killed, or cut off
//!  clients ▶ what was acknowledged (`acknowledged.rs`)             afterwards all of it is there
//!                                                                  the outages of each kind of fault are printed
//! ```

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use yoke_e2e::acknowledged::{Clients, PROBE_EVERY};
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::victim::{cut_off, signal};
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, Victim, wait_for};

const SECONDS: u64 = 600;

const ALL: [Expected; 1] = [Expected {
    says: "",
    because: "everything is killed, stopped and cut off",
}];

/// What happens to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill(&'static str),
    Stop(&'static str),
    CutOff,
    DeletePod,
    KillSystem(&'static str, &'static str),
    KillSupervised(&'static str),
    KillNode,
    CutNode,
}

const FAULTS: [Fault; 11] = [
    Fault::Kill("kube-apiserver"),
    Fault::Kill("kine-nats"),
    Fault::Kill("kube-controller-manager"),
    Fault::Stop("kube-apiserver"),
    Fault::Stop("kine-nats"),
    Fault::CutOff,
    Fault::DeletePod,
    Fault::KillSystem("app.kubernetes.io/name=envoy", "envoy"),
    Fault::KillSystem("app.kubernetes.io/name=yoke-ingress-xds", "ingress-xds"),
    Fault::KillSystem("app.kubernetes.io/name=yoke-operator", "operator"),
    Fault::KillSupervised("nats-server"),
];

/// Where the host has a second node.
const NODE_FAULTS: [Fault; 2] = [Fault::KillNode, Fault::CutNode];

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kill(what) | Self::KillSystem(_, what) | Self::KillSupervised(what) => write!(f, "kill -9 {what}"),
            Self::Stop(what) => write!(f, "SIGSTOP {what}"),
            Self::CutOff => f.write_str("network cut"),
            Self::DeletePod => f.write_str("pod deleted at once"),
            Self::KillNode => f.write_str("node lost, all killed"),
            Self::CutNode => f.write_str("node lost, cut off"),
        }
    }
}

/// The cluster that suffers.
struct Target {
    stack: Stack,
    hosted: String,
    second: Option<HostNode>,
}

impl Target {
    fn container(&self, name: &'static str) -> Victim {
        Victim::Container(self.hosted.clone(), "yoke.drzzl.io/component=control-plane", name)
    }

    fn second(&self) -> Result<&HostNode> {
        self.second.as_ref().context("the host has one node")
    }

    /// Puts the next pod on the second node, if there is one, or anywhere.
    async fn hold_to_second(&self, held: bool) -> Result<()> {
        match &self.second {
            Some(second) => second.take_all(held).await,
            None => Ok(()),
        }
    }

    /// One fault after the other, until the end. Those that were done, and what kept others from being done.
    async fn suffer_all(&self, random: &mut StdRng, end: Instant) -> Result<(Vec<(Instant, Fault)>, Vec<String>)> {
        let mut kinds = FAULTS.to_vec();
        if self.second.is_some() {
            kinds.extend(NODE_FAULTS);
        }
        let (mut faults, mut failures) = (Vec::new(), Vec::new());
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(random.random_range(2_000..12_000))).await;
            let fault = kinds[random.random_range(0..kinds.len())];
            let pause = Duration::from_secs(random.random_range(1..=30));
            let mut due = vec![fault];
            if NODE_FAULTS.contains(&fault) {
                self.hold_to_second(false).await?;
                // Back to where it can be lost again.
                due.push(Fault::DeletePod);
            }
            for fault in due {
                let begun = Instant::now();
                match self.suffer(fault, pause).await {
                    Ok(()) => faults.push((begun, fault)),
                    // Who was hit just before is not there yet.
                    Err(error) => failures.push(format!("{fault}: {error:#}")),
                }
                self.hold_to_second(true).await?;
            }
        }
        Ok((faults, failures))
    }

    /// Does it, and undoes it after `pause` where it does not end by itself.
    async fn suffer(&self, fault: Fault, pause: Duration) -> Result<()> {
        match fault {
            Fault::Kill(name) => signal(self.container(name).pid(&self.stack).await?, "KILL").await,
            Fault::KillSystem(selector, name) => {
                let victim = Victim::Container("yoke-system".to_owned(), selector, name);
                signal(victim.pid(&self.stack).await?, "KILL").await
            }
            Fault::KillSupervised(name) => signal(self.stack.supervised_pid(name).await?, "KILL").await,
            Fault::DeletePod => {
                let selector = "yoke.drzzl.io/component=control-plane";
                let delete = [
                    "delete",
                    "pod",
                    "-l",
                    selector,
                    "-n",
                    &self.hosted,
                    "--grace-period=0",
                    "--force",
                ];
                self.stack.host_kubectl(&delete).await?.ok().map(drop)
            }
            Fault::KillNode => {
                self.second()?.kill().await?;
                tokio::time::sleep(pause).await;
                self.second()?.start().await
            }
            Fault::CutNode => {
                self.second()?.cut().await?;
                tokio::time::sleep(pause).await;
                self.second()?.mend().await
            }
            Fault::Stop(name) => {
                let pid = self.container(name).pid(&self.stack).await?;
                signal(pid, "STOP").await?;
                tokio::time::sleep(pause).await;
                // Its liveness probe may have ended it.
                let _ = signal(pid, "CONT").await;
                Ok(())
            }
            Fault::CutOff => {
                let pid = self.container("kube-apiserver").pid(&self.stack).await?;
                cut_off(pid, true).await?;
                tokio::time::sleep(pause).await;
                let _ = cut_off(pid, false).await;
                Ok(())
            }
        }
    }
}

/// The longest time without an answer of each kind of fault: the last that came before its end.
fn show_outages(faults: &[(Instant, Fault)], answers: &[Instant]) -> String {
    let mut outages: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for (_, fault) in faults {
        outages.entry(fault.to_string()).or_default();
    }
    for pair in answers.windows(2) {
        let gap = pair[1] - pair[0];
        let last = faults.iter().rev().find(|(begun, _)| *begun < pair[1]);
        if let Some((_, fault)) = last.filter(|_| gap > PROBE_EVERY * 4) {
            outages.entry(fault.to_string()).or_default().push(gap);
        }
    }
    let mut lines = vec![format!("{:<28} {:>6} {:>12}", "fault", "times", "longest")];
    for (name, gaps) in &outages {
        let times = faults.iter().filter(|(_, fault)| fault.to_string() == *name).count();
        let longest = gaps.iter().max().copied().unwrap_or_default();
        lines.push(format!("{name:<28} {times:>6} {longest:>12.1?}"));
    }
    let longest = outages.values().flatten().max().copied().unwrap_or_default();
    lines.push(format!("the longest outage: {longest:.1?}"));
    lines.join("\n")
}

fn number_from(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) => text.parse().with_context(|| format!("{variable} is {text:?}")),
        Err(_) => Ok(default),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost() -> Result<()> {
    let length = Duration::from_secs(number_from("CHAOS_SECONDS", SECONDS)?);
    let seed = number_from("CHAOS_SEED", u64::from(std::process::id()))?;
    println!("CHAOS_SEED={seed}, {length:?}");
    let mut random = StdRng::seed_from_u64(seed);
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "chaos").await?.expecting(&ALL);
    let mut target = Target {
        stack: stack.clone(),
        hosted: String::new(),
        second: HostNode::find(&stack),
    };
    println!(
        "the second node of the host is {}",
        if target.second.is_some() { "there" } else { "not there" }
    );
    target.hold_to_second(true).await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    target.hosted = hosted_namespace(&cluster)?;
    let clients = Clients::begin(&kubeconfig).await?;
    let suffered = target.suffer_all(&mut random, Instant::now() + length).await;
    if let Some(second) = &target.second {
        second.start().await?;
    }
    target.hold_to_second(false).await?;
    let (faults, failures) = suffered?;
    for failure in failures {
        println!("{failure}");
    }
    wait_for("the API to answer again", READY_LIMIT, || async {
        let get = ["get", "namespaces", "--request-timeout=3s", "-o", "name"];
        stack.kubectl(&kubeconfig, &get).await?.ok().map(Some)
    })
    .await?;
    let record = clients.end().await?;
    println!("{}", show_outages(&faults, &record.answers));
    println!(
        "{} objects and {} changes of one were acknowledged: all are there, in order, none twice",
        record.appended, record.counted
    );
    tenant.remove().await
}
