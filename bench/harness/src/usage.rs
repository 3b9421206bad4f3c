//! Resource usage of processes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use procfs::ProcError;
use procfs::process::Process;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Interval between two reads of the memory by [`Peak`].
const PEAK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of a mebibyte.
const MEBIBYTE: f64 = 1_048_576.0;

/// Resource usage of processes since their start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time in microseconds.
    pub cpu: f64,
    /// Current anonymous memory, in MiB.
    pub memory: f64,
}

impl Usage {
    /// Total resource usage of several processes. The CPU time is that of their current threads, in
    /// steps of nanoseconds. So no busy thread may exit during a measurement.
    pub fn of_threads(ids: &[u32]) -> Result<Self> {
        let mut cpu = 0.0;
        for id in ids {
            for task in process(*id)?.tasks()? {
                match task.and_then(|task| task.schedstat()) {
                    Ok(stat) => cpu += stat.sum_exec_runtime as f64 / 1e3,
                    // A thread may exit between the listing and the read.
                    Err(ProcError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(Self {
            cpu,
            memory: memory(ids)?,
        })
    }

    /// Resource usage of a process. The CPU time includes threads that have exited, in steps of 10
    /// milliseconds.
    pub fn of_process(id: u32) -> Result<Self> {
        Ok(Self {
            cpu: cpu_time(id)?.as_secs_f64() * 1e6,
            memory: memory(&[id])?,
        })
    }
}

fn process(id: u32) -> Result<Process> {
    Ok(Process::new(i32::try_from(id)?)?)
}

/// CPU time of a process and of its threads that have exited, in steps of 10 milliseconds.
pub fn cpu_time(id: u32) -> Result<Duration> {
    let stat = process(id)?.stat()?;
    Ok(to_time(stat.utime + stat.stime))
}

/// CPU time of all child processes of this process that have exited.
pub fn children_cpu_time() -> Result<Duration> {
    let stat = Process::myself()?.stat()?;
    Ok(to_time(u64::try_from(stat.cutime + stat.cstime)?))
}

fn to_time(ticks: u64) -> Duration {
    Duration::from_micros(ticks * 1_000_000 / procfs::ticks_per_second())
}

/// CPU time of the current threads of this process, in microseconds.
pub fn own_cpu() -> Result<f64> {
    Ok(Usage::of_threads(&[std::process::id()])?.cpu)
}

/// Bytes that processes caused to be written to disk.
pub fn written(ids: &[u32]) -> Result<f64> {
    let mut bytes = 0.0;
    for id in ids {
        bytes += process(*id)?.io()?.write_bytes as f64;
    }
    Ok(bytes)
}

/// Proportional set size (PSS) of a process, in MiB: shared pages are divided among the processes
/// that map them.
pub fn proportional_memory(id: u32) -> Result<f64> {
    let rollup = process(id)?.smaps_rollup()?;
    let map = rollup.memory_map_rollup.0.first().context("no memory")?;
    let bytes = map.extension.map.get("Pss").copied().context("no Pss")?;
    Ok(bytes as f64 / MEBIBYTE)
}

/// Current anonymous memory of processes, in MiB.
fn memory(ids: &[u32]) -> Result<f64> {
    let mut all = 0.0;
    for id in ids {
        let kibibytes = process(*id)?.status()?.rssanon.context("no RssAnon")?;
        all += kibibytes as f64 / 1024.0;
    }
    Ok(all)
}

/// Records the maximum of the total memory of processes.
#[derive(Debug)]
pub struct Peak {
    most: watch::Receiver<f64>,
    _reader: JoinSet<()>,
}

impl Peak {
    /// Starts to record. Stops when the value is dropped, or when a process exits.
    pub fn of(ids: Vec<u32>) -> Self {
        let (sender, most) = watch::channel(0.0);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let mut tick = tokio::time::interval(PEAK_INTERVAL);
            // A process that has exited has no memory. Other code reports why it exited.
            while let Ok(memory) = memory(&ids) {
                sender.send_modify(|most: &mut f64| *most = memory.max(*most));
                tick.tick().await;
            }
        });
        Self { most, _reader: reader }
    }

    /// The maximum so far, in MiB.
    pub fn most(&self) -> f64 {
        *self.most.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_has_used_something() {
        let id = std::process::id();
        let used = Usage::of_threads(&[id]).unwrap();
        assert!(used.cpu > 0.0 && used.memory > 0.0);
        assert!(Usage::of_process(id).unwrap().memory > 0.0);
        assert!(proportional_memory(id).unwrap() > 0.0);
        assert!(own_cpu().unwrap() > 0.0 && written(&[id]).unwrap() >= 0.0);
        children_cpu_time().unwrap();
    }
}
