//! The table: a row for each control plane, and a column for each process.

use std::time::Duration;

use yoke_bench_harness::Usage;

/// The columns. The last one is not part of a control plane, so the sums leave it out.
pub(super) const COLUMNS: [&str; 5] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "store",
    "nats-server",
];
const OUTSIDE: usize = 4;

/// Resource usage of a control plane, by column; `None` if the control plane has no such process.
pub(super) type Uses = [Option<Usage>; COLUMNS.len()];

/// The rows of the table.
#[derive(Debug, Default)]
pub(super) struct Report {
    rows: String,
}

impl Report {
    /// Adds a row for the difference in usage over an interval.
    pub(super) fn add(&mut self, label: &str, before: &Uses, after: &Uses, time: Duration) {
        let (mut cpu, mut memory, mut cells) = (0.0, 0.0, String::new());
        for (column, (before, after)) in before.iter().zip(after).enumerate() {
            let (Some(before), Some(after)) = (before, after) else {
                cells += " – |";
                continue;
            };
            let rate = (after.cpu - before.cpu) / 1e3 / time.as_secs_f64();
            cells += &format!(" {rate:.1}, {:.0} |", after.memory);
            if column != OUTSIDE {
                cpu += rate;
                memory += after.memory;
            }
        }
        self.rows += &format!("| {label} | {cpu:.1}, {memory:.0} |{cells}\n");
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let heads = COLUMNS.join(" | ");
        writeln!(f, "| CPU in ms/s, anonymous memory in MiB | control plane | {heads} |")?;
        writeln!(f, "|{}", "---|".repeat(COLUMNS.len() + 2))?;
        f.write_str(&self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_what_was_used_in_the_time_and_nats_is_not_in_the_sum() {
        let used = |cpu, memory| Some(Usage { cpu, memory });
        let before = [used(1e6, 90.0), used(0.0, 1.0), None, used(5e5, 1.0), used(0.0, 1.0)];
        let after = [
            used(1.02e6, 100.0),
            used(1e4, 30.4),
            None,
            used(5e5, 9.0),
            used(4e4, 5.0),
        ];
        let mut report = Report::default();
        report.add("it", &before, &after, Duration::from_secs(2));
        let expected = "| CPU in ms/s, anonymous memory in MiB | control plane | kube-apiserver | kube-controller-manager | \
            kube-scheduler | store | nats-server |\n|---|---|---|---|---|---|---|\n\
            | it | 15.0, 139 | 10.0, 100 | 5.0, 30 | – | 0.0, 9 | 20.0, 5 |\n";
        assert_eq!(report.to_string(), expected);
    }
}
