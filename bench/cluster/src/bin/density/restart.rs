//! Kills the operator. Measures how long the next one takes to reconcile everything, and counts its
//! writes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use yoke_api::Cluster;
use yoke_bench_harness::audit::{Audit, Counts, describe};
use yoke_bench_harness::clusters::{is_at_rest, reconcile_rate};
use yoke_bench_harness::usage::cpu_time;
use yoke_bench_harness::{metrics, targets};
use yoke_e2e::victim::signal;
use yoke_e2e::{Stack, network, wait_for};

use crate::costs;
use crate::fleet::{Fleet, Kind};

const LIMIT: Duration = Duration::from_secs(300);
/// Target for the time until the operator is at rest.
const SETTLED: Duration = Duration::from_secs(30);
/// Interval between two checks whether the operator is at rest, and how long it must be quiet to
/// count as settled.
const LOOK: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(5);

/// Kills the operator, and observes the next one until it is settled, and for `rest` after that.
pub(crate) async fn measure(fleet: &Fleet, rest: Duration) -> Result<()> {
    let stack = &fleet.stack;
    let clusters: Api<Cluster> = Api::all(stack.host.clone());
    let count = clusters.list_metadata(&Default::default()).await?.items.len() as u64;
    let audit = Audit::begin(&stack.dir.join("log/audit.log"));
    let operator = costs::operator();
    let before = operator.pid(stack).await?;
    let killed = Instant::now();
    signal(before, "KILL").await?;
    let pid = wait_for("the operator to run again", LIMIT, || async {
        Ok(operator.pid(stack).await.ok().filter(|pid| *pid != before))
    })
    .await?;
    let started = killed.elapsed();
    let (settled, used) = wait_settled(fleet, pid, count).await?;
    let settled = settled - killed;
    let writes = audit.count()?;
    tokio::time::sleep(rest).await;
    let later = audit.count()?;
    println!("\n### kill -9 of the operator with {count} Clusters\n\n| | |\n|---|---|");
    println!("| its next process | {:.1} s |", started.as_secs_f64());
    println!(
        "| every Cluster was looked at, is as it should be, and it came to rest | {:.1} s |",
        settled.as_secs_f64()
    );
    println!("| processor time until then | {:.1} s |", used.as_secs_f64());
    println!(
        "| writes until then, by the host's audit log | {} |",
        describe_writes(writes.as_ref())
    );
    println!(
        "| writes until {} s later | {} |",
        rest.as_secs(),
        describe_writes(later.as_ref())
    );
    targets::print_head();
    targets::print(
        &format!("settled in {SETTLED:?}"),
        &format!("{:.1} s", settled.as_secs_f64()),
        settled <= SETTLED,
    );
    let is_none = later.as_ref().is_some_and(|counts| counts.writes.is_empty());
    targets::print("no write", &describe_writes(later.as_ref()), is_none);
    Ok(())
}

/// Waits until the operator has done `count` reconciles, does no more than at rest, and every
/// Cluster is settled. Returns when that was the case, and the CPU time until then.
///
/// The number of reconciles alone does not prove that the operator has seen every Cluster, because
/// it reconciles each several times.
async fn wait_settled(fleet: &Fleet, pid: u32, count: u64) -> Result<(Instant, Duration)> {
    let rate = reconcile_rate(fleet.of(Kind::Awake).count(), fleet.of(Kind::Asleep).count());
    let begun = Instant::now();
    let (mut seen, mut since, mut used) = (0.0, begun, Duration::ZERO);
    loop {
        tokio::time::sleep(LOOK).await;
        let now = counter(&fleet.stack, "yoke_operator_reconciles_total{controller=\"cluster\"}");
        // The operator may not serve metrics yet.
        let now = now.await.unwrap_or_default();
        let is_quiet = now >= count as f64 && is_at_rest((now - seen).max(0.0), rate, LOOK);
        seen = now;
        let unsettled = if is_quiet && since.elapsed() >= QUIET {
            fleet.count_unsettled().await?
        } else {
            0
        };
        ensure!(
            begun.elapsed() < LIMIT,
            "the operator has not come to rest after {LIMIT:?}: {seen} looks at {count} Clusters, {unsettled} not as they should be"
        );
        if !is_quiet || unsettled > 0 {
            (since, used) = (Instant::now(), cpu_time(pid)?);
        } else if since.elapsed() >= QUIET {
            return Ok((since, used));
        }
    }
}

/// Value of a counter of the operator.
async fn counter(stack: &Stack, series: &str) -> Result<f64> {
    let pod = network::pod(stack, "yoke-system", "app.kubernetes.io/name=yoke-operator").await?;
    let pod = pod.metadata.name.context("a pod without a name")?;
    let path = format!("/api/v1/namespaces/yoke-system/pods/{pod}:8080/proxy/metrics");
    let text = stack.host_kubectl(&["get", "--raw", &path]).await?.ok()?;
    metrics::find(&text, series)?.context("no such counter")
}

fn describe_writes(counts: Option<&Counts>) -> String {
    counts.map_or_else(
        || "not known: the audit log was restarted meanwhile".to_owned(),
        |counts| describe(&counts.writes),
    )
}
