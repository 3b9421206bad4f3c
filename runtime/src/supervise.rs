//! Joins all tasks of a process. If a task exits by itself, the process exits with an error that
//! names the task.
//!
//! ```text
//!  run ── SIGTERM, SIGINT ───────┐
//!      ── a task ends, panics ───┴─▶ drain ─▶ wait for tasks, at most `grace` ─▶ abort the rest
//! ```
//!
//! Guarantees: after [`Supervisor::run`] no task runs. It returns `Ok` only if a signal started the
//! drain and every task then ended without an error within the grace period.
//!
//! Caveats: a second signal ends the grace period early. A task that blocks its thread cannot be
//! aborted.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{Id, JoinError, JoinSet};

use crate::drain::{Drain, DrainTrigger};

/// Error of a task.
pub type TaskError = Box<dyn Error + Send + Sync>;

/// The process did not exit normally.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The signal handlers cannot be installed.
    #[error("listening for SIGTERM and SIGINT")]
    Signals(#[source] std::io::Error),
    /// A task that must run until the drain ended earlier, without an error.
    #[error("task {task} exited unexpectedly")]
    Ended {
        /// Name of the task.
        task: &'static str,
    },
    /// A task failed.
    #[error("task {task} failed")]
    Failed {
        /// Name of the task.
        task: &'static str,
        /// Error of the task.
        #[source]
        source: TaskError,
    },
    /// A task panicked.
    #[error("task {task} panicked")]
    Panicked {
        /// Name of the task.
        task: &'static str,
        /// The panic.
        #[source]
        source: JoinError,
    },
    /// Some tasks had not ended when the grace period was over.
    #[error("tasks {} did not end within {grace:?}", tasks.join(", "))]
    Unfinished {
        /// Names of the tasks, sorted.
        tasks: Vec<&'static str>,
        /// The grace period.
        grace: Duration,
    },
}

/// Owns all tasks of a process.
#[derive(Debug)]
pub struct Supervisor {
    tasks: JoinSet<Result<(), TaskError>>,
    running: HashMap<Id, Running>,
    trigger: DrainTrigger,
    drain: Drain,
    grace: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    name: &'static str,
    background: bool,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// Waits for `work`, which must finish before the process can start its tasks. `None` if SIGTERM or
/// SIGINT arrives first.
pub async fn until_signal<T>(work: impl Future<Output = T>) -> Result<Option<T>, SuperviseError> {
    let mut signals = Signals::listen().map_err(SuperviseError::Signals)?;
    Ok(tokio::select! {
        () = signals.next() => None,
        result = work => Some(result),
    })
}

impl Supervisor {
    /// Creates a supervisor without tasks. After the drain has started, tasks have `grace` to end.
    pub fn new(grace: Duration) -> Self {
        let (trigger, drain) = DrainTrigger::new();
        Self {
            tasks: JoinSet::new(),
            running: HashMap::new(),
            trigger,
            drain,
            grace,
        }
    }

    /// The drain signal that tasks must observe.
    pub fn drain(&self) -> Drain {
        self.drain.clone()
    }

    /// Starts a task that runs until the drain starts and then ends within the grace period.
    pub fn spawn<F, E>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<TaskError>,
    {
        self.add(name, false, task);
    }

    /// Starts a task that never ends by itself. It is aborted when all tasks of
    /// [`Supervisor::spawn`] have ended.
    pub fn spawn_background<F, E>(&mut self, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<TaskError>,
    {
        self.add(name, true, task);
    }

    /// Runs until SIGTERM or SIGINT arrives or a task ends, then drains and joins all tasks. The
    /// first failure is returned; later ones are logged.
    pub async fn run(self) -> Result<(), SuperviseError> {
        let mut signals = Signals::listen().map_err(SuperviseError::Signals)?;
        self.run_until(async move || signals.next().await).await
    }

    /// Like [`Supervisor::run`], with `stop` in place of the process's signals. The first
    /// completion of `stop` starts the drain; the second one ends the grace period early.
    pub async fn run_until(mut self, mut stop: impl AsyncFnMut()) -> Result<(), SuperviseError> {
        let first = tokio::select! {
            () = stop() => None,
            Some(ended) = self.tasks.join_next_with_id() => Some(self.failure_while_running(ended)),
        };
        self.trigger.start();
        tracing::info!("process is draining");
        let grace = self.grace;
        let unfinished = tokio::select! {
            failure = self.join_foreground() => failure,
            () = tokio::time::sleep(grace) => Some(self.unfinished()),
            () = stop() => Some(self.unfinished()),
        };
        self.tasks.shutdown().await;
        match (first, unfinished) {
            (Some(first), later) => {
                if let Some(later) = later {
                    log_error(&later);
                }
                Err(first)
            }
            (None, Some(failure)) => Err(failure),
            (None, None) => Ok(()),
        }
    }

    fn add<F, E>(&mut self, name: &'static str, background: bool, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<TaskError>,
    {
        let handle = self.tasks.spawn(async move { task.await.map_err(Into::into) });
        self.running.insert(handle.id(), Running { name, background });
    }

    /// Joins the tasks that end by themselves during a drain. Cancel-safe, except that a failure
    /// that was already logged is lost.
    async fn join_foreground(&mut self) -> Option<SuperviseError> {
        let mut first = None;
        while self.running.values().any(|task| !task.background) {
            let Some(ended) = self.tasks.join_next_with_id().await else {
                break;
            };
            let Some(failure) = self.failure_while_draining(ended) else {
                continue;
            };
            log_error(&failure);
            first = first.or(Some(failure));
        }
        first
    }

    fn failure_while_running(&mut self, ended: Result<(Id, Result<(), TaskError>), JoinError>) -> SuperviseError {
        let (task, failure) = self.remove_ended(ended);
        failure.unwrap_or(SuperviseError::Ended { task: task.name })
    }

    fn failure_while_draining(
        &mut self,
        ended: Result<(Id, Result<(), TaskError>), JoinError>,
    ) -> Option<SuperviseError> {
        self.remove_ended(ended).1
    }

    fn remove_ended(
        &mut self,
        ended: Result<(Id, Result<(), TaskError>), JoinError>,
    ) -> (Running, Option<SuperviseError>) {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task = self
            .running
            .remove(&id)
            .expect("every task in the set has been named by `add`");
        let failure = match ended {
            Ok((_, Ok(()))) => None,
            Ok((_, Err(source))) => Some(SuperviseError::Failed {
                task: task.name,
                source,
            }),
            Err(source) => Some(SuperviseError::Panicked {
                task: task.name,
                source,
            }),
        };
        (task, failure)
    }

    fn unfinished(&self) -> SuperviseError {
        let mut tasks: Vec<_> = self
            .running
            .values()
            .filter(|task| !task.background)
            .map(|task| task.name)
            .collect();
        tasks.sort_unstable();
        SuperviseError::Unfinished {
            tasks,
            grace: self.grace,
        }
    }
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn log_error(error: &SuperviseError) {
    tracing::error!(error = error as &dyn Error, "task failed");
}

#[cfg(test)]
#[path = "supervise/tests.rs"]
mod tests;
