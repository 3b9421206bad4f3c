//! Random faults under clients that record what was acknowledged: `make chaos`.
//!
//! ```text
//!  faults ─▶ control plane, Envoy, ingress-xds, operator, NATS    one every few seconds
//!  faults ─▶ the second node of the host, with a control plane    all of it killed, or disconnected
//!  watch ──▶ created objects (`held_watch.rs`)                    every one was delivered, once
//!  clients ▶ acknowledged writes (`acknowledged.rs`)              every one is present at the end
//!                                                                 the outages of each kind of fault are printed
//! ```
//!
//! All kinds of faults happen once in random order, then again. A fault that is not possible yet is
//! tried again later.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use yoke_e2e::acknowledged::{Clients, PROBE_EVERY, Record};
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::host_node::{is_ready, node_of};
use yoke_e2e::stack::client;
use yoke_e2e::tenant::READY_LIMIT;
use yoke_e2e::victim::{PodNetwork, signal};
use yoke_e2e::{Expected, HostNode, Stack, TenantFixture, Victim, network, wait_for};

const SECONDS: u64 = 600;
/// At least one fault is required per interval of this length. Most take less than half of it,
/// including the pause before. The longest takes three times as much: wait for a node, kill it and
/// start it again.
const SECONDS_EACH: u64 = 20;
/// Time for which a process is stopped.
const STOP: Duration = Duration::from_secs(30);
/// Timeout until a control plane is ready on the node that will be lost.
const BACK_LIMIT: Duration = Duration::from_secs(60);
/// Number of clients that append concurrently.
const APPENDERS: usize = 4;
const CONTROL_PLANE: &str = "yoke.drzzl.io/component=control-plane";

const ALL: [Expected; 1] = [Expected {
    says: "",
    because: "everything is killed, stopped and disconnected",
}];

/// A fault and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill(&'static str),
    Stop(&'static str),
    Disconnect,
    DeletePod,
    KillSystem(&'static str, &'static str),
    KillSupervised(&'static str),
    KillNode,
    DisconnectNode,
}

const FAULTS: [Fault; 13] = [
    Fault::Kill("kube-apiserver"),
    Fault::Kill("kine-nats"),
    Fault::Kill("kube-controller-manager"),
    Fault::Stop("kube-apiserver"),
    Fault::Stop("kine-nats"),
    Fault::Disconnect,
    Fault::DeletePod,
    Fault::KillSystem("app.kubernetes.io/name=envoy", "envoy"),
    Fault::KillSystem("app.kubernetes.io/name=yoke-ingress-xds", "ingress-xds"),
    Fault::KillSystem("app.kubernetes.io/name=yoke-operator", "operator"),
    Fault::KillSupervised("nats-server"),
    Fault::KillNode,
    Fault::DisconnectNode,
];

/// Ends a fault that does not end by itself.
enum Undo {
    Nothing,
    Continue(u32),
    Reconnect(PodNetwork),
    RestartNode,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kill(what) | Self::KillSystem(_, what) | Self::KillSupervised(what) => write!(f, "kill -9 {what}"),
            Self::Stop(what) => write!(f, "SIGSTOP {what}"),
            Self::Disconnect => f.write_str("network cut"),
            Self::DeletePod => f.write_str("pod deleted at once"),
            Self::KillNode => f.write_str("node lost, all killed"),
            Self::DisconnectNode => f.write_str("node lost, cut off"),
        }
    }
}

/// The cluster under test.
struct Target {
    stack: Stack,
    hosted: String,
    second: HostNode,
}

impl Target {
    fn container(&self, name: &'static str) -> Victim {
        Victim::Container(self.hosted.clone(), CONTROL_PLANE, name)
    }

    /// Injects one fault after the other until `end`. Returns the injected faults, and why others
    /// failed.
    async fn inject_faults(&self, random: &mut StdRng, end: Instant) -> Result<(Vec<(Instant, Fault)>, Vec<String>)> {
        let (mut due, mut faults, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        while Instant::now() < end {
            if due.is_empty() {
                due.extend(FAULTS);
                due.shuffle(random);
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(1_000..5_000))).await;
            let pause = Duration::from_secs(random.random_range(1..=30));
            let Some(fault) = due.pop() else { continue };
            let mut now = vec![fault];
            if matches!(fault, Fault::KillNode | Fault::DisconnectNode) {
                // Moves the control plane back to the node that will be lost.
                now.push(Fault::DeletePod);
            }
            for fault in now {
                match self.inject(fault).await {
                    Ok(undo) => {
                        faults.push((Instant::now(), fault));
                        self.undo(undo, pause)
                            .await
                            .with_context(|| format!("ending: {fault}"))?;
                    }
                    // The target of an earlier fault may not have recovered yet.
                    Err(error) => {
                        failures.push(format!("{fault}: {error:#}"));
                        due.insert(0, fault);
                    }
                }
                self.second.take_all_new_pods(true).await?;
            }
        }
        Ok((faults, failures))
    }

