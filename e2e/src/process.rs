//! Resource usage of processes, from `/proc`.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Clock ticks per second in `/proc/PID/stat`. Linux fixes them at 100 on every architecture that
/// Yoke runs on.
const TICKS: u64 = 100;

/// CPU time that a process has used, user and system.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("reading the times of {pid}"))?;
    // proc(5): fields 14 and 15. The second field, a name in parentheses, may contain anything, so
    // fields are counted from its end.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let tick = |index: usize| -> Result<u64> { Ok(fields.get(index).context("short stat line")?.parse()?) };
    Ok(Duration::from_millis((tick(11)? + tick(12)?) * 1000 / TICKS))
}

/// Pids of all processes on this computer.
pub fn list_pids() -> Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context("listing the processes")?.flatten();
    Ok(entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// Pids of a process and of the children of its first thread.
pub fn family(pid: u32) -> Result<Vec<u32>> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.with_context(|| format!("reading the children of {pid}"))?;
    let children = children.split_whitespace().map(str::parse);
    let mut family = vec![pid];
    family.extend(
        children
            .collect::<Result<Vec<u32>, _>>()
            .context("a child is not a number")?,
    );
    Ok(family)
}

/// Anonymous resident memory of a process, in bytes.
pub fn anonymous_memory(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("reading the memory of {pid}"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .context("no RssAnon")?;
    let kibibytes: u64 = line
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .context("RssAnon is not a number")?;
    Ok(kibibytes * 1024)
}

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
    use super::*;

    #[test]
    fn own_process_has_used_something() {
        let pid = std::process::id();
        assert!(anonymous_memory(pid).unwrap() > 0);
        cpu_time(pid).unwrap();
        assert!(taken_memory().unwrap() > anonymous_memory(pid).unwrap());
        assert!(machine_time().unwrap() > cpu_time(pid).unwrap());
    }
}
