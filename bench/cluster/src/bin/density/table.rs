//! Prints tables of durations.

use std::time::Duration;

use yoke_bench_harness::targets;
use yoke_cluster_bench::percentile;

/// Prints the head of a table of durations.
pub(crate) fn print_head(title: &str, first: &str) {
    println!("\n### {title}\n\n| {first} | number | min | median | p99 | max |\n|---|---|---|---|---|---|");
}

/// Prints statistics of durations as a row.
pub(crate) fn print_row(what: &str, times: &[Duration]) {
    let [min, median, p99, max] = [0, 50, 99, 100].map(|hundredths| {
        let time = percentile(times, hundredths);
        time.map_or("-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()))
    });
    println!("| {what} | {} | {min} | {median} | {p99} | {max} |", times.len());
}

/// Prints a target for a percentile of durations.
pub(crate) fn print_time_target(what: &str, hundredths: usize, limit: Duration, times: &[Duration]) {
    if let Some(time) = percentile(times, hundredths) {
        let measured = format!("{:.2} s of {}", time.as_secs_f64(), times.len());
        targets::print(&format!("{what}: p{hundredths} in {limit:?}"), &measured, time <= limit);
    }
}
