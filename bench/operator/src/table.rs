//! Prints the result tables.

use std::time::Duration;

use crate::audit::{Requests, describe};
use crate::usage::Used;

/// Targets for the operator at rest with all Clusters: memory in MiB, and CPU time in milliseconds
/// a second.
const MEMORY: f64 = 150.0;
const CPU: f64 = 20.0;
/// Target for the time until the operator is settled after a kill, in seconds.
const SETTLED: f64 = 30.0;

/// Measurements over an interval at rest.
pub(crate) struct SleepState {
    pub(crate) clusters: usize,
    pub(crate) awake: usize,
    pub(crate) length: Duration,
    pub(crate) used: (Used, Used),
    pub(crate) api: (Used, Used),
    pub(crate) requests: (Requests, Requests),
}

/// Measurements of a start of the operator.
pub(crate) struct Start {
    pub(crate) what: String,
    pub(crate) settled: Duration,
    /// CPU time until the operator was settled, in milliseconds.
    pub(crate) cpu: f64,
    /// Maximum memory until the operator was settled, in MiB.
    pub(crate) peak: f64,
    pub(crate) reads: Requests,
    pub(crate) writes: Requests,
}

/// Prints resource usage and requests of the operator at rest.
pub(crate) fn print_rests(rests: &[SleepState]) {
    println!(
        "\n### At rest\n\n| Clusters | awake | memory, anonymous | PSS | CPU | CPU of kube-apiserver | requests a second |\n|---|---|---|---|---|---|---|"
    );
    for rest in rests {
        let seconds = rest.length.as_secs_f64();
        let rate = |used: (Used, Used)| (used.1.cpu - used.0.cpu) / seconds;
        println!(
            "| {} | {} | {:.1} MiB | {:.1} MiB | {:.1} ms/s | {:.1} ms/s | {} |",
            rest.clusters,
            rest.awake,
            rest.used.1.memory,
            rest.used.1.share,
            rate(rest.used),
            rate(rest.api),
            describe_rates(&rest.requests, seconds)
        );
    }
}

/// Prints the targets beside the last measured values.
pub(crate) fn print_targets(rests: &[SleepState], restart: Option<&Start>) {
    let (Some(first), Some(last)) = (rests.first(), rests.last()) else {
        return;
    };
    let more = (last.used.1.memory - first.used.1.memory) * 1024.0 / last.clusters.max(1) as f64;
    let cpu = (last.used.1.cpu - last.used.0.cpu) / last.length.as_secs_f64();
    println!("\nEach Cluster adds {more:.1} KiB.\n\n| target | measured | |\n|---|---|---|");
    print_target("memory in MiB", MEMORY, last.used.1.memory);
    print_target("CPU in ms/s", CPU, cpu);
    if let Some(restart) = restart {
        let writes = restart.writes.values().sum::<u64>();
        print_target(
            "seconds until settled after kill -9",
            SETTLED,
            restart.settled.as_secs_f64(),
        );
        print_target("writes until then", 0.0, writes as f64);
    }
}

fn print_target(what: &str, limit: f64, measured: f64) {
    let met = if measured <= limit { "met" } else { "missed" };
    println!("| {what}, at most {limit} | {measured:.1} | {met} |");
}

fn describe_rates((reads, writes): &(Requests, Requests), seconds: f64) -> String {
    let rates: Vec<_> = reads
        .iter()
        .chain(writes)
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
            start.cpu / 1000.0,
            start.peak,
            describe(&start.reads),
            describe(&start.writes)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_reads_and_writes() {
        let requests = |what: &str| Requests::from([(what.to_owned(), 30)]);
        let both = (requests("get secrets"), requests("patch clusters/status"));
        assert_eq!(
            describe_rates(&both, 60.0),
            "0.50 get secrets, 0.50 patch clusters/status"
        );
        assert_eq!(describe_rates(&Default::default(), 60.0), "none");
    }
}
