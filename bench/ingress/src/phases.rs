//! The measured phases, one function each.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use tokio::time::MissedTickBehavior;
use yoke_bench_harness::table::Quantile;
use yoke_bench_harness::{Table, Times, Usage};

use crate::door::{Answer, Connection, Door, INSIDE};
use crate::fleet::{Fleet, address_of};
use crate::host::Host;
use crate::noise::{Kind, Made, Noise};
use crate::server::Server;
use crate::support::envoy::Envoy;
use crate::support::{PATIENCE, eventually};
use crate::watches::Watches;

/// Envoy clusters from the bootstrap configuration: xDS and the services that Envoy calls, and its
/// admin page.
const OWN_CLUSTERS: usize = 4;
/// Timeout for a change to take effect. A change that takes longer counts as failed.
const LIMIT: Duration = Duration::from_secs(10);
/// Interval between two attempts to observe a change.
const PAUSE: Duration = Duration::from_millis(1);
/// Interval between two reads of Envoy's cluster statistics.
const LOOK: Duration = Duration::from_millis(100);
/// Concurrency of work that is not measured.
const AT_ONCE: usize = 16;
/// Idle time before the memory of the processes is read. Envoy itself updates its memory statistics
/// every 5 s.
const REST: Duration = Duration::from_secs(10);
/// Maximum number of clusters that are checked after a restart.
const ROUTES: usize = 1000;
/// Number of requests for each of the two compared routes.
const REQUESTS: usize = 2000;
/// Request interval of the tenant that is measured beside a noisy one.
const PACE: Duration = Duration::from_millis(10);
/// Lead time of a noise before the measurement: it takes seconds to use up the burst that the
/// limits allow.
const LEAD: Duration = Duration::from_secs(10);

/// Everything that the phases measure or use.
pub(crate) struct Stage {
    /// All clusters. The first `count` exist on the host from the start.
    pub(crate) fleet: Arc<Fleet>,
    /// Clusters on the host.
    pub(crate) count: usize,
    /// The host's API.
    pub(crate) host: Host,
    /// The xDS server that configures Envoy.
    pub(crate) server: Server,
    pub(crate) envoy: Envoy,
    /// The clients' side of the ingress.
    pub(crate) door: Door,
}

/// Resource usage of Envoy and of the xDS server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processes {
    envoy: Usage,
    server: Usage,
    /// Memory that Envoy reports as allocated, in KiB.
    allocated: f64,
}

impl Stage {
    /// Resource usage of both processes after an idle time.
    pub(crate) async fn usage_at_rest(&self) -> Result<Processes> {
        tokio::time::sleep(REST).await;
        self.usage().await
    }

    async fn usage(&self) -> Result<Processes> {
        Ok(Processes {
            envoy: Usage::of_threads(&[self.envoy.process_id()])?,
            server: Usage::of_threads(&[self.server.id()?])?,
            allocated: self.envoy.stat("server.memory_allocated").await as f64 / 1024.0,
        })
    }

    /// Waits until Envoy has all clusters and none is warming.
    async fn wait_complete(&self) {
        // One Envoy cluster for each name.
        let expected = u64::try_from(OWN_CLUSTERS + self.count).unwrap_or_default();
        let complete = async || {
            // Reading the statistics uses CPU time of Envoy, too.
            tokio::time::sleep(LOOK).await;
            let active = self.envoy.try_stat("cluster_manager.active_clusters").await?;
            let warming = self.envoy.try_stat("cluster_manager.warming_clusters").await?;
            (active == expected && warming == 0 && self.envoy.is_ready().await).then_some(())
        };
        eventually("Envoy has all clusters", PATIENCE, complete).await;
    }

    /// Bytes that Envoy has received through xDS, including the HTTP/2 framing.
    async fn received(&self) -> f64 {
        self.envoy.stat("cluster.xds.upstream_cx_rx_bytes_total").await as f64
    }

