//! Processes of this computer, from `/proc`.

use anyhow::{Context as _, Result};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_memory() {
        let pid = std::process::id();
        assert!(anonymous_memory(pid).unwrap() > 0);
    }
}
