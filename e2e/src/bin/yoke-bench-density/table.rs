//! Rows of times.

use std::time::Duration;

/// Prints the head of a table of times.
pub(crate) fn print_head(title: &str, first: &str) {
    println!("\n### {title}\n\n| {first} | number | min | median | p99 | max |\n|---|---|---|---|---|---|");
}

/// Prints how long each of many took.
pub(crate) fn print_row(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let seconds = |time: Option<&Duration>| time.map_or("-".to_owned(), |time| format!("{:.2} s", time.as_secs_f64()));
    let at = |hundredths: usize| times.get((times.len() * hundredths / 100).min(times.len().saturating_sub(1)));
    println!(
        "| {what} | {} | {} | {} | {} | {} |",
        times.len(),
        seconds(times.first()),
        seconds(at(50)),
        seconds(at(99)),
        seconds(times.last())
    );
}
