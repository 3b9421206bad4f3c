//! Kills the operator. Measures how long the next one takes to reconcile everything, and counts its
//! writes.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use serde_json::Value;
use yoke_api::Cluster;
use yoke_e2e::victim::signal;
use yoke_e2e::{Stack, network, process, wait_for};

use crate::costs;
use crate::fleet::{Fleet, Kind};
use crate::table::{print_target, print_targets_head};

const LIMIT: Duration = Duration::from_secs(300);
/// Target for the time until the operator is at rest.
const SETTLED: Duration = Duration::from_secs(30);
/// Seconds between two periodic reconciles of a Cluster at rest: half a minute if it is awake,
/// about three quarters of an hour if it is asleep.
const AWAKE_EVERY: f64 = 30.0;
const ASLEEP_EVERY: f64 = 2700.0;
/// Interval between two checks whether the operator is at rest, and how long it must be quiet to
/// count as settled.
const LOOK: Duration = Duration::from_secs(1);
const QUIET: Duration = Duration::from_secs(5);

/// Kills the operator, and observes the next one until it is settled, and for `rest` after that.
pub(crate) async fn measure(fleet: &Fleet, rest: Duration) -> Result<()> {
    let stack = &fleet.stack;
    let clusters: Api<Cluster> = Api::all(stack.host.clone());
    let count = clusters.list_metadata(&Default::default()).await?.items.len() as u64;
    let audit = Audit::begin(&stack.dir.join("log/audit.log"))?;
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
        describe(writes.as_ref())
    );
    println!(
        "| writes until {} s later | {} |",
        rest.as_secs(),
        describe(later.as_ref())
    );
    print_targets_head();
    print_target(
        &format!("settled in {SETTLED:?}"),
        &format!("{:.1} s", settled.as_secs_f64()),
        settled <= SETTLED,
    );
    let is_none = later.as_ref().is_some_and(BTreeMap::is_empty);
    print_target("no write", &describe(later.as_ref()), is_none);
    Ok(())
}

/// Waits until the operator has done `count` reconciles, does no more than at rest, and every
/// Cluster is settled. Returns when that was the case, and the CPU time until then.
///
/// The number of reconciles alone does not prove that the operator has seen every Cluster, because
/// it reconciles each several times.
async fn wait_settled(fleet: &Fleet, pid: u32, count: u64) -> Result<(Instant, Duration)> {
    let rate =
        fleet.of(Kind::Awake).count() as f64 / AWAKE_EVERY + fleet.of(Kind::Asleep).count() as f64 / ASLEEP_EVERY;
    // Periodic reconciles are not evenly spread, so allow three times the average.
    let few = (rate * LOOK.as_secs_f64()).max(1.0) * 3.0;
    let begun = Instant::now();
    let (mut seen, mut since, mut used) = (0, begun, Duration::ZERO);
    loop {
        tokio::time::sleep(LOOK).await;
        let now = counter(&fleet.stack, "yoke_operator_reconciles_total{controller=\"cluster\"}");
        // The operator may not serve metrics yet.
        let now = now.await.unwrap_or_default();
        let is_quiet = now >= count && now.saturating_sub(seen) as f64 <= few;
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
            (since, used) = (Instant::now(), process::cpu_time(pid)?);
        } else if since.elapsed() >= QUIET {
            return Ok((since, used));
        }
    }
}

/// Value of a counter of the operator.
async fn counter(stack: &Stack, series: &str) -> Result<u64> {
    let pod = network::pod(stack, "yoke-system", "app.kubernetes.io/name=yoke-operator").await?;
    let pod = pod.metadata.name.context("a pod without a name")?;
    let path = format!("/api/v1/namespaces/yoke-system/pods/{pod}:8080/proxy/metrics");
    let text = stack.host_kubectl(&["get", "--raw", &path]).await?.ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.context("no such counter")?
        .trim()
        .parse()
        .context("a counter that is no number")
}

/// The operator's writes after a moment, from the host API's audit log.
struct Audit {
    path: PathBuf,
    /// Inode and length of the file at that moment.
    file: u64,
    begin: u64,
}

impl Audit {
    fn begin(path: &Path) -> Result<Self> {
        let found = std::fs::metadata(path).context("looking at the host's audit log")?;
        Ok(Self {
            path: path.to_owned(),
            file: found.ino(),
            begin: found.len(),
        })
    }

    /// Counts the writes by verb and resource. Returns `None` if the API server has started another
    /// file meanwhile.
    fn count(&self) -> Result<Option<BTreeMap<String, u64>>> {
        let mut file = std::fs::File::open(&self.path).context("opening the host's audit log")?;
        let found = file.metadata().context("looking at the host's audit log")?;
        if found.ino() != self.file || found.len() < self.begin {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(self.begin))?;
        let mut text = String::new();
        file.read_to_string(&mut text).context("reading the host's audit log")?;
        Ok(Some(count_writes(&text)))
    }
}

fn count_writes(log: &str) -> BTreeMap<String, u64> {
    let mut writes = BTreeMap::new();
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (resource, part) = (text("/objectRef/resource"), text("/objectRef/subresource"));
        let slash = if part.is_empty() { "" } else { "/" };
        *writes
            .entry(format!("{} {resource}{slash}{part}", text("/verb")))
            .or_default() += 1;
    }
    writes
}

fn describe(writes: Option<&BTreeMap<String, u64>>) -> String {
    let Some(writes) = writes else {
        return "not known: the audit log was begun anew meanwhile".to_owned();
    };
    let all: u64 = writes.values().sum();
    let kinds: Vec<_> = writes.iter().map(|(what, count)| format!("{count} {what}")).collect();
    match all {
        0 => "none".to_owned(),
        _ => format!("{all}: {}", kinds.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_counted_by_what_they_are_of() {
        let line = |verb: &str, part: &str| {
            format!(r#"{{"verb":"{verb}","objectRef":{{"resource":"clusters","subresource":"{part}"}}}}"#)
        };
        let log = [
            line("patch", "status"),
            line("patch", "status"),
            line("create", ""),
            "{\"verb\":\"pa".into(),
        ];
        let writes = count_writes(&log.join("\n"));
        assert_eq!(describe(Some(&writes)), "3: 1 create clusters, 2 patch clusters/status");
        assert_eq!(describe(Some(&count_writes(""))), "none");
    }

    #[test]
    fn a_log_that_was_begun_anew_is_not_taken_for_one_without_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        std::fs::write(&path, "{}\n").unwrap();
        let audit = Audit::begin(&path).unwrap();
        assert_eq!(describe(audit.count().unwrap().as_ref()), "none");
        std::fs::rename(&path, folder.path().join("audit-1.log")).unwrap();
        std::fs::write(&path, "{}\n{}\n").unwrap();
        assert_eq!(
            describe(audit.count().unwrap().as_ref()),
            "not known: the audit log was begun anew meanwhile"
        );
    }
}
