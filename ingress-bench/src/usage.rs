//! What processes use.

use anyhow::{Context as _, Result};

/// What a process has used since it was started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// Processor time in milliseconds.
    pub(crate) cpu: f64,
    /// Anonymous memory that it has now, in KiB.
    pub(crate) memory: f64,
}

impl Used {
    /// What the process has used.
    pub(crate) fn by(id: u32) -> Result<Self> {
        let process = procfs::process::Process::new(i32::try_from(id)?)?;
        let mut cpu = 0.0;
        // In nanoseconds, where the times of the whole process come in hundredths of a second. No thread of these processes
        // that does much ends.
        for task in process.tasks()? {
            cpu += task?.schedstat()?.sum_exec_runtime as f64 / 1e6;
        }
        let memory = process.status()?.rssanon.context("no RssAnon")? as f64;
        Ok(Self { cpu, memory })
    }
}
