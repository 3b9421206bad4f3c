//! Processes of a store: started on their own cores, and what they use.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Cores, counted from 0.
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
    /// Those that this process may use.
    pub(crate) fn available() -> Result<Self> {
        let set = sched_getaffinity(None).context("asking for the cores of this process")?;
        Ok(Self((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()))
    }
}

/// Keeps this process on the given cores; to be called before it has threads.
pub(crate) fn pin_self(cores: &Cores) -> Result<()> {
    let mut set = CpuSet::new();
    cores.0.iter().for_each(|core| set.set(*core));
    sched_setaffinity(None, &set).with_context(|| format!("keeping the load on cores {cores}"))
}

/// What processes have used since they were started.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// Processor time in microseconds.
    pub(crate) cpu: f64,
    /// Bytes that they made the kernel write to disk.
    pub(crate) written: f64,
    /// Anonymous memory that they have now, in MiB.
    pub(crate) memory: f64,
}

impl Used {
    /// What some processes have used together.
    pub(crate) fn by(ids: &[i32]) -> Result<Self> {
        let mut all = Self::default();
        for id in ids {
            let process = procfs::process::Process::new(*id)?;
            // In nanoseconds, where the times of the whole process come in hundredths of a second. Of these servers no
            // thread ends while they are measured.
            for task in process.tasks()? {
                all.cpu += task?.schedstat()?.sum_exec_runtime as f64 / 1e3;
            }
            all.written += process.io()?.write_bytes as f64;
        }
        all.memory = memory(ids)?;
        Ok(all)
    }
}

/// Anonymous memory that processes have now, in MiB.
fn memory(ids: &[i32]) -> Result<f64> {
    let mut all = 0.0;
    for id in ids {
        let status = procfs::process::Process::new(*id)?.status()?;
        all += status.rssanon.context("no RssAnon")? as f64 / 1024.0;
    }
    Ok(all)
}

/// Processor time that this process has used, in microseconds.
pub(crate) fn own_cpu() -> Result<f64> {
    Ok(Used::by(&[i32::try_from(std::process::id())?])?.cpu)
}

/// Processor time that the programs have used which this process ran to their end, in microseconds.
pub(crate) fn children_cpu() -> Result<f64> {
    let stat = procfs::process::Process::myself()?.stat()?;
    Ok((stat.cutime + stat.cstime) as f64 * 1e6 / procfs::ticks_per_second() as f64)
}

/// Looks at the memory of processes ten times a second.
pub(crate) struct Peak {
    most: watch::Receiver<f64>,
    _looking: JoinSet<()>,
}

impl Peak {
    /// From now on.
    pub(crate) fn of(ids: Vec<i32>) -> Self {
        let (sender, most) = watch::channel(0.0);
        let mut looking = JoinSet::new();
        looking.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(100));
            // A process that has ended has no memory; what it was is said elsewhere.
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

    /// The most at a time so far, in MiB.
    pub(crate) fn most(&self) -> f64 {
        *self.most.borrow()
    }
}

/// A server process that can be ended and started again with the same arguments.
pub(crate) struct Process {
    arguments: Vec<String>,
    log: PathBuf,
    child: Child,
}

impl Process {
    /// Starts `arguments` on `cores`; the log goes to `log`. It ends with this process, however that ends.
    pub(crate) fn start(cores: &Cores, arguments: &[String], log: &Path) -> Result<Self> {
        let fixed = ["setpriv", "--pdeathsig", "KILL", "taskset", "-c"].map(String::from);
        let arguments = [&fixed[..], &[cores.to_string()], arguments].concat();
        Ok(Self {
            child: spawn(&arguments, log)?,
            log: log.to_owned(),
            arguments,
        })
    }

    /// Ends it by `signal` and waits for its end.
    pub(crate) fn end(&mut self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.id()?).context("a process without an id")?;
        rustix::process::kill_process(pid, signal)?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again after its end.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.child = spawn(&self.arguments, &self.log)?;
        Ok(())
    }

    /// Its process id.
    pub(crate) fn id(&self) -> Result<i32> {
        Ok(i32::try_from(self.child.id())?)
    }

    /// Its process id, and those of what it runs.
    pub(crate) fn family(&self) -> Result<Vec<i32>> {
        let id = self.id()?;
        let mut family = vec![id];
        for task in procfs::process::Process::new(id)?.tasks()? {
            let children = task?.children()?;
            family.extend(children.into_iter().map(u32::cast_signed));
        }
        Ok(family)
    }

    /// An error when it has ended, with the end of its log.
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
        // What it runs would outlive it.
        for id in self.family().unwrap_or_default() {
            if let Some(pid) = Pid::from_raw(id) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        // An error says that it has ended already.
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