    fn probe(&self) -> Probe<'_> {
        Probe { stage: self, pod: None }
    }

    /// Number of clusters that do not answer through the ingress, from `first` on. Only clusters
    /// that exist on the host and were not moved are checked.
    async fn lost(&self, first: usize) -> usize {
        let some = (first..self.count).take(ROUTES);
        let asked = stream::iter(some).map(|index| async move {
            let answer = self.door.ask(&self.fleet.cluster(index).public_name()).await;
            usize::from(!matches!(answer, Ok(Answer::From(_))))
        });
        asked
            .buffer_unordered(AT_ONCE)
            .fold(0, async |all, lost| all + lost)
            .await
    }
}

/// Requests a cluster by its public name and as a pod until both answers are as expected.
struct Probe<'a> {
    stage: &'a Stage,
    /// A pod's connection, reused for all its requests.
    pod: Option<Connection>,
}

impl Probe<'_> {
    /// Waits until both routes reach the control plane at `expected`, or, for `None`, until neither
    /// reaches one.
    async fn wait(&mut self, index: usize, bearer: &str, expected: Option<Ipv4Addr>) {
        let name = self.stage.fleet.cluster(index).public_name();
        while self.stage.door.ask(&name).await.ok() != expected.map(Answer::From) {
            tokio::time::sleep(PAUSE).await;
        }
        loop {
            match self.ask_as_pod(bearer).await {
                Ok(Answer::From(address)) if expected == Some(address) => return,
                Ok(Answer::Refused(_)) if expected.is_none() => return,
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    async fn ask_as_pod(&mut self, bearer: &str) -> Result<Answer> {
        let mut pod = match self.pod.take() {
            Some(pod) => pod,
            None => self.stage.door.connect(INSIDE).await?,
        };
        let answer = pod.ask(Some(bearer)).await?;
        self.pod = Some(pod);
        Ok(answer)
    }

    /// Makes a change on the host. Records when the host's API answered, and when the ingress
    /// followed.
    async fn time(
        &mut self,
        change: impl Future<Output = Result<()>>,
        (index, bearer): (usize, &str),
        expected: Option<Ipv4Addr>,
        [told, seen]: [&mut Times; 2],
    ) -> Result<()> {
        let begun = Instant::now();
        let change = async {
            change.await?;
            anyhow::Ok(begun.elapsed())
        };
        let wait = async {
            tokio::time::timeout(LIMIT, self.wait(index, bearer, expected))
                .await
                .ok()
        };
        let (answered, waited) = tokio::join!(change, async { wait.await.map(|()| begun.elapsed()) });
        told.add(answered?);
        match waited {
            None => seen.fail(),
            Some(time) => seen.add(time),
        }
        Ok(())
    }
}

/// Creates all clusters, and measures time, CPU time and memory.
pub(crate) async fn feed(stage: &Stage, table: &mut Table) -> Result<()> {
    let before = stage.usage_at_rest().await?;
    let begun = Instant::now();
    let clusters = (0..stage.count).map(|index| stage.fleet.cluster(index));
    stage.host.create_all(clusters).await?;
    let told = begun.elapsed();
    stage.wait_complete().await;
    let taken = [told, begun.elapsed()].map(|time| time.as_secs_f64());
    table.number("clusters", stage.count as f64, "", None);
    table.numbers("all made: the host's API has them / Envoy has them", &taken, "s", None);
    let fed = stage.usage().await?;
    let after = stage.usage_at_rest().await?;
    let each = |all: f64| all / stage.count as f64;
    let milliseconds = |microseconds: f64| microseconds / 1000.0;
    let cpu = [fed.envoy.cpu - before.envoy.cpu, fed.server.cpu - before.server.cpu];
    table.numbers(
        "CPU to take up a cluster: Envoy / yoke-ingress-xds",
        &cpu.map(milliseconds).map(each),
        "ms",
        None,
    );
    let idle = [after.envoy.cpu - fed.envoy.cpu, after.server.cpu - fed.server.cpu];
    let second = |used: f64| milliseconds(used) / REST.as_secs_f64();
    table.numbers(
        "CPU with nothing to do: Envoy / yoke-ingress-xds",
        &idle.map(second),
        "ms/s",
        None,
    );
    table.number("Envoy's memory with no cluster", before.envoy.memory, "MiB", None);
    let memory = each(after.envoy.memory - before.envoy.memory) * 1024.0;
    table.number("Envoy's memory for a cluster", memory, "KiB", Some(60.0));
    let allocated = each(after.allocated - before.allocated);
    table.number("of it allocated, as Envoy says", allocated, "KiB", None);
    table.number(
        "memory of yoke-ingress-xds with no cluster",
        before.server.memory,
        "MiB",
        None,
    );
    let memory = each(after.server.memory - before.server.memory) * 1024.0;
    table.number("memory of yoke-ingress-xds for a cluster", memory, "KiB", Some(10.0));
    Ok(())
}

/// Moves control planes, then creates clusters and removes them, one at a time.
pub(crate) async fn change(stage: &Stage, watches: &Watches, changes: usize, table: &mut Table) -> Result<()> {
    let (mut told, mut seen) = (Times::default(), Times::default());
    let mut probe = stage.probe();
    let before = stage.received().await;
    for number in 0..changes {
        let (index, moved) = move_of(number, watches.count(), stage.count);
        let (to, bearer) = (address_of(index, moved), stage.fleet.bearer(index));
        let change = stage.host.move_to(stage.fleet.cluster(index), to);
        let times = [&mut told, &mut seen];
        probe.time(change, (index, &bearer), Some(to), times).await?;
    }
    table.times("endpoint changed → it answers", &seen, None);
    table.times("until the host's API had answered", &told, None);
    let each = |now: f64, before: f64| (now - before) / changes as f64;
    let moved = stage.received().await;
    table.number("xDS of an endpoint change", each(moved, before), "bytes", Some(2048.0));

    let (mut told, mut seen) = (Times::default(), Times::default());
    let new = stage.count..stage.count + changes;
    for index in new.clone() {
        let (address, bearer) = (address_of(index, false), stage.fleet.bearer(index));
        let change = stage.host.create(stage.fleet.cluster(index));
        let times = [&mut told, &mut seen];
        probe.time(change, (index, &bearer), Some(address), times).await?;
    }
    table.times("cluster made → its first byte", &seen, Some((Quantile::P99, 100.0)));
    table.times("until the host's API had answered", &told, None);
    let made = stage.received().await;
    table.number("xDS of a new cluster", each(made, moved), "bytes", Some(4096.0));

    let (mut told, mut seen) = (Times::default(), Times::default());
    for index in new.clone() {
        let bearer = stage.fleet.bearer(index);
        let change = stage.host.withdraw(stage.fleet.cluster(index));
        let times = [&mut told, &mut seen];
        probe.time(change, (index, &bearer), None, times).await?;
    }
    table.times("cluster removed → refused", &seen, Some((Quantile::Longest, 1000.0)));
    table.number("xDS of a removal", each(stage.received().await, made), "bytes", None);
    for index in new {
        stage.host.clean(stage.fleet.cluster(index)).await?;
    }
    stage.wait_complete().await;
    Ok(())
}

/// Continues with moves, many at a time, and waits until the ingress has followed all of them.
pub(crate) async fn churn(stage: &Stage, watches: &Watches, moves: Range<usize>) -> Result<()> {
    let (first, end) = (watches.count(), stage.count);
    // Each batch moves a control plane at most once.
    for begin in moves.clone().step_by(end - first) {
        let turn = begin..moves.end.min(begin + end - first);
        let moved = stream::iter(turn.clone()).map(|number| async move {
            let (index, moved) = move_of(number, first, end);
            stage
                .host
                .move_to(stage.fleet.cluster(index), address_of(index, moved))
                .await
        });
        moved.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        let mut probe = stage.probe();
        for number in turn {
            let (index, moved) = move_of(number, first, end);
            let bearer = stage.fleet.bearer(index);
            let followed = probe.wait(index, &bearer, Some(address_of(index, moved)));
            tokio::time::timeout(LIMIT, followed)
                .await
                .context("a move is not followed")?;
        }
    }
    Ok(())
}

/// The control plane of a move, from `first` to `end`, and whether it moves to its second address
/// or returns to its first.
fn move_of(number: usize, first: usize, end: usize) -> (usize, bool) {
    let others = end - first;
    (first + number % others, (number / others).is_multiple_of(2))
}

/// Kills the server and starts it again.
pub(crate) async fn restart_server(stage: &mut Stage, watches: &Watches, table: &mut Table) -> Result<()> {
    let cut = watches.cut().await;
    stage.server.kill();
    let begun = Instant::now();
    let read = stage.server.begin().await;
    let name = stage.fleet.cluster(watches.count()).public_name();
    let again = async || stage.door.ask(&name).await.ok();
    eventually("a new connection passes", PATIENCE, again).await;
    let passed = begun.elapsed();
    let connected = async || (stage.server.metric("yoke_ingress_xds_streams").await.ok()? >= 1.0).then_some(());
    eventually("Envoy comes back", PATIENCE, connected).await;
    let usage = stage.usage_at_rest().await?;
    stage.wait_complete().await;
    let (lost, cut) = (stage.lost(watches.count()).await, watches.cut().await - cut);
    let mut sent = 0.0;
    for kind in ["cluster", "endpoints"] {
        let name = format!("yoke_ingress_xds_response_bytes_total{{type=\"{kind}\"}}");
        sent += stage.server.metric(&name).await?;
    }
    let seconds = [read.as_secs_f64(), passed.as_secs_f64()];
    let what = "yoke-ingress-xds killed and started: it has read the host / a new connection passes";
    table.numbers(what, &seconds, "s", None);
    table.number("routes lost by that", lost as f64, "", Some(0.0));
    table.number("open watches cut by that", cut as f64, "", Some(0.0));
    table.number("xDS sent again after that", sent, "bytes", None);
    table.number("its memory after that", usage.server.memory, "MiB", None);
    Ok(())
}

/// Kills Envoy and starts it again.
pub(crate) async fn restart_envoy(stage: &mut Stage, root: &Path, table: &mut Table) -> Result<()> {
    let before = stage.usage().await?;
    stage.envoy.kill().await;
    let begun = Instant::now();
    stage.envoy = start_envoy(&stage.server).await;
    stage.wait_complete().await;
    let taken = begun.elapsed();
    let after = stage.usage().await?;
    table.number(
        "Envoy restarted: it has everything",
        taken.as_secs_f64(),
        "s",
        Some(10.0),
    );
    let each = |all: f64| all / stage.count as f64;
    let cpu = [after.envoy.cpu, after.server.cpu - before.server.cpu].map(|used| each(used) / 1000.0);
    table.numbers("CPU of that for a cluster: Envoy / yoke-ingress-xds", &cpu, "ms", None);
    let rest = stage.usage_at_rest().await?;
    table.number("Envoy's memory after that", rest.envoy.memory, "MiB", None);
    let trust = crate::support::pki::trust(&std::fs::read_to_string(root)?);
    stage.door = Door::new(stage.envoy.ingress, trust);
    table.number("routes lost by that", stage.lost(0).await as f64, "", Some(0.0));
    Ok(())
}

/// Starts Envoy as the chart does, but with a higher heap limit than the chart's memory limit
/// allows.
pub(crate) async fn start_envoy(server: &Server) -> Envoy {
    let room = [("@MAX_HEAP_BYTES@", "8000000000")];
    Envoy::start_workers(2, server.address, &server.client_leaf(), &server.ca.pem, &room).await
}

/// Compares the two routes of a request: TLS passthrough by name, and TLS terminated at the
/// ingress.
pub(crate) async fn compare(stage: &Stage, table: &mut Table) -> Result<()> {
    let index = stage.count - 1;
    let bearer = stage.fleet.bearer(index);
    let mut public = stage.door.connect(&stage.fleet.cluster(index).public_name()).await?;
    let mut pod = stage.door.connect(INSIDE).await?;
    let (mut passed, mut ended) = (Times::default(), Times::default());
    for number in 0..REQUESTS + REQUESTS / 10 {
        let begun = Instant::now();
        let straight = public.ask(None).await?;
        let between = Instant::now();
        let led = pod.ask(Some(&bearer)).await?;
        anyhow::ensure!(straight == led, "{straight:?} by name, {led:?} by token");
        // The first requests open connections from the ingress to the control plane.
        if number >= REQUESTS / 10 {
            passed.add(between - begun);
            ended.add(between.elapsed());
        }
    }
    table.times("a request by the public name, on an open connection", &passed, None);
    table.times("a pod's request, on an open connection", &ended, None);
    let more = ended.quantile(0.5) - passed.quantile(0.5);
    table.number("what the token and the route take, median", more, "ms", Some(1.0));
    Ok(())
}

/// Measures a tenant beside a neighbor that is idle, opens connections, or sends requests.
pub(crate) async fn disturb(
    stage: &Stage,
    root: &Path,
    (rounds, length): (usize, Duration),
    table: &mut Table,
) -> Result<()> {
    let (quiet, noisy) = (stage.count - 1, stage.count - 2);
    let (name, bearer) = (stage.fleet.cluster(noisy).public_name(), stage.fleet.bearer(noisy));
    let mut seen: [[Times; 2]; 3] = Default::default();
    let mut made: [Vec<Made>; 3] = Default::default();
    for _ in 0..rounds {
        for (turn, kind) in [None, Some(Kind::Connections), Some(Kind::Requests)]
            .into_iter()
            .enumerate()
        {
            let (ingress, who) = (stage.door.ingress, (name.as_str(), bearer.as_str()));
            let noise = kind.map(|kind| Noise::start(kind, ingress, who, root, [LEAD, length]));
            let noise = noise.transpose()?;
            if noise.is_some() {
                tokio::time::sleep(LEAD).await;
            }
            meet(stage, quiet, length, &mut seen[turn]).await;
            if let Some(noise) = noise {
                made[turn].push(noise.end().await?);
            }
        }
    }
    for (what, made) in [("connections", &made[1]), ("requests", &made[2])] {
        let mean = |of: fn(&Made) -> f64| made.iter().map(of).sum::<f64>() / rounds as f64;
        let text = format!(
            "{:.0}/s, {:.0}/s let in",
            mean(|made| made.tried),
            mean(|made| made.passed)
        );
        table.text(&format!("{what} of a noisy tenant"), text);
    }
    for (which, what) in ["requests of pods", "new connections"].into_iter().enumerate() {
        let p99 = seen.each_ref().map(|times| times[which].quantile(0.99));
        let what = format!("another tenant's {what}, p99: alone / beside the connections / beside the requests");
        table.numbers(&what, &p99, "ms", None);
        let [alone, ..] = p99;
        let slower = [p99[1] / alone, p99[2] / alone];
        table.numbers("how much slower that is", &slower, "x", Some(2.0));
        let failed = seen.iter().map(|times| times[which].failed()).sum::<u64>();
        table.number("and failed", failed as f64, "", Some(0.0));
    }
    Ok(())
}

/// Sends requests of one tenant: from a pod on one connection, and from a client that connects each
/// time.
async fn meet(stage: &Stage, index: usize, length: Duration, [requests, connections]: &mut [Times; 2]) {
    let (name, bearer) = (stage.fleet.cluster(index).public_name(), stage.fleet.bearer(index));
    let mut probe = stage.probe();
    let (mut tick, begun) = (tokio::time::interval(PACE), Instant::now());
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Opens the pod's connection before the measurement.
    probe.ask_as_pod(&bearer).await.ok();
    while begun.elapsed() < length {
        tick.tick().await;
        let start = Instant::now();
        match probe.ask_as_pod(&bearer).await {
            Ok(Answer::From(_)) => requests.add(start.elapsed()),
            _ => requests.fail(),
        }
        let start = Instant::now();
        match stage.door.ask(&name).await {
            Ok(Answer::From(_)) => connections.add(start.elapsed()),
            _ => connections.fail(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_move_of_a_control_plane_goes_where_it_is_not() {
        let moves: Vec<_> = (0..7).map(|number| move_of(number, 2, 5)).collect();
        let expected = [
            (2, true),
            (3, true),
            (4, true),
            (2, false),
            (3, false),
            (4, false),
            (2, true),
        ];
        assert_eq!(moves, expected);
    }
}
