//! The stack recovers from `kill -9` of any one process and from the replacement of any one pod. No
//! acknowledged write is lost.
//!
//! The tests run one after the other, because every loss disturbs the whole stack.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams};
use yoke_e2e::held_watch::HeldWatch;
use yoke_e2e::stack::client;
use yoke_e2e::tenant::hosted_namespace;
use yoke_e2e::victim::signal;
use yoke_e2e::{Expected, Stack, TenantFixture, Victim, wait_for};

const HEAL_LIMIT: Duration = Duration::from_secs(90);

/// Key in a ConfigMap's data, and its values.
const STATE: &str = "state";
const CREATED: &str = "created";
const CHANGED: &str = "changed";

/// Allowed states of each object, by name.
type Written = BTreeMap<String, Vec<Option<&'static str>>>;

/// Lines that Yoke's processes log about killed processes.
const LOSSES: [Expected; 22] = {
    const NATS: &str = "nats-server was killed";
    const HOST: &str = "the host's API server, or its store, was killed";
    const TENANTS: &str = "the tenant's API server, or its store, was killed";
    const YOUNG: &str = "the host's API server has just started, and does not know of roles yet";
    const fn expected(says: &'static str, because: &'static str) -> Expected {
        Expected { says, because }
    }
    [
        expected("Disconnected from NATS", NATS),
        expected("connection to NATS lost", NATS),
        expected("event on the connection to NATS", NATS),
        expected("streams cannot be created", NATS),
        expected("Waiting for NATS", NATS),
        expected("The log does not answer", NATS),
        expected("Timed out waiting for the log while stopping", NATS),
        expected("NATS rejects", NATS),
        expected("Cannot store a snapshot", NATS),
        expected("eof in poll", HOST),
        expected("watch of the host API failed", HOST),
        expected("watch failed", HOST),
        expected("watch of Tenants failed", HOST),
        expected("watch initlist error with 403", YOUNG),
        expected("reconcile failed", HOST),
        expected("status cannot be written", HOST),
        expected("writing an event failed", HOST),
        expected("requesting the Lease failed", HOST),
        expected("writing the wake request of a Cluster failed", HOST),
        expected("Nodes cannot be counted", TENANTS),
        expected("Nodes cannot be checked for sleep", TENANTS),
        expected("webhooks cannot be checked for sleep", TENANTS),
    ]
};

fn config_map(name: &str, state: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: Some([(STATE.to_owned(), state.to_owned())].into()),
        ..ConfigMap::default()
    }
}

async fn is_acknowledged<T>(write: impl Future<Output = kube::Result<T>>) -> bool {
    matches!(tokio::time::timeout(Duration::from_secs(5), write).await, Ok(Ok(_)))
}