    /// Injects a fault. Returns how to end it.
    async fn inject(&self, fault: Fault) -> Result<Undo> {
        match fault {
            Fault::Kill(name) => signal(self.container(name).pid(&self.stack).await?, "KILL").await?,
            Fault::KillSystem(selector, name) => {
                let victim = Victim::Container("yoke-system".to_owned(), selector, name);
                signal(victim.pid(&self.stack).await?, "KILL").await?;
            }
            Fault::KillSupervised(name) => signal(self.stack.supervised_pid(name).await?, "KILL").await?,
            Fault::DeletePod => self.delete_pod().await?,
            Fault::KillNode => {
                self.wait_on_second().await?;
                self.second.take_all_new_pods(false).await?;
                self.second.kill().await?;
                return Ok(Undo::RestartNode);
            }
            Fault::DisconnectNode => {
                self.wait_on_second().await?;
                self.second.take_all_new_pods(false).await?;
                self.second.disconnect().await?;
                return Ok(Undo::RestartNode);
            }
            Fault::Stop(name) => {
                let pid = self.container(name).pid(&self.stack).await?;
                signal(pid, "STOP").await?;
                return Ok(Undo::Continue(pid));
            }
            Fault::Disconnect => {
                let network = PodNetwork::of(self.container("kube-apiserver").pid(&self.stack).await?)?;
                network.disconnect().await?;
                return Ok(Undo::Reconnect(network));
            }
        }
        Ok(Undo::Nothing)
    }

    /// Ends a fault after `pause`, unless it ends by itself. A failure here would spoil all later
    /// faults.
    async fn undo(&self, undo: Undo, pause: Duration) -> Result<()> {
        match undo {
            Undo::Nothing => {}
            Undo::Continue(pid) => {
                tokio::time::sleep(STOP).await;
                // The liveness probe may have killed the process.
                let _ = signal(pid, "CONT").await;
            }
            Undo::Reconnect(network) => {
                tokio::time::sleep(pause).await;
                network.reconnect().await?;
            }
            Undo::RestartNode => {
                tokio::time::sleep(pause).await;
                self.second.reconnect().await?;
                self.second.start().await?;
            }
        }
        Ok(())
    }

    /// Waits until the control plane is ready on the second node.
    async fn wait_on_second(&self) -> Result<()> {
        wait_for(
            "the control plane to be ready on the second node",
            BACK_LIMIT,
            async || {
                let pod = network::pod(&self.stack, &self.hosted, CONTROL_PLANE).await?;
                let node = node_of(&pod);
                ensure!(node == Some(&self.second.name), "it is on {node:?}");
                Ok(is_ready(&pod).then_some(()))
            },
        )
        .await
    }

    async fn delete_pod(&self) -> Result<()> {
        let hosted = &self.hosted;
        let delete = [
            "delete",
            "pod",
            "-l",
            CONTROL_PLANE,
            "-n",
            hosted,
            "--grace-period=0",
            "--force",
        ];
        let deleted = self.stack.host_kubectl(&delete).await?.ok()?;
        ensure!(!deleted.is_empty(), "no pod was deleted");
        Ok(())
    }
}

/// Fails unless there were enough faults for the time, and each kind of fault if the time allows
/// all kinds.
fn require(faults: &[Fault], length: Duration) -> Result<()> {
    let least = usize::try_from(length.as_secs() / SECONDS_EACH)?;
    ensure!(
        faults.len() >= least,
        "{} faults in {length:?}, which has room for {least}",
        faults.len()
    );
    let missing = FAULTS.iter().filter(|kind| !faults.contains(kind));
    let missing: Vec<_> = missing.map(ToString::to_string).collect();
    ensure!(
        missing.is_empty() || least < FAULTS.len(),
        "kinds of faults that did not happen: {}",
        missing.join(", ")
    );
    Ok(())
}

/// A time without service, and the fault before the one that caused it.
#[derive(Clone, Copy, Debug, Default)]
struct Outage {
    length: Duration,
    before: Option<(Fault, Duration)>,
}

impl std::fmt::Display for Outage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>12.1?}", self.length)?;
        match self.before {
            Some((fault, ago)) => write!(f, " {:>34}", format!("{fault}, {:.0} s", ago.as_secs_f64())),
            None => write!(f, " {:>34}", "-"),
        }
    }
}

