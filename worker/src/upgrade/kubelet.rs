//! The supervised kubelet, which an upgrade stops and starts.

use jiff::Timestamp;

use crate::process::supervise::{Service, Supervisor};

/// The kubelet. Dropping it stops the process without waiting for it.
#[derive(Debug)]
pub(crate) struct Kubelet {
    service: Service,
    /// `None` while no kubelet runs.
    supervisor: Option<Supervisor>,
    since: Timestamp,
}

impl Kubelet {
    /// Starts the kubelet.
    pub(crate) fn new(service: Service) -> Self {
        let mut kubelet = Self {
            service,
            supervisor: None,
            since: Timestamp::UNIX_EPOCH,
        };
        kubelet.start();
        kubelet
    }

    pub(super) fn start(&mut self) {
        self.since = Timestamp::now();
        self.supervisor = Some(Supervisor::start(self.service.clone()));
    }

    /// Stops the kubelet, with SIGKILL if it takes too long.
    pub(crate) async fn stop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.stop().await;
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
        self.supervisor.as_ref().map_or(0, Supervisor::exits)
    }

    /// Last line of the log, if the kubelet has exited.
    pub(super) fn last_log_line(&self) -> Option<String> {
        (self.exits() > 0).then(|| self.service.last_line())?
    }
}