/// Creates objects continuously until stopped; changes every third one, and deletes every third
/// one. Returns the allowed states of each object whose creation was acknowledged. `None` means
/// deleted. There are two states if the last write was not acknowledged.
async fn write_all_the_time(kubeconfig: &Path, prefix: &str, stop: Arc<AtomicBool>) -> Result<Written> {
    let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, "default");
    let (post, delete) = (PostParams::default(), DeleteParams::default());
    let mut written = Written::new();
    for number in 0u32.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let name = format!("{prefix}-{number:06}");
        if !is_acknowledged(api.create(&post, &config_map(&name, CREATED))).await {
            continue;
        }
        let (acknowledged, state) = match number % 3 {
            0 => (true, Some(CREATED)),
            1 => {
                let changed = config_map(&name, CHANGED);
                (
                    is_acknowledged(api.replace(&name, &post, &changed)).await,
                    Some(CHANGED),
                )
            }
            _ => (is_acknowledged(api.delete(&name, &delete)).await, None),
        };
        let before = (!acknowledged).then_some(Some(CREATED));
        written.insert(name, before.into_iter().chain([state]).collect());
    }
    Ok(written)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_heals_and_nothing_acknowledged_is_lost() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "healing").await?.expecting(&LOSSES);
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let control_plane = |container| Victim::Container(hosted.clone(), "yoke.drzzl.io/cluster=a", container);
    let system = |selector, container| Victim::Container("yoke-system".to_owned(), selector, container);
    let victims = [
        control_plane("kube-apiserver"),
        control_plane("kine-nats"),
        control_plane("kube-controller-manager"),
        control_plane("kube-scheduler"),
        system("app.kubernetes.io/name=envoy", "envoy"),
        system("app.kubernetes.io/name=yoke-ingress-xds", "ingress-xds"),
        system("app.kubernetes.io/name=yoke-operator", "operator"),
        system("app.kubernetes.io/name=yoke-ssh-ui", "ssh-ui"),
        Victim::Supervised("containerd"),
        Victim::Supervised("kubelet"),
        Victim::Supervised("nats-server"),
        Victim::Supervised("kine-nats"),
        Victim::Supervised("kube-apiserver"),
        Victim::Supervised("kube-controller-manager"),
        Victim::Supervised("kube-scheduler"),
    ];

    let watch = HeldWatch::start(client(&kubeconfig).await?).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let host_kubeconfig = stack.dir.join("host.kubeconfig");
    let writers =
        [(kubeconfig.clone(), "tenant"), (host_kubeconfig.clone(), "e2e-host")].map(|(kubeconfig, prefix)| {
            let stop = stop.clone();
            tokio::spawn(async move { write_all_the_time(&kubeconfig, prefix, stop).await })
        });

    for victim in &victims {
        let name = victim.name();
        let old = wait_for(&format!("{name} to run"), HEAL_LIMIT, || async {
            victim.pid(&stack).await.map(Some)
        })
        .await?;
        signal(old, "KILL").await?;
        let killed = Instant::now();
        wait_for(&format!("{name} to run again"), HEAL_LIMIT, || async {
            let new = victim.pid(&stack).await?;
            Ok((new != old).then_some(()))
        })
        .await?;
        let back = killed.elapsed();
        for config in [&kubeconfig, &host_kubeconfig] {
            wait_for(
                &format!("kubectl to work after the kill of {name}"),
                HEAL_LIMIT,
                || async {
                    let output = stack
                        .kubectl(config, &["get", "namespaces", "--request-timeout=3s", "-o", "name"])
                        .await?;
                    output.ok().map(Some)
                },
            )
            .await?;
        }
        println!(
            "{name}: process restarted after {back:?}, kubectl after {:?}",
            killed.elapsed()
        );
    }

    watch.wait_for_more(50, HEAL_LIMIT).await?;
    let (gap, lists) = watch.interruptions();
    let delivered = watch.stop()?.len();
    println!("a watch delivered {delivered} objects, paused {gap:.1?} and listed again {lists} times");
    // An event that kube-apiserver's watch cache had not delivered before its own end is lost.
    // Restarts of other processes need no new list.
    ensure!(lists <= 1, "the watch listed again {lists} times");
    stop.store(true, Ordering::Relaxed);
    for (writer, kubeconfig) in writers.into_iter().zip([&kubeconfig, &host_kubeconfig]) {
        let written = writer.await.context("a writer panicked")??;
        ensure!(written.len() > 50, "only {} creations were acknowledged", written.len());
        let api: Api<ConfigMap> = Api::namespaced(client(kubeconfig).await?, "default");
        // A kubelet that restarts soon after a container reports it as not ready until it has
        // probed it. Until the endpoints are written again, Services route nowhere, and a new
        // connection may be refused again.
        let listed = wait_for("the objects to be listed", HEAL_LIMIT, || async {
            Ok(Some(api.list(&ListParams::default()).await?))
        })
        .await?;
        let stored: BTreeMap<String, String> = listed
            .items
            .into_iter()
            .filter_map(|object| Some((object.metadata.name?, object.data?.remove(STATE)?)))
            .collect();
        let wrong: Vec<_> = written
            .iter()
            .map(|(name, may)| (name, may, stored.get(name).map(String::as_str)))
            .filter(|(_, may, is)| !may.contains(is))
            .collect();
        ensure!(
            wrong.is_empty(),
            "{} acknowledged writes are lost: {wrong:?}",
            wrong.len()
        );
        println!("{} names, all as acknowledged", written.len());
    }
    let host: Api<ConfigMap> = Api::namespaced(stack.host.clone(), "default");
    for object in host.list(&ListParams::default()).await?.items {
        let name = object.metadata.name.unwrap_or_default();
        if name.starts_with("e2e-host-") {
            host.delete(&name, &Default::default()).await?;
        }
    }
    tenant.remove().await
}

/// A new pod has a new address and no state of the pod before it.
#[tokio::test]
async fn a_replaced_pod_is_followed() -> Result<()> {
    let stack = Stack::connect().await?;
    let tenant = TenantFixture::create(&stack, "replaced").await?;
    let (cluster, kubeconfig) = tenant.ready_cluster("a").await?;
    let hosted = hosted_namespace(&cluster)?;
    let control_plane = (hosted.as_str(), "yoke.drzzl.io/cluster=a");
    // Each part of the ingress is followed by a control plane: the new part must learn its new
    // address.
    for (namespace, selector) in [
        control_plane,
        ("yoke-system", "app.kubernetes.io/name=yoke-ingress-xds"),
        control_plane,
        ("yoke-system", "app.kubernetes.io/name=envoy"),
        control_plane,
        ("yoke-system", "app.kubernetes.io/name=yoke-operator"),
        control_plane,
    ] {
        let delete = ["delete", "pod", "-n", namespace, "-l", selector, "--timeout=60s"];
        stack.host_kubectl(&delete).await?.ok()?;
        let deleted = Instant::now();
        wait_for(
            &format!("kubectl to work without the previous {selector}"),
            HEAL_LIMIT,
            || async {
                let get = ["get", "namespaces", "--request-timeout=3s", "-o", "name"];
                stack.kubectl(&kubeconfig, &get).await?.ok().map(Some)
            },
        )
        .await?;
        println!("{selector}: kubectl after {:?}", deleted.elapsed());
    }
    tenant.remove().await
}
