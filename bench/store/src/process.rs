//! The processes of a store: starts them on their own cores, and reads their resource usage.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// CPU core numbers, counted from 0.
#[derive(Debug, Clone)]
pub(crate) struct Cores(Vec<usize>);

impl std::str::FromStr for Cores {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl std::fmt::Display for Cores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

impl Cores {
    /// The cores on which this process may run.
    pub(crate) fn available() -> Result<Self> {
        let set = sched_getaffinity(None).context("asking for the cores of this process")?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()))
    }
}

/// Pins this process to the given cores. Must be called before the process has threads.
pub(crate) fn pin_self(cores: &Cores) -> Result<()> {
    let mut set = CpuSet::new();
    cores.0.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).with_context(|| format!("keeping the load on cores {cores}"))
}

/// Resource usage of processes since their start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// CPU time in microseconds.
    pub(crate) cpu: f64,
    /// Bytes that the processes caused to be written to disk.
    pub(crate) written: f64,
    /// Current anonymous memory, in MiB.
    pub(crate) memory: f64,
}

impl Used {
    /// Total resource usage of several processes.
    pub(crate) fn by(ids: &[i32]) -> Result<Self> {
        let mut all = Self::default();
        for id in ids {
            let process = procfs::process::Process::new(*id)?;
            // The times of threads are in nanoseconds; the times of the process are in hundredths
            // of a second. The sum is sufficient because no thread of these servers exits during a
            // measurement.
            for task in process.tasks()? {
                all.cpu += task?.schedstat()?.sum_exec_runtime as f64 / 1e3;
            }
            all.written += process.io()?.write_bytes as f64;
        }
        all.memory = memory(ids)?;
        Ok(all)
    }
}

/// Current anonymous memory of processes, in MiB.
fn memory(ids: &[i32]) -> Result<f64> {
    let mut all = 0.0;
    for id in ids {
        let status = procfs::process::Process::new(*id)?.status()?;
        all += status.rssanon.context("no RssAnon")? as f64 / 1024.0;
    }
    Ok(all)
}

/// CPU time of this process, in microseconds.
pub(crate) fn own_cpu() -> Result<f64> {
    Ok(Used::by(&[i32::try_from(std::process::id())?])?.cpu)
}

/// CPU time of all child processes that have exited, in microseconds.
pub(crate) fn children_cpu() -> Result<f64> {
    let stat = procfs::process::Process::myself()?.stat()?;
    Ok((stat.cutime + stat.cstime) as f64 * 1e6 / procfs::ticks_per_second() as f64)
}

/// Records the maximum memory of processes. Reads it ten times a second.
pub(crate) struct Peak {
    most: watch::Receiver<f64>,
    _looking: JoinSet<()>,
}

impl Peak {
    /// Starts to record.
    pub(crate) fn of(ids: Vec<i32>) -> Self {
        let (sender, most) = watch::channel(0.0);
        let mut looking = JoinSet::new();
        looking.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            // A process that has exited has no memory. Other code reports why it exited.
            while let Ok(memory) = memory(&ids) {
                sender.send_modify(|most| *most = memory.max(*most));
                tick.tick().await;
            }
        });
        Self {
            most,
            _looking: looking,
        }
    }

    /// The maximum of the total memory so far, in MiB.
    pub(crate) fn most(&self) -> f64 {
        *self.most.borrow()
    }
}

/// A server process that can be stopped and started again with the same arguments.
pub(crate) struct Process {
    arguments: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `arguments` on `cores`, with the output in `log`. The kernel kills the process when
    /// this one exits for any reason.
    pub(crate) fn start(cores: &Cores, arguments: &[String], log: &Path) -> Result<Self> {
        let fixed = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c"].map(String::from);
        let arguments = [&fixed[..], &[cores.to_string()], arguments].concat();
        Ok(Self {
            child: spawn(&arguments, log)?,
            log: log.to_owned(),
            arguments,
        })
    }

    /// Sends `signal` to the process, and waits until it exits.
    pub(crate) fn end(&mut self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.id()?).context("a process without an id")?;
        rustix::process::kill_process(pid, signal)?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts the process again after it was stopped.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.child = spawn(&self.arguments, &self.log)?;
        Ok(())
    }

    pub(crate) fn id(&self) -> Result<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    /// The IDs of the process and of its child processes.
    pub(crate) fn family(&self) -> Result<Vec<i32>> {
        let id = self.id()?;
        let mut family = vec![id];
        for task in procfs::process::Process::new(id)?.tasks()? {
            let children = task?.children()?;
            family.extend(children.into_iter().map(u32::cast_signed));
        }
        Ok(family)
    }

    /// Fails if the process has exited. The error contains the last lines of its log.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(&self.log)?;
            let tail: Vec<_> = log.lines().rev().take(5).collect();
            anyhow::bail!("{} ended with {status}: {}", self.arguments.join(" "), tail.join("\n"));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Child processes would outlive the process, so they are killed first.
        for id in self.family().unwrap_or_default() {
            if let Some(pid) = Pid::from_raw(id) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        // An error means that the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(arguments: &[String], log: &Path) -> Result<Child> {
    let output = std::fs::File::options().create(true).append(true).open(log)?;
    let (program, rest) = arguments.split_first().context("no program")?;
    Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("starting {}", arguments.join(" ")))
}