/// Table of the longest times without an answer and without an acknowledged change, for each kind
/// of fault. An outage belongs to the last fault before its end. The table also shows the fault
/// before that, whose effects may still have lasted.
fn show_outages(faults: &[(Instant, Fault)], record: &Record) -> String {
    let (answers, changes) = (
        find_longest(faults, &record.answers),
        find_longest(faults, &record.changes),
    );
    let mut lines = vec![format!(
        "{:<28} {:>6} {:>12} {:>34} {:>12} {:>34}",
        "fault", "times", "no answer", "and before it", "no change", "and before it"
    )];
    let names: BTreeSet<_> = faults.iter().map(|(_, fault)| fault.to_string()).collect();
    let longest = |of: &BTreeMap<String, Outage>, name: &str| of.get(name).copied().unwrap_or_default();
    for name in &names {
        let times = faults.iter().filter(|(_, fault)| fault.to_string() == *name).count();
        let (answer, change) = (longest(&answers, name), longest(&changes, name));
        lines.push(format!("{name:<28} {times:>6} {answer} {change}"));
    }
    let longest = |of: &BTreeMap<String, Outage>| of.values().map(|outage| outage.length).max().unwrap_or_default();
    lines.push(format!(
        "the longest outage: {:.1?} without an answer, {:.1?} without a change",
        longest(&answers),
        longest(&changes)
    ));
    lines.join("\n")
}

fn find_longest(faults: &[(Instant, Fault)], times: &[Instant]) -> BTreeMap<String, Outage> {
    let mut longest: BTreeMap<String, Outage> = BTreeMap::new();
    for pair in times.windows(2) {
        let length = pair[1] - pair[0];
        let count = faults.partition_point(|(started, _)| *started < pair[1]);
        let Some((&(started, fault), earlier)) = faults[..count].split_last() else {
            continue;
        };
        let known = longest.entry(fault.to_string()).or_default();
        if length > PROBE_EVERY * 4 && length > known.length {
            let before = earlier.last().map(|(time, fault)| (*fault, started - *time));
            *known = Outage { length, before };
        }
    }
    longest
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
    let second = HostNode::find(&stack).context(
        "the host has no second node: `make chaos` adds one, and so does `.dev/bin/yoke-dev host-node --number 2`",
    )?;
    second.start().await?;
    let tenant = TenantFixture::create(&stack, "chaos").await?.expecting(&ALL);
    let (hosted, kubeconfig, _) = second.ready_cluster(&tenant, "a").await?;
    let watch = HeldWatch::start(client(&kubeconfig).await?).await?;
    let clients = Clients::start(&kubeconfig, APPENDERS).await?;
    let target = Target {
        stack: stack.clone(),
        hosted,
        second: second.clone(),
    };
    second.take_all_new_pods(true).await?;
    let injected = target.inject_faults(&mut random, Instant::now() + length).await;
    // Restore the node whatever the result, because other tests use it too.
    second.reconnect().await?;
    second.start().await?;
    second.take_all_new_pods(false).await?;
    let (faults, failures) = injected?;
    for failure in failures {
        println!("{failure}");
    }
    wait_for("the API to answer again", READY_LIMIT, || async {
        let get = ["get", "namespaces", "--request-timeout=3s", "-o", "name"];
        stack.kubectl(&kubeconfig, &get).await?.ok().map(Some)
    })
    .await?;
    let record = clients.stop().await?;
    println!("{}", show_outages(&faults, &record));
    watch.wait_for_all(&record, READY_LIMIT).await?;
    let (gap, lists) = watch.interruptions();
    watch.check(&record)?;
    println!("A watch delivered all of them once, in order, paused {gap:.1?} and listed again {lists} times.");
    println!(
        "{} faults. {} objects of {APPENDERS} clients and {} changes of one were acknowledged: all exist, in order, none twice",
        faults.len(),
        record.objects(),
        record.counted.reached
    );
    require(&faults.iter().map(|(_, fault)| *fault).collect::<Vec<_>>(), length)?;
    tenant.remove().await
}

#[test]
fn missing_faults_are_reported() {
    let thrice = [FAULTS; 3].concat();
    let without_a_node: Vec<_> = thrice
        .iter()
        .filter(|fault| **fault != Fault::KillNode)
        .copied()
        .collect();
    for (rule, faults, seconds, met) in [
        ("each kind, and as many as fit", &thrice[..], 600, true),
        ("one kind is not there", &without_a_node, 600, false),
        ("each kind, and too few", &FAULTS, 600, false),
        ("one in a short look", &FAULTS[..1], 35, true),
        ("none in a short look", &[], 35, false),
        ("none where there is no room for one", &[], 15, true),
    ] {
        let required = require(faults, Duration::from_secs(seconds));
        assert_eq!(required.is_ok(), met, "{rule}: {required:?}");
    }
}
