//! A real kube-apiserver that compares its memory with the store, and exits on a difference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use yoke_test_support::kubernetes::Options;

use crate::harness::{Kine, Nats};

/// Resources that are written all the time.
const KINDS: [&str; 3] = ["configmaps", "secrets", "serviceaccounts"];
/// kube-apiserver compares each resource after five to seven and a half minutes
/// (`ConsistencyCheckPeriod`, k8s.io/apiserver/pkg/storage/cacher/delegator.go), and again after
/// the same time.
const LIMIT: Duration = Duration::from_secs(20 * 60);
/// Number of names per resource: a prime, so that each is created, changed and deleted in turn.
const NAMES: u64 = 499;
/// How often the store is killed meanwhile.
const PACE: Duration = Duration::from_secs(47);

/// Creates, changes and deletes objects of a resource until stopped; counts the acknowledged
/// requests.
async fn write<K>(client: Client, stop: Arc<AtomicBool>, done: Arc<AtomicU64>)
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api = Api::<K>::namespaced(client, "default");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let name = format!("load-{}", number % NAMES);
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let label = json!({"metadata": {"labels": {"number": number.to_string()}}});
        // A request fails while the store is down. A name that exists, or does not, is left from an
        // earlier round.
        let answer = match number % 4 {
            0 => api.delete(&name, &DeleteParams::default()).await.map(drop),
            1 | 2 => api.create(&PostParams::default(), &object).await.map(drop),
            _ => {
                let earlier = format!("load-{}", (number - 1) % NAMES);
                let params = PatchParams::default();
                api.patch(&earlier, &params, &Patch::Merge(&label)).await.map(drop)
            }
        };
        done.fetch_add(u64::from(answer.is_ok()), Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Number of comparisons of a resource, by outcome.
fn count(metrics: &str, kind: &str, status: &str) -> u64 {
    let labels = format!("resource=\"{kind}\",status=\"{status}\"");
    let line = metrics.lines().find(|line| {
        line.starts_with("apiserver_storage_consistency_checks_total{group=\"\"") && line.contains(&labels)
    });
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

async fn metrics(client: &Client) -> Option<String> {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    client.request_text(request).await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_caches_under_load_equal_the_store() {
    let nats = Nats::start().await;
    let mut kine = Kine::start(&nats, "kube", &[]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = kine.url();
    let options = Options {
        arguments: &["--etcd-compaction-interval=30s".to_owned()],
        environment: &[("KUBE_WATCHCACHE_CONSISTENCY_CHECKER", "true")],
        ..Options::new(&store)
    };
    let (mut server, client) = options.start(dir.path()).await;
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begin = |client: &Client| (client.clone(), Arc::clone(&stop), Arc::clone(&done));
    let ((a, b, c), (d, e, f), (g, h, i)) = (begin(&client), begin(&client), begin(&client));
    let load = [
        tokio::spawn(write::<ConfigMap>(a, b, c)),
        tokio::spawn(write::<Secret>(d, e, f)),
        tokio::spawn(write::<ServiceAccount>(g, h, i)),
    ];
    let (begun, mut killed, mut kills) = (Instant::now(), Instant::now(), 0);
    let compared = loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(server.is_running(), "kube-apiserver ended: {}", last(&server.log()));
        if killed.elapsed() > PACE {
            kine.kill();
            kine.restart().await;
            (killed, kills) = (Instant::now(), kills + 1);
        }
        let Some(metrics) = metrics(&client).await else {
            continue;
        };
        assert!(
            KINDS.iter().all(|kind| count(&metrics, kind, "failure") == 0),
            "{}",
            last(&server.log())
        );
        let compared = KINDS.map(|kind| count(&metrics, kind, "success"));
        if compared.iter().all(|count| *count > 0) {
            break compared;
        }
        assert!(begun.elapsed() < LIMIT, "compared so often: {compared:?}");
    };
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    let done = done.load(Ordering::Relaxed);
    println!("{done} writes, {kills} kills of the store, {KINDS:?} compared {compared:?} times");
    assert!(done > 1000 && kills > 3);
}

/// The last lines of a log.
fn last(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
