//! Keeps one program running. The runner starts the program again after each exit. The delay before
//! a start grows while the program exits early.
//!
//! ```text
//!  start or adopt ─▶ running ──exit───────▶ delay ──▶ start
//!                       │──restart──▶ stopped ──────▶ start
//!                       │──stop─────▶ stopped, the runner ends
//!                       └──detach───▶ running, the runner ends
//! ```

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::process::{Process, terminate};

/// Capacity of the channel. Orders are few, and each is answered before the next is sent.
const ORDERS: usize = 4;

/// A program to keep running.
pub trait Program: Send + 'static {
    /// The type of the process.
    type Process: Process;

    /// Returns a process of an earlier supervisor that still runs the program. The runner calls
    /// this once, before the first start.
    fn adopt(&mut self) -> impl Future<Output = Option<Self::Process>> + Send {
        async { None }
    }

    /// Starts a process, or returns why it cannot be started.
    fn start(&mut self) -> Result<Self::Process, String>;

    /// Reports that the process exited without a request, or could not be started. `end` says how
    /// or why.
    fn report_exit(&mut self, end: &str) {
        let _ = end;
    }
}

/// Times of a runner.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// First delay before a restart. The delay doubles with each early exit.
    pub backoff_min: Duration,
    /// Longest delay before a restart.
    pub backoff_max: Duration,
    /// A process that ran longer is not in a crash loop: the delay starts from the minimum.
    pub stable_after: Duration,
    /// How long a process may take to exit after SIGTERM.
    pub stop_limit: Duration,
    /// Fate of the process when the handle of the runner is dropped.
    pub when_dropped: WhenDropped,
}

/// Fate of a process when the handle of its runner is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDropped {
    /// The runner stops the process.
    Stop,
    /// The process continues, and another supervisor may adopt it.
    Detach,
}

/// State of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// PID of the process, while it runs.
    pub pid: Option<u32>,
    /// Number of exits and failed starts, including restarts on request.
    pub exits: u32,
    /// How the last process exited, or why none could be started.
    pub last_end: Option<String>,
}

/// Handle of the task that keeps a program running.
#[derive(Debug)]
pub struct Runner {
    state: watch::Receiver<State>,
    orders: mpsc::Sender<Order>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
enum Order {
    /// Stop the process within this time, and end the runner.
    Stop(Duration, oneshot::Sender<()>),
    /// Stop the process and start it again.
    Restart(oneshot::Sender<()>),
    /// End the runner without a signal to the process.
    Detach,
}

/// Why the runner does not wait for the process any more.
enum Ended {
    Exited(String),
    Restarting,
    RunnerEnds,
}

impl Runner {
    /// Keeps `program` running.
    pub fn spawn(program: impl Program, policy: Policy) -> Self {
        let (state_sender, state) = watch::channel(State::default());
        let (orders, receiver) = mpsc::channel(ORDERS);
        Self {
            state,
            orders,
            task: tokio::spawn(run(program, policy, receiver, state_sender)),
        }
    }

    /// Returns the state now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Returns a receiver of each state.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Stops the process, with SIGKILL after `limit`, and ends the runner.
    pub async fn stop(self, limit: Duration) {
        let (done, wait) = oneshot::channel();
        // An error means that the runner has ended already.
        let _ = self.orders.send(Order::Stop(limit, done)).await;
        let _ = wait.await;
        let _ = self.task.await;
    }

    /// Stops the process. The runner starts it again.
    pub async fn restart(&self) {
        let (done, wait) = oneshot::channel();
        let _ = self.orders.send(Order::Restart(done)).await;
        let _ = wait.await;
    }

