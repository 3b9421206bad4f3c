//! The operator is killed: how long until it has looked at everything again, and what it writes.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::Api;
use serde_json::Value;
use yoke_api::Cluster;
use yoke_e2e::victim::signal;
use yoke_e2e::{Stack, network, process, wait_for};

use crate::costs;
use crate::fleet::Fleet;

const LIMIT: Duration = Duration::from_secs(300);

/// Kills the operator, and looks at what the next one does until it is settled, and for `rest` after that.
pub(crate) async fn measure(fleet: &Fleet, rest: Duration) -> Result<()> {
    let stack = &fleet.stack;
    let clusters: Api<Cluster> = Api::all(stack.host.clone());
    let count = clusters.list_metadata(&Default::default()).await?.items.len() as u64;
    let audit = Audit::begin(stack)?;
    let operator = costs::operator();
    let before = operator.pid(stack).await?;
    let killed = Instant::now();
    signal(before, "KILL").await?;
    let pid = wait_for("the operator to run again", LIMIT, || async {
        Ok(operator.pid(stack).await.ok().filter(|pid| *pid != before))
    })
    .await?;
    let started = killed.elapsed();
    wait_for("the operator to look at every Cluster", LIMIT, || async {
        let seen = counter(stack, "yoke_operator_reconciles_total{controller=\"cluster\"}").await?;
        anyhow::ensure!(seen >= count, "{seen} of {count}");
        Ok(Some(()))
    })
    .await?;
    let settled = killed.elapsed();
    let used = process::cpu_time(pid)?;
    let writes = audit.count()?;
    tokio::time::sleep(rest).await;
    let later = audit.count()?;
    println!("\n### kill -9 of the operator with {count} Clusters\n\n| | |\n|---|---|");
    println!("| its next process | {:.1} s |", started.as_secs_f64());
    println!("| every Cluster was looked at | {:.1} s |", settled.as_secs_f64());
    println!("| processor time until then | {:.1} s |", used.as_secs_f64());
    println!("| writes until then, by the host's audit log | {} |", describe(&writes));
    println!("| writes until {} s later | {} |", rest.as_secs(), describe(&later));
    Ok(())
}

/// A counter of the operator.
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

/// The operator's writes from a moment on, as the host API's audit log has them.
struct Audit {
    path: PathBuf,
    begin: u64,
}

impl Audit {
    fn begin(stack: &Stack) -> Result<Self> {
        let path = stack.dir.join("log/audit.log");
        let begin = std::fs::metadata(&path)
            .context("looking at the host's audit log")?
            .len();
        Ok(Self { path, begin })
    }

    /// Writes by verb and kind.
    fn count(&self) -> Result<BTreeMap<String, u64>> {
        let mut file = std::fs::File::open(&self.path).context("opening the host's audit log")?;
        file.seek(SeekFrom::Start(self.begin))?;
        let mut text = String::new();
        file.read_to_string(&mut text).context("reading the host's audit log")?;
        Ok(count_writes(&text))
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

fn describe(writes: &BTreeMap<String, u64>) -> String {
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
        assert_eq!(describe(&writes), "3: 1 create clusters, 2 patch clusters/status");
        assert_eq!(describe(&count_writes("")), "none");
    }
}
