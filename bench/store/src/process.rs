//! The processes of a store: starts them on their own cores.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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
        let pid = to_pid(self.id()).context("a process without an id")?;
        rustix::process::kill_process(pid, signal)?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts the process again after it was stopped.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.child = spawn(&self.arguments, &self.log)?;
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The IDs of the process and of its child processes.
    pub(crate) fn family(&self) -> Result<Vec<u32>> {
        let mut family = vec![self.id()];
        for task in procfs::process::Process::new(i32::try_from(self.id())?)?.tasks()? {
            family.extend(task?.children()?);
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
            if let Some(pid) = to_pid(id) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        // An error means that the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn to_pid(id: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(id).ok()?)
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
