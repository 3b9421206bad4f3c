//! Resource usage of processes.

use anyhow::{Context as _, Result};

/// Resource usage of a process since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// CPU time in milliseconds.
    pub(crate) cpu: f64,
    /// Current anonymous memory, in KiB.
    pub(crate) memory: f64,
}

impl Used {
    pub(crate) fn by(id: u32) -> Result<Self> {
        let process = procfs::process::Process::new(i32::try_from(id)?)?;
        let mut cpu = 0.0;
        // The times of threads are in nanoseconds; the times of the process are in hundredths of a
        // second. The sum is sufficient because no busy thread of these processes exits.
        for task in process.tasks()? {
            cpu += task?.schedstat()?.sum_exec_runtime as f64 / 1e6;
        }
        let memory = process.status()?.rssanon.context("no RssAnon")? as f64;
        Ok(Self { cpu, memory })
    }
}
