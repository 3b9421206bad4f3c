//! A Cluster sleeps and wakes again and again, with a worker and with a client that holds a watch and does not count as use:
//! nothing is lost, and nothing is left behind.
//!
//! ```text
//!  an object is made ─▶ the watch tells of it ─▶ sleep=now ─▶ the pod is gone ─▶ the watch is asked for again ─▶ another pod is Ready
//!         ▲                                                                                                           │
//!         └──────────────────────────────────────────────── CYCLES times ─────────────────────────────────────────────┘
//! ```

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde_json::json;
use yoke_api::ConditionType;
use yoke_api::cluster::{ClusterSpec, Konnectivity};
use yoke_api::labels::{SLEEP, SLEEP_NOW};
use yoke_api::sleep::{SleepSpec, WithWorkers};
use yoke_e2e::footprint::Footprint;
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::ssh::Key;
use yoke_e2e::stack::{client, client_called};
use yoke_e2e::tenant::{READY_LIMIT, hosted_namespace};
use yoke_e2e::{Stack, TenantFixture, Worker, Workload, wait_for, wait_until};

const CYCLES: usize = 200;
/// Cycles before the first count: what is made once, or read ahead, is there then.
const WARM_UP: usize = 3;
const AGENT: &str = "held-watch/1";
/// What ended is gone by then, and so are connections that nobody uses.
const SETTLE_LIMIT: Duration = Duration::from_secs(180);

fn name_of(cycle: usize) -> String {
    format!("cycle-{cycle:04}")
}

fn spec() -> ClusterSpec {
    let sleep = SleepSpec {
        after_inactivity: Some("8h".into()),
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

/// What suffers the cycles.
struct Cycled<'a> {
    stack: &'a Stack,
    tenant: &'a TenantFixture,
    objects: Api<ConfigMap>,
    watch: HeldWatch,
    hosted: String,
    worker: Worker,
}

impl Cycled<'_> {
    /// One sleep and one wake. How long it took until nothing of the control plane ran, and until the API answered again.
    async fn turn(&self, cycle: usize) -> Result<(Duration, Duration)> {
        self.make(cycle).await?;
        self.watch.wait_for(&name_of(cycle), READY_LIMIT).await?;
        let former = self.pod().await?.context("no control plane")?;
        let begun = Instant::now();
        let annotation = json!({"metadata": {"annotations": {SLEEP: SLEEP_NOW}}});
        self.tenant.patch_cluster("a", annotation).await?;
        // The client that holds the watch asks for it again, and so it is awake again soon.
        wait_until("the pod to be gone", READY_LIMIT, async || {
            Ok(self.pod().await?.as_ref() != Some(&former))
        })
        .await?;
        let gone = Instant::now();
        wait_until("the API to answer again", READY_LIMIT, async || {
            Ok(self.objects.get("kube-root-ca.crt").await.is_ok())
        })
        .await?;
        let answered = gone.elapsed();
        self.tenant
            .wait_condition("a", ConditionType::Ready, "True", READY_LIMIT)
            .await?;
        Ok((gone - begun, answered))
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

    /// The identity of the control plane's pod.
    async fn pod(&self) -> Result<Option<String>> {
        let pods: Api<Pod> = Api::namespaced(self.stack.host.clone(), &self.hosted);
        Ok(pods.get_opt("control-plane-0").await?.and_then(|pod| pod.metadata.uid))
    }

    /// What the stack has when nothing changes any more: the worker's Node is Ready and has its add-ons, and one pod runs.
    async fn rest(&self) -> Result<Footprint> {
        wait_for("the worker to be Ready", READY_LIMIT, async || {
            let find = ["get", "pods", "-n", &self.hosted, "-o", "name"];
            let pods = self.stack.host_kubectl(&find).await?.ok()?;
            ensure!(pods.lines().count() == 1, "{pods}");
            let kubeconfig = self.tenant.kubeconfig("a").await?;
            let node = format!("node/{}", self.worker.name);
            let wait = ["wait", "--for=condition=Ready", &node, "--timeout=5s"];
            self.stack.kubectl(&kubeconfig, &wait).await?.ok().map(Some)
        })
        .await?;
        let kubeconfig = self.tenant.kubeconfig("a").await?;
        let inside = Workload {
            stack: self.stack,
            kubeconfig: &kubeconfig,
        };
        for addon in ["coredns", "kube-proxy", "konnectivity-agent"] {
            inside.wait_addon(addon, 1).await?;
        }
        Footprint::take(self.stack, &[self.worker.control_group()?]).await
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
    let key = Key::draw().await?;
    let tenant = TenantFixture::create_with(&stack, "cycles", key.to_spec()).await?;
    let (cluster, kubeconfig) = tenant.ready_cluster_with("a", spec()).await?;
    let cycled = Cycled {
        stack: &stack,
        tenant: &tenant,
        objects: Api::namespaced(client(&kubeconfig).await?, "default"),
        watch: HeldWatch::begin(client_called(&kubeconfig, AGENT).await?).await?,
        hosted: hosted_namespace(&cluster)?,
        worker: Worker::join(&stack, &key.path, "a").await?,
    };

    let mut before = Footprint::default();
    let (mut slept, mut woke) = (Vec::new(), Vec::new());
    for cycle in 0..cycles {
        if cycle == WARM_UP {
            before = cycled.rest().await?;
        }
        let (sleep, wake) = cycled.turn(cycle).await.with_context(|| format!("cycle {cycle}"))?;
        println!("cycle {cycle}: no pod after {sleep:.1?}, an answer {wake:.1?} later");
        slept.push(sleep);
        woke.push(wake);
    }

    let after = RefCell::new(Footprint::default());
    let settled = wait_for("all that is left to be as before", SETTLE_LIMIT, async || {
        let now = cycled.rest().await?;
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
    let Cycled { watch, worker, .. } = cycled;
    let (_, lists) = watch.interruptions();
    println!("the client that holds the watch listed anew {lists} times");
    let mut told = watch.end()?;
    told.retain(|name| name.starts_with("cycle-"));
    ensure!(told == expected, "the watch told {told:?}");
    worker.remove().await?;
    tenant.remove().await
}
