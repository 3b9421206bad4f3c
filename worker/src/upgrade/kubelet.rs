//! The supervised kubelet, which an upgrade stops and starts.

use jiff::Timestamp;
use yoke_supervisor::Runner;

use crate::process::supervise::{STOP_LIMIT, Service};

/// The kubelet. Dropping it stops the process without waiting for it.
#[derive(Debug)]
pub(crate) struct Kubelet {
    service: Service,
    /// `None` while no kubelet runs.
    runner: Option<Runner>,
    since: Timestamp,
}

impl Kubelet {
    /// Starts the kubelet.
    pub(crate) fn new(service: Service) -> Self {
        let mut kubelet = Self {
            service,
            runner: None,
            since: Timestamp::UNIX_EPOCH,
        };
        kubelet.start();
        kubelet
    }

    pub(super) fn start(&mut self) {
        self.since = Timestamp::now();
        self.runner = Some(self.service.clone().supervise());
    }

    /// Stops the kubelet, with SIGKILL if it takes too long.
    pub(crate) async fn stop(&mut self) {
        if let Some(runner) = self.runner.take() {
            runner.stop(STOP_LIMIT).await;
        }
    }

    /// Starts a kubelet with other arguments, after `stop`.
    pub(crate) fn replace(&mut self, service: Service) {
        self.service = service;
        self.start();
    }

    /// Time of the last start.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// Counts exits since the last start, without stops.
    pub(super) fn exits(&self) -> u32 {
        self.runner.as_ref().map_or(0, |runner| runner.state().exits)
    }

    /// Last line of the log, if the kubelet has exited.
    pub(super) fn last_log_line(&self) -> Option<String> {
        (self.exits() > 0).then(|| self.service.last_line())?
    }
}
