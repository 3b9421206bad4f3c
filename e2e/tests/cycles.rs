//! A Cluster sleeps and wakes repeatedly, with a worker and with a watch client that does not count
//! as activity. Nothing is lost, and nothing leaks.
//!
//! ```text
//!  only the client with the watch is connected ─▶ it falls asleep by itself
//!
//!  an object is created ─▶ the watch delivers it ─▶ sleep=now ─▶ it is asleep, and stays so on watch requests
//!         ▲                                                                              │
//!         └──────────── CYCLES times ──────── kubectl sends a request, and it is Ready ◀─┘
//! ```

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde_json::json;
use yoke_api::cluster::{ClusterSpec, Konnectivity};
use yoke_api::labels::{SLEEP, SLEEP_NOW};
use yoke_api::sleep::{SleepSpec, WithWorkers};
use yoke_api::{Cluster, ConditionType, Reason};
use yoke_e2e::footprint::Footprint;
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::ssh::Key;
use yoke_e2e::stack::{client, client_called};
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, wait_for};

const CYCLES: usize = 200;
/// Cycles before the first count, so that one-time allocations and caches are included in it.
const WARM_UP: usize = 3;
const AGENT: &str = "held-watch/1";
/// Shortest allowed time of inactivity, and one that never passes in this test.
const SHORTEST: &str = "1m";
const NEVER: &str = "8h";
/// Time to check that it stays asleep: after it fell asleep by itself, in the first cycles, and in
/// the others.
const STAYS_BY_ITSELF: Duration = Duration::from_secs(60);
const STAYS_FIRST: Duration = Duration::from_secs(15);
const STAYS: Duration = Duration::from_secs(2);
/// A restarted operator starts to count inactivity again.
const SLEEP_LIMIT: Duration = Duration::from_secs(300);
/// Number of watch requests that show that the first one was answered. The answer tells the client
/// to wait ten seconds before its second request.
const REQUESTS: usize = 2;
/// Every n-th later cycle also waits for that number of requests.
const LOOKED_AT: usize = 20;
const LOOK: Duration = Duration::from_millis(200);
/// If no process started or stopped for this long, all have started.
const STILL: Duration = Duration::from_secs(10);
/// Timeout until exited processes, idle connections and temporary memory are gone. Go releases
/// memory after some minutes.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);

fn name_of(cycle: usize) -> String {
    format!("cycle-{cycle:04}")
}

fn spec() -> ClusterSpec {
    let sleep = SleepSpec {
        after_inactivity: Some(NEVER.into()),
        ignore_user_agents: vec!["held-watch/*".into()],
        with_workers: WithWorkers::Allow,
        ..SleepSpec::default()
    };
    ClusterSpec {
        sleep,
        konnectivity: Konnectivity::Enabled,
        ..ClusterSpec::default()
    }
}

/// The cluster under test.
struct CycledCluster<'a> {
    stack: &'a Stack,
    tenant: &'a TenantFixture,
    objects: Api<ConfigMap>,
    watch: HeldWatch,
    hosted: String,
    kubeconfig: PathBuf,
    worker: Worker,
}

