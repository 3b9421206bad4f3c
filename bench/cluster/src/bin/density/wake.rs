//! Measures how long it takes until Clusters answer.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use yoke_api::labels::{SLEEP, SLEEP_NOW};
use yoke_api::{Cluster, ConditionType};
use yoke_bench_harness::targets;
use yoke_cluster_bench::{Floor, floor};
use yoke_e2e::tenant::is_true;
use yoke_e2e::{Output, watch_for};

use crate::fleet::{Fleet, Kind, is_settled};
use crate::progress::say;
use crate::table::{print_head, print_row, print_time_target};

const LIMIT: Duration = Duration::from_secs(120);
/// Targets: a percentile, and the time in which this share of the Clusters must answer.
const TARGETS: [(usize, Duration); 2] = [(50, Duration::from_secs(4)), (99, Duration::from_secs(6))];
/// Uses kubectl's default, which is no request timeout. kubectl then retries for up to 50 s. If it
/// must first discover the APIs of the server, it takes longer, and the stack ends it after a
/// minute.
const GET: [&str; 5] = ["get", "namespaces", "-o", "name", "--request-timeout=0"];

/// Wakes some Clusters one after the other, lets them sleep again and wakes them a second time.
/// Then wakes several at the same time. Finally sends requests to all awake Clusters.
pub(crate) async fn measure(fleet: &Fleet, wakes: usize, together: usize) -> Result<()> {
    let asleep: Vec<_> = fleet.of(Kind::Asleep).collect();
    let every = (asleep.len() / wakes.max(1)).max(1);
    let herd: Vec<_> = asleep.iter().copied().take(together).collect();
    let (mut first, mut second) = (<[Vec<Duration>; 2]>::default(), <[Vec<Duration>; 2]>::default());
    for number in asleep.into_iter().step_by(every).take(wakes) {
        for times in [&mut first, &mut second] {
            let (answered, floor) = wake(fleet, number).await?;
            times[0].push(answered);
            times[1].push(floor);
            put_to_sleep(fleet, number).await?;
        }
    }
    let ([first, first_floor], [second, second_floor]) = (first, second);
    let together = wake_together(fleet, &herd).await?;
    let mut awake = Vec::new();
    for number in fleet.of(Kind::Awake) {
        awake.push(ask(fleet, number).await?);
    }
    print_head("Until a Cluster answers", "of a Cluster that");
    print_row("sleeps, and never ran: `kubectl get namespaces`", &first);
    print_row(floor::TITLE, &first_floor);
    print_row("sleeps, and ran before: `kubectl get namespaces`", &second);
    print_row(floor::TITLE, &second_floor);
    if !herd.is_empty() {
        let what = format!("sleeps, as {} others that are asked at the same time", herd.len() - 1);
        print_row(&what, &together);
    }
    print_row("is awake: the second list of Namespaces of a client", &awake);
    targets::print_head();
    for (what, times) in [("asleep, and never ran", first), ("asleep, and ran before", second)] {
        for (hundredths, limit) in TARGETS {
            print_time_target(what, hundredths, limit, &times);
        }
    }
    Ok(())
}

/// Wakes a Cluster with a request. Returns how long the request took, and how long the start of its
/// API server took.
async fn wake(fleet: &Fleet, number: usize) -> Result<(Duration, Duration)> {
    let kubeconfig = fleet.kubeconfig(number).await?;
    let floor = Floor::before(&fleet.place(number).1)?;
    let answered = async {
        let asked = Instant::now();
        fleet.stack.kubectl(&kubeconfig, &GET).await?.ok()?;
        Ok(asked.elapsed())
    };
    let times = tokio::try_join!(answered, floor.measure(LIMIT))?;
    until(fleet, number, |cluster| is_settled(cluster, Kind::Awake)).await?;
    Ok(times)
}

/// Wakes several Clusters at the same time. Their starts are queued. Afterwards lets them sleep
/// again. Returns the durations of the requests that were answered.
async fn wake_together(fleet: &Fleet, numbers: &[usize]) -> Result<Vec<Duration>> {
    let wake = async |number: &usize| {
        let kubeconfig = fleet.kubeconfig(*number).await?;
        let asked = Instant::now();
        let answer = fleet.stack.kubectl(&kubeconfig, &GET).await.and_then(Output::ok);
        if let Err(error) = &answer {
            say(&format!("c{number}, after {:.1?}: {error:#}", asked.elapsed()));
        }
        Ok::<_, anyhow::Error>(answer.is_ok().then(|| asked.elapsed()))
    };
    let times = try_join_all(numbers.iter().map(wake)).await?;
    for number in numbers {
        until(fleet, *number, |cluster| is_settled(cluster, Kind::Awake)).await?;
        put_to_sleep(fleet, *number).await?;
    }
    Ok(times.into_iter().flatten().collect())
}

async fn put_to_sleep(fleet: &Fleet, number: usize) -> Result<()> {
    let (clusters, name) = fleet.place(number);
    let annotation = serde_json::json!({"metadata": {"annotations": {SLEEP: SLEEP_NOW}}});
    clusters
        .patch(&name, &PatchParams::default(), &Patch::Merge(annotation))
        .await?;
    // A Cluster is asleep once its pod is gone.
    until(fleet, number, |cluster| {
        let status = cluster.status.as_ref();
        status.is_some_and(|status| is_true(&status.conditions, ConditionType::Asleep))
    })
    .await
}

async fn until(fleet: &Fleet, number: usize, holds: impl Fn(&Cluster) -> bool) -> Result<()> {
    let (clusters, name) = fleet.place(number);
    let what = format!("Cluster {name}");
    watch_for(&what, LIMIT, clusters, &name, |cluster: Option<Cluster>| {
        Ok(holds(&cluster.context("no such Cluster")?).then_some(()))
    })
    .await
}

/// Measures a request to an awake Cluster. The first request of a client includes the handshakes,
/// so the second one counts.
async fn ask(fleet: &Fleet, number: usize) -> Result<Duration> {
    let kubeconfig = fleet.kubeconfig(number).await?;
    let namespaces: Api<Namespace> = Api::all(yoke_e2e::stack::client(&kubeconfig).await?);
    let mut time = Duration::MAX;
    for _ in 0..2 {
        let asked = Instant::now();
        namespaces.list(&Default::default()).await?;
        time = asked.elapsed();
    }
    Ok(time)
}
