//! Prints the result tables.

use std::time::Duration;

use yoke_bench_harness::audit::{Counts, describe};
use yoke_bench_harness::{Usage, targets};

/// Targets for the operator at rest with all Clusters: memory in MiB, and CPU time in milliseconds
/// a second.
const MEMORY: f64 = 150.0;
const CPU: f64 = 20.0;
/// Target for the time until the operator is settled after a kill, in seconds.
const SETTLED: f64 = 30.0;

/// Measurements over an interval at rest.
pub(crate) struct Rest {
    pub(crate) clusters: usize,
    pub(crate) awake: usize,
    pub(crate) length: Duration,
    /// Usage of the operator at the begin and at the end.
    pub(crate) used: (Usage, Usage),
    /// PSS of the operator at the end, in MiB.
    pub(crate) proportional_memory: f64,
    /// Usage of kube-apiserver at the begin and at the end.
    pub(crate) api: (Usage, Usage),
    /// Requests of the operator.
    pub(crate) requests: Counts,
}

/// Measurements of a start of the operator.
pub(crate) struct Start {
    pub(crate) what: String,
    pub(crate) settled: Duration,
    /// CPU time until the operator was settled, in microseconds.
    pub(crate) cpu: f64,
    /// Maximum memory until the operator was settled, in MiB.
    pub(crate) peak: f64,
    /// Requests of the operator until then.
    pub(crate) requests: Counts,
}

/// Prints resource usage and requests of the operator at rest.
pub(crate) fn print_rests(rests: &[Rest]) {
    println!(
        "\n### At rest\n\n| Clusters | awake | memory, anonymous | PSS | CPU | CPU of kube-apiserver | requests a second |\n|---|---|---|---|---|---|---|"
    );
    for rest in rests {
        let seconds = rest.length.as_secs_f64();
        let rate = |used: (Usage, Usage)| (used.1.cpu - used.0.cpu) / 1e3 / seconds;
        println!(
            "| {} | {} | {:.1} MiB | {:.1} MiB | {:.1} ms/s | {:.1} ms/s | {} |",
            rest.clusters,
            rest.awake,
            rest.used.1.memory,
            rest.proportional_memory,
            rate(rest.used),
            rate(rest.api),
            describe_rates(&rest.requests, seconds)
        );
    }
}

/// Prints the targets beside the last measured values.
pub(crate) fn print_targets(rests: &[Rest], restart: Option<&Start>) {
    let (Some(first), Some(last)) = (rests.first(), rests.last()) else {
        return;
    };
    let more = (last.used.1.memory - first.used.1.memory) * 1024.0 / last.clusters.max(1) as f64;
    let cpu = (last.used.1.cpu - last.used.0.cpu) / 1e3 / last.length.as_secs_f64();
    println!("\nEach Cluster adds {more:.1} KiB.");
    targets::print_head();
    print_target("memory in MiB", MEMORY, last.used.1.memory);
    print_target("CPU in ms/s", CPU, cpu);
    if let Some(restart) = restart {
        let writes = restart.requests.writes.values().sum::<u64>();
        print_target(
            "seconds until settled after kill -9",
            SETTLED,
            restart.settled.as_secs_f64(),
        );
        print_target("writes until then", 0.0, writes as f64);
    }
}

fn print_target(what: &str, limit: f64, measured: f64) {
    let target = format!("{what}, at most {limit}");
    targets::print(&target, &format!("{measured:.1}"), measured <= limit);
}

fn describe_rates(requests: &Counts, seconds: f64) -> String {
    let rates: Vec<_> = requests
        .reads
        .iter()
        .chain(&requests.writes)
        .map(|(what, count)| format!("{:.2} {what}", *count as f64 / seconds))
        .collect();
    if rates.is_empty() {
        "none".to_owned()
    } else {
        rates.join(", ")
    }
}

/// Prints the measurements of all starts.
pub(crate) fn print_starts(starts: &[Start]) {
    println!(
        "\n### Starts\n\n| | settled after | CPU until then | most memory | reads | writes |\n|---|---|---|---|---|---|"
    );
    for start in starts {
        println!(
            "| {} | {:.1} s | {:.1} s | {:.0} MiB | {} | {} |",
            start.what,
            start.settled.as_secs_f64(),
            start.cpu / 1e6,
            start.peak,
            describe(&start.requests.reads),
            describe(&start.requests.writes)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_reads_and_writes() {
        let requests = |what: &str| [(what.to_owned(), 30)].into();
        let both = Counts {
            reads: requests("get secrets"),
            writes: requests("patch clusters/status"),
        };
        assert_eq!(
            describe_rates(&both, 60.0),
            "0.50 get secrets, 0.50 patch clusters/status"
        );
        assert_eq!(describe_rates(&Default::default(), 60.0), "none");
    }
}