    /// Ends the runner and leaves the process running.
    pub async fn detach(self) {
        let _ = self.orders.send(Order::Detach).await;
        let _ = self.task.await;
    }
}

async fn run<P: Program>(
    mut program: P,
    policy: Policy,
    mut orders: mpsc::Receiver<Order>,
    state: watch::Sender<State>,
) {
    let mut adopted = program.adopt().await;
    let mut backoff = policy.backoff_min;
    loop {
        let started = Instant::now();
        let process = match adopted.take() {
            Some(process) => Ok(process),
            None => program.start(),
        };
        let ended = match process {
            Err(reason) => Ended::Exited(reason),
            Ok(process) => {
                state.send_modify(|state| state.pid = process.pid());
                wait_for_end(process, &policy, &mut orders).await
            }
        };
        let (end, on_request) = match ended {
            Ended::Exited(end) => {
                program.report_exit(&end);
                (end, false)
            }
            Ended::Restarting => ("restarted on request".to_owned(), true),
            Ended::RunnerEnds => return,
        };
        state.send_modify(|state| {
            state.pid = None;
            state.exits += 1;
            state.last_end = Some(end);
        });
        if on_request || started.elapsed() > policy.stable_after {
            backoff = policy.backoff_min;
        }
        let delay = if on_request { Duration::ZERO } else { backoff };
        if !wait_to_restart(delay, &mut orders).await {
            return;
        }
        backoff = (backoff * 2).min(policy.backoff_max);
    }
}

/// Waits until the process exits or an order comes, and executes the order.
async fn wait_for_end(mut process: impl Process, policy: &Policy, orders: &mut mpsc::Receiver<Order>) -> Ended {
    let order = tokio::select! {
        end = process.wait() => {
            process.flush_output().await;
            return Ended::Exited(end);
        }
        order = orders.recv() => order,
    };
    match order {
        Some(Order::Restart(done)) => {
            terminate(&mut process, policy.stop_limit).await;
            let _ = done.send(());
            return Ended::Restarting;
        }
        Some(Order::Stop(limit, done)) => {
            terminate(&mut process, limit).await;
            let _ = done.send(());
        }
        None if policy.when_dropped == WhenDropped::Stop => terminate(&mut process, policy.stop_limit).await,
        Some(Order::Detach) | None => {}
    }
    Ended::RunnerEnds
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
    use std::sync::{Arc, Mutex};

    use rustix::process::Signal;
    use tokio::sync::watch::{Receiver, Sender};

    use super::*;

    const POLICY: Policy = Policy {
        backoff_min: Duration::from_secs(1),
        backoff_max: Duration::from_secs(3),
        stable_after: Duration::from_secs(30),
        stop_limit: Duration::from_secs(15),
        when_dropped: WhenDropped::Stop,
    };

    /// A program whose processes run for the listed times, and then until a signal.
    struct Scripted {
        times: std::vec::IntoIter<u64>,
        starts: Arc<Mutex<Vec<Instant>>>,
        signals: Arc<Sender<Vec<Signal>>>,
    }

    struct Running {
        ends: Instant,
        /// Number of SIGKILLs to earlier processes.
        killed_before: usize,
        signals: Arc<Sender<Vec<Signal>>>,
        signalled: Receiver<Vec<Signal>>,
    }

    impl Program for Scripted {
        type Process = Running;

        fn start(&mut self) -> Result<Running, String> {
            let now = Instant::now();
            self.starts.lock().unwrap().push(now);
            let time = self.times.next().unwrap_or(1 << 20);
            Ok(Running {
                ends: now + Duration::from_secs(time),
                killed_before: count_kills(&self.signals.borrow()),
                signals: Arc::clone(&self.signals),
                signalled: self.signals.subscribe(),
            })
        }
    }

    impl Process for Running {
        fn pid(&self) -> Option<u32> {
            Some(1)
        }

        async fn wait(&mut self) -> String {
            tokio::select! {
                () = tokio::time::sleep_until(self.ends) => "ended".to_owned(),
                // The process ignores SIGTERM.
                _ = self.signalled.wait_for(|signals| count_kills(signals) > self.killed_before) => "killed".to_owned(),
            }
        }

        fn signal(&self, signal: Signal) {
            self.signals.send_modify(|signals| signals.push(signal));
        }
    }

    fn count_kills(signals: &[Signal]) -> usize {
        signals.iter().filter(|signal| **signal == Signal::KILL).count()
    }

    /// When each process was started.
    type Starts = Arc<Mutex<Vec<Instant>>>;

    fn spawn(times: &[u64], when_dropped: WhenDropped) -> (Runner, Starts, Receiver<Vec<Signal>>) {
        let signals = Arc::new(Sender::new(Vec::new()));
        let program = Scripted {
            times: Vec::from(times).into_iter(),
            starts: Arc::default(),
            signals: Arc::clone(&signals),
        };
        let (starts, signalled) = (Arc::clone(&program.starts), signals.subscribe());
        (
            Runner::spawn(program, Policy { when_dropped, ..POLICY }),
            starts,
            signalled,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_doubles_while_the_program_exits_early() {
        // The fifth process runs long, so the delay starts from the minimum.
        let (runner, starts, _) = spawn(&[0, 0, 0, 0, 60, 0], WhenDropped::Stop);
        runner.watch().wait_for(|state| state.exits == 6).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let starts = starts.lock().unwrap();
        let gaps: Vec<_> = starts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
        assert_eq!(gaps, [1, 2, 3, 3, 61, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_on_request_has_no_delay() {
        let (runner, starts, signalled) = spawn(&[], WhenDropped::Stop);
        runner.watch().wait_for(|state| state.pid.is_some()).await.unwrap();
        runner.restart().await;
        assert_eq!(*signalled.borrow(), [Signal::TERM, Signal::KILL]);
        runner.watch().wait_for(|state| state.exits == 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let starts = starts.lock().unwrap();
        assert_eq!(starts[1] - starts[0], POLICY.stop_limit);
    }

    #[tokio::test(start_paused = true)]
    async fn the_policy_decides_whether_a_dropped_handle_stops_the_process() {
        for (when_dropped, expected) in [
            (WhenDropped::Stop, &[Signal::TERM, Signal::KILL][..]),
            (WhenDropped::Detach, &[]),
        ] {
            let (runner, _, signalled) = spawn(&[], when_dropped);
            runner.watch().wait_for(|state| state.pid.is_some()).await.unwrap();
            drop(runner);
            tokio::time::sleep(POLICY.stop_limit * 2).await;
            assert_eq!(*signalled.borrow(), expected, "{when_dropped:?}");
        }
    }
}
