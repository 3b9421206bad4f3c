//! Prints tables of durations and targets.

use std::time::Duration;

/// Prints the head of a table of durations.
pub(crate) fn print_head(title: &str, first: &str) {
    println!("\n### {title}\n\n| {first} | number | min | median | p99 | max |\n|---|---|---|---|---|---|");
}

/// Prints statistics of durations as a row.
pub(crate) fn print_row(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let seconds = |time: Option<&Duration>| time.map_or("-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
    println!(
        "| {what} | {} | {} | {} | {} | {} |",
        times.len(),
        seconds(times.first()),
        seconds(at(&times, 50)),
        seconds(at(&times, 99)),
        seconds(times.last())
    );
}

/// Prints the head of a table of targets.
pub(crate) fn print_targets_head() {
    println!("\n| target | measured | |\n|---|---|---|");
}

/// Prints a target beside the measured value.
pub(crate) fn print_target(aim: &str, measured: &str, is_met: bool) {
    println!("| {aim} | {measured} | {} |", if is_met { "met" } else { "missed" });
}

/// Prints a target for a percentile of durations.
pub(crate) fn print_time_target(what: &str, hundredths: usize, limit: Duration, times: &[Duration]) {
    let mut times = times.to_vec();
    times.sort();
    if let Some(time) = at(&times, hundredths) {
        let measured = format!("{:.2} s of {}", time.as_secs_f64(), times.len());
        print_target(
            &format!("{what}: p{hundredths} in {limit:?}"),
            &measured,
            *time <= limit,
        );
    }
}

/// The given percentile of sorted durations.
fn at(times: &[Duration], hundredths: usize) -> Option<&Duration> {
    times.get((times.len() * hundredths / 100).min(times.len().saturating_sub(1)))
}