impl CycledCluster<'_> {
    /// One sleep and one wake. Returns the time until no control-plane pod ran, and the time until
    /// the API answered again.
    async fn run_cycle(&self, cycle: usize) -> Result<(Duration, Duration)> {
        self.make(cycle).await?;
        self.watch.wait_for(&name_of(cycle), READY_LIMIT).await?;
        let (started, asked) = (Instant::now(), self.watch.requests());
        let annotation = json!({"metadata": {"annotations": {SLEEP: SLEEP_NOW}}});
        self.tenant.patch_cluster("a", annotation).await?;
        self.wait_asleep().await?;
        let slept = started.elapsed();
        let (time, requests) = match cycle {
            0..WARM_UP => (STAYS_FIRST, self.watch.requests() + REQUESTS),
            _ if cycle.is_multiple_of(LOOKED_AT) => (STAYS, self.watch.requests() + REQUESTS),
            // One request: after the sleep ended the watch.
            _ => (STAYS, asked + 1),
        };
        self.check_asleep(time, requests).await?;
        Ok((slept, self.wake().await?))
    }

    /// Falls asleep by itself, because only the client with the watch is connected. Returns how
    /// long that took.
    async fn sleep_by_itself(&self) -> Result<Duration> {
        let after = |time: &str| json!({"spec": {"sleep": {"afterInactivity": time}}});
        let started = Instant::now();
        self.tenant.patch_cluster("a", after(SHORTEST)).await?;
        let asleep = self.wait_asleep().await?;
        let slept = started.elapsed();
        let conditions = asleep.status.context("no status")?.conditions;
        let reason = Reason::AsleepOnInactivity.to_string();
        ensure!(
            conditions.iter().any(|condition| condition.reason == reason),
            "it sleeps for another reason: {conditions:?}"
        );
        self.check_asleep(STAYS_BY_ITSELF, self.watch.requests() + REQUESTS)
            .await?;
        self.wake().await?;
        self.tenant.patch_cluster("a", after(NEVER)).await?;
        self.wait_condition(ConditionType::Ready, READY_LIMIT).await?;
        Ok(slept)
    }

    async fn wait_asleep(&self) -> Result<Cluster> {
        let cluster = self.wait_condition(ConditionType::Asleep, SLEEP_LIMIT).await?;
        ensure!(self.pod().await?.is_none(), "asleep with a pod");
        Ok(cluster)
    }

    async fn wait_condition(&self, of: ConditionType, limit: Duration) -> Result<Cluster> {
        self.tenant.wait_condition("a", of, "True", limit).await
    }

    /// Checks that it stays asleep for `time`, and until the client has sent `requests` watch requests
    /// in total.
    async fn check_asleep(&self, time: Duration, requests: usize) -> Result<()> {
        let started = Instant::now();
        while started.elapsed() < time || self.watch.requests() < requests {
            ensure!(
                started.elapsed() < time + READY_LIMIT,
                "the client sends no further watch request"
            );
            let status = self.tenant.clusters().get("a").await?.status;
            let activity = status.and_then(|status| status.activity).unwrap_or_default();
            ensure!(activity.asleep_since().is_some(), "it was woken: {activity:?}");
            ensure!(self.pod().await?.is_none(), "the control plane has a pod: {activity:?}");
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Sends a request that counts as activity. Returns the time until the answer.
    async fn wake(&self) -> Result<Duration> {
        let asked = Instant::now();
        let get = ["get", "namespaces", "-o", "name"];
        self.stack.kubectl(&self.kubeconfig, &get).await?.ok()?;
        let answered = asked.elapsed();
        self.wait_condition(ConditionType::Ready, READY_LIMIT).await?;
        Ok(answered)
    }

    async fn make(&self, cycle: usize) -> Result<()> {
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name_of(cycle)),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        self.objects.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// The control plane's pod.
    async fn pod(&self) -> Result<Option<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.stack.host.clone(), &self.hosted);
        Ok(pods.get_opt("control-plane-0").await?)
    }

    /// Footprint of the stack once nothing changes: the worker's Node is Ready and has its add-ons,
    /// and one control-plane pod runs.
    async fn wait_until_settled(&self) -> Result<Footprint> {
        wait_for("the worker to be Ready", READY_LIMIT, async || {
            let find = ["get", "pods", "-n", &self.hosted, "-o", "name"];
            let pods = self.stack.host_kubectl(&find).await?.ok()?;
            ensure!(pods.lines().count() == 1, "{pods}");
            let node = format!("node/{}", self.worker.name);
            let wait = ["wait", "--for=condition=Ready", &node, "--timeout=5s"];
            self.stack.kubectl(&self.kubeconfig, &wait).await?.ok().map(Some)
        })
        .await?;
        let inside = Workload {
            stack: self.stack,
            kubeconfig: &self.kubeconfig,
        };
        for addon in ["coredns", "kube-proxy", "konnectivity-agent"] {
            inside.wait_addon(addon, 1).await?;
        }
        // Controllers start after their API server.
        let before = RefCell::new(Footprint::default());
        wait_for("all to have started", READY_LIMIT, async || {
            tokio::time::sleep(STILL).await;
            let now = Footprint::take(self.stack, &[self.worker.control_group()?]).await?;
            let previous = before.replace(now.clone());
            ensure!(now.runs_as(&previous), "a process started or stopped");
            Ok(Some(now))
        })
        .await
    }
}

