//! What a process uses.

use std::time::Duration;

use anyhow::{Context as _, Result};
use procfs::process::Process;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a process has used up to now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Used {
    /// Processor time in milliseconds.
    pub(crate) cpu: f64,
    /// Anonymous memory, in MiB.
    pub(crate) memory: f64,
    /// Its share of all memory that it has, in MiB.
    pub(crate) share: f64,
}

impl Used {
    /// What the process has used.
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

/// Looks at the memory of a process ten times a second.
pub(crate) struct Peak {
    most: watch::Receiver<f64>,
    _looking: JoinSet<()>,
}

impl Peak {
    /// From now on.
    pub(crate) fn of(id: u32) -> Self {
        let (sender, most) = watch::channel(0.0);
        let mut looking = JoinSet::new();
        looking.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            // A process that has ended has no memory; what it was is said elsewhere.
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

    /// The most up to now, in MiB.
    pub(crate) fn most(&self) -> f64 {
        *self.most.borrow()
    }
}
