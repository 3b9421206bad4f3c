//! The result table: measured values beside their targets.

use crate::Times;

/// The upper limit of a value, and the value that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Target {
    limit: f64,
    unit: &'static str,
    measured: f64,
    failed: u64,
}

impl Target {
    /// A failed operation or a NaN misses the target.
    fn is_met(self) -> bool {
        self.failed == 0 && self.measured <= self.limit
    }
}

/// The quantile that a target limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantile {
    /// The 99th percentile.
    P99,
    /// The maximum.
    Longest,
}

#[derive(Debug)]
struct Row {
    what: String,
    measured: String,
    target: Option<(Target, &'static str)>,
}

/// All rows, in the order in which they were added.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Adds a row of free text.
    pub fn text(&mut self, what: &str, measured: String) {
        self.push(what, measured, None);
    }

    /// Adds a row with one number and its upper limit.
    pub fn number(&mut self, what: &str, value: f64, unit: &'static str, limit: Option<f64>) {
        self.numbers(what, &[value], unit, limit);
    }

    /// Adds a row with several numbers. The limit applies to each of them.
    pub fn numbers(&mut self, what: &str, values: &[f64], unit: &'static str, limit: Option<f64>) {
        let shown: Vec<_> = values.iter().map(|value| to_text(*value)).collect();
        // A NaN wins over all numbers, so that the target is missed.
        let more = |most: f64, value: f64| if most.is_nan() || value <= most { most } else { value };
        let most = values.iter().copied().fold(f64::MIN, more);
        let target = limit.map(|limit| Target {
            limit,
            unit,
            measured: most,
            failed: 0,
        });
        let unit = if unit.is_empty() {
            String::new()
        } else {
            format!(" {unit}")
        };
        self.push(
            what,
            format!("{}{unit}", shown.join(" / ")),
            target.map(|target| (target, "")),
        );
    }

    /// Adds a row of durations, with an upper limit for one quantile in milliseconds.
    pub fn times(&mut self, what: &str, times: &Times, limit: Option<(Quantile, f64)>) {
        let [median, p99, longest] = times.quantiles([0.5, 0.99, 1.0]);
        let mut measured = format!(
            "{} / {} / {} ms ({})",
            to_text(median),
            to_text(p99),
            to_text(longest),
            times.succeeded()
        );
        if times.failed() > 0 {
            measured += &format!(", **{} failed**", times.failed());
        }
        let target = limit.map(|(quantile, limit)| {
            let (measured, word) = match quantile {
                Quantile::P99 => (p99, "p99 "),
                Quantile::Longest => (longest, "longest "),
            };
            let (unit, failed) = ("ms", times.failed());
            (
                Target {
                    limit,
                    unit,
                    measured,
                    failed,
                },
                word,
            )
        });
        self.push(what, measured, target);
    }

    fn push(&mut self, what: &str, measured: String, target: Option<(Target, &'static str)>) {
        eprintln!("{what}: {measured}");
        self.rows.push(Row {
            what: what.to_owned(),
            measured,
            target,
        });
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "| | measured | target | |\n|---|---|---|---|")?;
        for Row { what, measured, target } in &self.rows {
            let (aim, verdict) = match target {
                None => (String::new(), ""),
                Some((target, word)) => {
                    let verdict = if target.is_met() { "met" } else { "missed" };
                    let text = format!("{word}≤ {} {}", target.limit, target.unit);
                    (text.trim_end().to_owned(), verdict)
                }
            };
            writeln!(f, "| {what} | {measured} | {aim} | {verdict} |")?;
        }
        Ok(())
    }
}

/// A number with a sensible count of digits.
fn to_text(value: f64) -> String {
    let digits = match value.abs() {
        size if size == size.round() => 0,
        size if size < 1.0 => 3,
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn times(milliseconds: &[u64]) -> Times {
        let times = milliseconds.iter().copied().map(Duration::from_millis);
        Times::from(times.collect::<Vec<_>>())
    }

    #[test]
    fn the_numbers_say_whether_a_target_is_met() {
        let mut table = Table::default();
        table.number("memory", 60.04, "KiB", Some(60.0));
        table.numbers("memory", &[9.0, 10.0], "KiB", Some(10.0));
        table.numbers("nothing seen", &[f64::NAN, 0.5], "x", Some(2.0));
        table.number("cut", 0.0, "", Some(0.0));
        table.times("new", &times(&[1, 2, 101]), Some((Quantile::P99, 100.0)));
        table.times("new", &times(&[1, 2, 100]), Some((Quantile::P99, 100.0)));
        let mut failing = times(&[1]);
        failing.fail();
        table.times("gone", &failing, Some((Quantile::Longest, 1000.0)));
        table.text("noise", "much".to_owned());
        let expected = "| | measured | target | |\n|---|---|---|---|\n\
            | memory | 60.0 KiB | ≤ 60 KiB | missed |\n\
            | memory | 9 / 10 KiB | ≤ 10 KiB | met |\n\
            | nothing seen | NaN / 0.500 x | ≤ 2 x | missed |\n\
            | cut | 0 | ≤ 0 | met |\n\
            | new | 2 / 101 / 101 ms (3) | p99 ≤ 100 ms | missed |\n\
            | new | 2 / 100 / 100 ms (3) | p99 ≤ 100 ms | met |\n\
            | gone | 1 / 1 / 1 ms (1), **1 failed** | longest ≤ 1000 ms | missed |\n\
            | noise | much |  |  |\n";
        assert_eq!(table.to_string(), expected);
    }
}