fn count_of_cycles() -> Result<usize> {
    match std::env::var("CYCLES") {
        Ok(text) => text.parse().with_context(|| format!("CYCLES is {text:?}")),
        Err(_) => Ok(CYCLES),
    }
}

#[tokio::test]
async fn sleep_and_wake_leave_nothing_behind() -> Result<()> {
    let cycles = WARM_UP + count_of_cycles()?;
    let stack = Stack::connect().await?;
    let key = Key::generate().await?;
    let tenant = TenantFixture::create_with(&stack, "cycles", key.to_spec()).await?;
    let (cluster, kubeconfig) = tenant.ready_cluster_with("a", spec()).await?;
    let cycled = CycledCluster {
        stack: &stack,
        tenant: &tenant,
        objects: Api::namespaced(client(&kubeconfig).await?, "default"),
        watch: HeldWatch::start(client_called(&kubeconfig, AGENT).await?).await?,
        hosted: hosted_namespace(&cluster)?,
        worker: Worker::join(&stack, &key.path, "a").await?,
        kubeconfig,
    };
    println!("asleep by itself after {:.0?}", cycled.sleep_by_itself().await?);

    let mut before = Footprint::default();
    let (mut slept, mut woke) = (Vec::new(), Vec::new());
    for cycle in 0..cycles {
        if cycle == WARM_UP {
            before = cycled.wait_until_settled().await?;
        }
        if cycle == cycles / 2 && cycle > WARM_UP {
            let halfway = cycled.wait_until_settled().await?;
            println!("{}", before.beside(&halfway));
            before = before.with_memory_of(&halfway);
        }
        let (sleep, wake) = cycled
            .run_cycle(cycle)
            .await
            .with_context(|| format!("cycle {cycle}"))?;
        println!("cycle {cycle}: no pod after {sleep:.1?}, an answer {wake:.1?} after the request");
        slept.push(sleep);
        woke.push(wake);
    }

    let after = RefCell::new(Footprint::default());
    let settled = wait_for("all counts to be as before", SETTLE_LIMIT, async || {
        let now = cycled.wait_until_settled().await?;
        let grown = before.grown(&now);
        after.replace(now);
        ensure!(grown.is_empty(), "{}", grown.join(", "));
        Ok(Some(()))
    })
    .await;
    println!("{}", before.beside(&after.borrow()));
    settled?;
    for (what, mut times) in [("until the pod was gone", slept), ("until the API answered", woke)] {
        times.sort();
        println!(
            "{what}: median {:.1?}, longest {:.1?}",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    }

    let expected: Vec<_> = (0..cycles).map(name_of).collect();
    let stored = cycled.objects.list(&ListParams::default()).await?.items;
    let stored: Vec<_> = stored.into_iter().filter_map(|object| object.metadata.name).collect();
    let missing: Vec<_> = expected.iter().filter(|name| !stored.contains(name)).collect();
    ensure!(missing.is_empty(), "{missing:?} are lost");
    let CycledCluster { watch, worker, .. } = cycled;
    let (_, lists) = watch.interruptions();
    println!("the watch client listed again {lists} times");
    // One more than cycles, because it woke once before them.
    ensure!(lists <= cycles + 1, "more than once per wake");
    let mut delivered = watch.stop()?;
    delivered.retain(|name| name.starts_with("cycle-"));
    ensure!(delivered == expected, "the watch delivered {delivered:?}");
    worker.remove().await?;
    tenant.remove().await
}
