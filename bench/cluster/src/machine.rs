//! Resource usage of the whole computer, from `/proc`.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Clock ticks per second in `/proc/stat`. Linux fixes them at 100 on every architecture that Yoke
/// runs on.
const TICKS: u64 = 100;

/// CPU time that the whole computer has used, without idle time.
pub fn machine_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    let line = stat.lines().next().context("an empty stat")?;
    let ticks = line.split_whitespace().skip(1).map(str::parse::<u64>);
    let ticks = ticks.collect::<Result<Vec<_>, _>>().context("a time is not a number")?;
    // proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
    let used = ticks
        .iter()
        .take(8)
        .enumerate()
        .filter(|(at, _)| ![3, 4, 7].contains(at));
    let used: u64 = used.map(|(_, ticks)| ticks).sum();
    Ok(Duration::from_millis(used * 1000 / TICKS))
}

/// Memory of the computer that is not available, in bytes.
pub fn taken_memory() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let kibibytes = |name: &str| -> Result<u64> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .context("no such line")?;
        let number = line.trim_start_matches(':').trim().trim_end_matches(" kB");
        number.parse().context("memory is not a number")
    };
    Ok(kibibytes("MemTotal")?.saturating_sub(kibibytes("MemAvailable")?) * 1024)
}

#[cfg(test)]
mod tests {
    use yoke_bench_harness::usage::cpu_time;

    use super::*;

    #[test]
    fn the_computer_uses_at_least_what_this_process_uses() {
        assert!(taken_memory().unwrap() > 0);
        assert!(machine_time().unwrap() > cpu_time(std::process::id()).unwrap());
    }
}
