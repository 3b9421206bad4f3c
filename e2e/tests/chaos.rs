//! Random losses under clients that write down what was acknowledged: `make chaos`.
//!
//! ```text
//!  faults ─▶ control plane, Envoy, ingress-xds, operator, NATS     one every few seconds
//!  append ─▶ objects one after the other ┐
//!  count ──▶ one object, read and changed ├─▶ afterwards: every acknowledged write is there, in order, none twice
//!  probe ──▶ answers, and when            ┘   the outages of each kind of fault are printed
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::{Client, ResourceExt as _};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use yoke_e2e::stack::client;
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::victim::{cut_off, signal};
use yoke_e2e::{Expected, Stack, TenantFixture, Victim, wait_for};

const SECONDS: u64 = 600;
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
const PROBE_EVERY: Duration = Duration::from_millis(50);
const COUNTER: &str = "counter";
const VALUE: &str = "value";

const ALL: [Expected; 1] = [Expected {
    says: "",
    because: "everything is killed, stopped and cut off",
}];

/// What happens to whom.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(&'static str),
    Stop(&'static str),
    CutOff,
    DeletePod,
    KillSystem(&'static str, &'static str),
    KillSupervised(&'static str),
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

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Kill(what) | Self::KillSystem(_, what) | Self::KillSupervised(what) => write!(f, "kill -9 {what}"),
            Self::Stop(what) => write!(f, "SIGSTOP {what}"),
            Self::CutOff => f.write_str("network cut"),
            Self::DeletePod => f.write_str("pod deleted at once"),
        }
    }
}

/// The cluster that suffers.
struct Target {
    stack: Stack,
    hosted: String,
}

impl Target {
    fn container(&self, name: &'static str) -> Victim {
        Victim::Container(self.hosted.clone(), "yoke.drzzl.io/component=control-plane", name)
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
                let delete = [
                    "delete",
                    "pod",
                    "control-plane-0",
                    "-n",
                    &self.hosted,
                    "--grace-period=0",
                    "--force",
                ];
                self.stack.host_kubectl(&delete).await?.ok().map(drop)
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

fn config_map(name: &str, value: u64) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(VALUE.to_owned(), value.to_string())].into()),
        ..ConfigMap::default()
    }
}

/// The answer, if one came in time and says yes or no: what else came, or did not, leaves it open.
async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Option<Result<T, u16>> {
    match tokio::time::timeout(REQUEST_LIMIT, request).await {
        Ok(Ok(done)) => Some(Ok(done)),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Some(Err(status.code)),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Makes one object after the other. How many there must be, each with its number.
async fn append(client: Client, stop: Arc<AtomicBool>) -> Result<u64> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let object = config_map(&format!("chaos-{number:06}"), number);
        match answer(api.create(&PostParams::default(), &object)).await {
            // 409: an earlier try was done without an answer.
            Some(Ok(_) | Err(409)) => number += 1,
            Some(Err(code)) => bail!("creating object {number} was answered {code}"),
            None => tokio::time::sleep(PROBE_EVERY).await,
        }
    }
    Ok(number)
}

/// Raises one object's number by one, again and again. Nobody else does.
async fn count(client: Client, stop: Arc<AtomicBool>) -> Result<u64> {
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut reached = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(Ok(mut object)) = answer(api.get(COUNTER)).await else {
            tokio::time::sleep(PROBE_EVERY).await;
            continue;
        };
        let found = read(&object)?;
        // What was acknowledged is there; what was left open was done once, or not at all.
        ensure!(
            found == reached || found == reached + 1,
            "the counter is at {found} where {reached} was acknowledged"
        );
        reached = found;
        object.data = config_map(COUNTER, found + 1).data;
        match answer(api.replace(COUNTER, &PostParams::default(), &object)).await {
            Some(Ok(_)) => reached = found + 1,
            Some(Err(404)) => bail!("the counter is gone"),
            Some(Err(_)) | None => {}
        }
    }
    Ok(reached)
}

fn read(object: &ConfigMap) -> Result<u64> {
    let value = object.data.as_ref().and_then(|data| data.get(VALUE));
    Ok(value.context("an object without its value")?.parse()?)
}

/// When the API answered.
async fn probe(kubeconfig: PathBuf, stop: Arc<AtomicBool>) -> Result<Vec<Instant>> {
    let api: Api<Namespace> = Api::all(client(&kubeconfig).await?);
    let mut answers = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(Ok(_)) = answer(api.get("default")).await {
            answers.push(Instant::now());
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
    Ok(answers)
}

/// Looks whether everything is there that was acknowledged, in the order in which it was.
async fn check(kubeconfig: &Path, appended: u64, counted: u64) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, "default");
    let objects = api.list(&ListParams::default()).await?.items;
    let mut stored = BTreeMap::new();
    for object in objects.iter().filter(|object| object.name_any().starts_with("chaos-")) {
        let version: u64 = object.resource_version().context("no resourceVersion")?.parse()?;
        stored.insert(version, read(object)?);
    }
    let numbers: Vec<u64> = stored.into_values().collect();
    // The last one may have been made without an answer.
    let there = numbers.len() as u64;
    ensure!(
        there == appended || there == appended + 1,
        "{there} objects are there where {appended} were acknowledged"
    );
    ensure!(
        numbers.iter().copied().eq(0..there),
        "objects were made in another order"
    );
    let found = read(&api.get(COUNTER).await?)?;
    ensure!(
        found == counted || found == counted + 1,
        "the counter is at {found} where {counted} was acknowledged"
    );
    Ok(())
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
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let target = Target {
        stack: stack.clone(),
        hosted: hosted_namespace(&cluster)?,
    };
    let api: Api<ConfigMap> = Api::namespaced(client(&kubeconfig).await?, "default");
    api.create(&PostParams::default(), &config_map(COUNTER, 0)).await?;

    let stop = Arc::new(AtomicBool::new(false));
    let appending = tokio::spawn(append(client(&kubeconfig).await?, stop.clone()));
    let counting = tokio::spawn(count(client(&kubeconfig).await?, stop.clone()));
    let probing = tokio::spawn(probe(kubeconfig.clone(), stop.clone()));
    let end = Instant::now() + length;
    let mut faults = Vec::new();
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(random.random_range(2_000..12_000))).await;
        let fault = FAULTS[random.random_range(0..FAULTS.len())];
        let pause = Duration::from_secs(random.random_range(1..=30));
        let begun = Instant::now();
        match target.suffer(fault, pause).await {
            Ok(()) => faults.push((begun, fault)),
            // Who was hit just before is not there yet.
            Err(error) => println!("{fault}: {error:#}"),
        }
    }
    wait_for("the API to answer again", READY_LIMIT, || async {
        let get = ["get", "namespaces", "--request-timeout=3s", "-o", "name"];
        stack.kubectl(&kubeconfig, &get).await?.ok().map(Some)
    })
    .await?;
    stop.store(true, Ordering::Relaxed);
    let (appended, counted, answers) = tokio::try_join!(appending, counting, probing)?;
    println!("{}", show_outages(&faults, &answers?));
    let (appended, counted) = (appended?, counted?);
    check(&kubeconfig, appended, counted).await?;
    println!("{appended} objects and {counted} changes of one were acknowledged: all are there, in order, none twice");
    tenant.remove().await
}
