//! Resource usage of a process.

use std::time::Duration;

use anyhow::{Context as _, Result};
use procfs::process::Process;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Resource usage of a process since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// CPU time in milliseconds.
    pub(crate) cpu: f64,
    /// Current anonymous memory, in MiB.
    pub(crate) memory: f64,
    /// Proportional set size (PSS), in MiB: shared pages are divided among the processes that map
    /// them.
    pub(crate) share: f64,
}

impl Used {
    pub(crate) fn by(id: u32) -> Result<Self> {
        let process = Process::new(i32::try_from(id)?)?;
        let stat = process.stat()?;
        let rollup = process.smaps_rollup()?;
        let map = rollup.memory_map_rollup.0.first().context("no memory")?;
        let share = map.extension.map.get("Pss").copied().context("no Pss")?;
        Ok(Self {
            cpu: (stat.utime + stat.stime) as f64 * 1000.0 / procfs::ticks_per_second() as f64,
            memory: memory(id)?,
            share: share as f64 / f64::from(1 << 20),
        })
    }
}

fn memory(id: u32) -> Result<f64> {
    let status = Process::new(i32::try_from(id)?)?.status()?;
    Ok(status.rssanon.context("no RssAnon")? as f64 / 1024.0)
}

/// Records the maximum memory of a process. Reads it ten times a second.
pub(crate) struct Peak {
    most: watch::Receiver<f64>,
    _looking: JoinSet<()>,
}

impl Peak {
    /// Starts to record.
    pub(crate) fn of(id: u32) -> Self {
        let (sender, most) = watch::channel(0.0);
        let mut looking = JoinSet::new();
        looking.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            // A process that has exited has no memory. Other code reports why it exited.
            while let Ok(memory) = memory(id) {
                sender.send_modify(|most: &mut f64| *most = memory.max(*most));
                tick.tick().await;
            }
        });
        Self {
            most,
            _looking: looking,
        }
    }

    /// The maximum so far, in MiB.
    pub(crate) fn most(&self) -> f64 {
        *self.most.borrow()
    }
}
