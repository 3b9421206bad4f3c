//! Keeps the process of one service running. It restarts the process after a delay, which grows
//! while the process keeps exiting early.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Service;
use super::process::Process;

const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// Time for a process to exit after SIGTERM.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(15);
/// A process that ran this long is not in a crash loop.
const STEADY: Duration = Duration::from_secs(10);
/// Capacity of the channel. Orders are few, and each is answered before the next is sent.
const ORDERS: usize = 4;

/// State of a service's process.
#[derive(Debug, Clone, Default)]
pub(super) struct State {
    pub(super) pid: Option<u32>,
    pub(super) restarts: u32,
    /// How the last process exited, or why none could be started.
    pub(super) last_end: Option<String>,
}

#[derive(Debug)]
enum Order {
    /// Stop the process within this time, and end the runner.
    Stop(Duration, oneshot::Sender<()>),
    Restart(oneshot::Sender<()>),
    /// End the runner without touching the process.
    Detach,
}

/// Handle of a runner task.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) service: Service,
    state: watch::Receiver<State>,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

struct Files {
    log: PathBuf,
    record: PathBuf,
}

impl Runner {
    /// Keeps `service` running. Starts with the process in `record`, if that process runs the same
    /// service.
    pub(super) fn spawn(service: Service, log: PathBuf, record: PathBuf) -> Self {
        let (state_sender, state) = watch::channel(State::default());
        let (orders, receiver) = mpsc::channel(ORDERS);
        let task = tokio::spawn(run_service(
            service.clone(),
            Files { log, record },
            receiver,
            state_sender,
        ));
        Self {
            service,
            state,
            orders,
            task,
        }
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Stops the process, by force after `limit`, and ends the runner.
    pub(super) async fn stop(self, limit: Duration) {
        let (done, wait) = oneshot::channel();
        // An error means that the runner has ended already.
        let _ = self.orders.send(Order::Stop(limit, done)).await;
        let _ = wait.await;
        let _ = self.task.await;
    }

    /// Stops the process. The runner starts it again.
    pub(super) async fn restart(&self) {
        let (done, wait) = oneshot::channel();
        let _ = self.orders.send(Order::Restart(done)).await;
        let _ = wait.await;
    }

    /// Ends the runner and leaves the process running.
    pub(super) async fn detach(self) {
        let _ = self.orders.send(Order::Detach).await;
        let _ = self.task.await;
    }
}

async fn run_service(service: Service, files: Files, mut orders: mpsc::Receiver<Order>, state: watch::Sender<State>) {
    let mut adopted = Process::adopt(&files.record);
    if adopted
        .as_ref()
        .is_some_and(|process| !process.service().same_process(&service))
        && let Some(process) = adopted.take()
    {
        process.stop(STOP_LIMIT).await;
    }
    let mut pause = PAUSE_MIN;
    loop {
        let started = Instant::now();
        let process = match adopted.take() {
            Some(process) => Ok(process),
            None => Process::start(&service, &files.log, &files.record),
        };
        let mut asked = false;
        let end = match process {
            Err(error) => format!("{error:#}"),
            Ok(mut process) => {
                state.send_modify(|state| state.pid = Some(process.pid()));
                let order = tokio::select! {
                    end = process.wait() => Err(end),
                    order = orders.recv() => Ok(order),
                };
                match order {
                    Err(end) => end,
                    Ok(Some(Order::Restart(done))) => {
                        process.stop(STOP_LIMIT).await;
                        asked = true;
                        let _ = done.send(());
                        "restarted on request".to_owned()
                    }
                    Ok(Some(Order::Stop(limit, done))) => {
                        process.stop(limit).await;
                        let _ = std::fs::remove_file(&files.record);
                        let _ = done.send(());
                        return;
                    }
                    Ok(Some(Order::Detach) | None) => return,
                }
            }
        };
        state.send_modify(|state| {
            state.pid = None;
            state.restarts += 1;
            state.last_end = Some(end);
        });
        if asked || started.elapsed() > STEADY {
            pause = PAUSE_MIN;
        }
        if !wait_to_restart(if asked { Duration::ZERO } else { pause }, &mut orders).await {
            return;
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Waits before a restart. Returns false if an order ends the runner instead.
async fn wait_to_restart(delay: Duration, orders: &mut mpsc::Receiver<Order>) -> bool {
    tokio::select! {
        () = tokio::time::sleep(delay) => true,
        order = orders.recv() => match order {
            Some(Order::Restart(done)) => {
                let _ = done.send(());
                true
            }
            Some(Order::Stop(_, done)) => {
                let _ = done.send(());
                false
            }
            Some(Order::Detach) | None => false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::Probe;

    fn service(command: &[&str]) -> Service {
        Service {
            name: "x".into(),
            command: command.iter().map(ToString::to_string).collect(),
            env: Default::default(),
            probe: Probe::Command(vec!["true".into()]),
            stamp: String::new(),
        }
    }

    async fn until(runner: &mut Runner, what: impl Fn(&State) -> bool) -> State {
        let wait = runner.state.wait_for(|state| what(state));
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .expect("the state is reached")
            .unwrap()
            .clone()
    }

    #[tokio::test]
    async fn a_killed_process_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut runner = Runner::spawn(
            service(&["sleep", "60"]),
            dir.path().join("log"),
            dir.path().join("record"),
        );
        let first = until(&mut runner, |state| state.pid.is_some()).await.pid.unwrap();
        let pid = rustix::process::Pid::from_raw(first as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let second = until(&mut runner, |state| state.pid.is_some_and(|pid| pid != first)).await;
        assert_eq!(second.restarts, 1);
        runner.stop(STOP_LIMIT).await;
    }

    #[tokio::test]
    async fn a_process_left_behind_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let files = || (dir.path().join("log"), dir.path().join("record"));
        let mut runner = Runner::spawn(service(&["sleep", "60"]), files().0, files().1);
        let pid = until(&mut runner, |state| state.pid.is_some()).await.pid;
        runner.detach().await;
        let mut next = Runner::spawn(service(&["sleep", "60"]), files().0, files().1);
        assert_eq!(until(&mut next, |state| state.pid.is_some()).await.pid, pid);
        next.detach().await;
        // A different command under the same name replaces the process.
        let mut other = Runner::spawn(service(&["sleep", "61"]), files().0, files().1);
        assert_ne!(until(&mut other, |state| state.pid.is_some()).await.pid, pid);
        other.stop(STOP_LIMIT).await;
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_reported_and_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut runner = Runner::spawn(
            service(&["/nowhere/x"]),
            dir.path().join("log"),
            dir.path().join("record"),
        );
        let state = until(&mut runner, |state| state.last_end.is_some()).await;
        assert!(state.last_end.unwrap().contains("starting /nowhere/x"));
        runner.stop(STOP_LIMIT).await;
    }
}
