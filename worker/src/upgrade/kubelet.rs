//! The supervised kubelet, which an upgrade stops and starts.

use jiff::Timestamp;

use crate::process::supervise::{Keeper, Service};

/// The kubelet. Dropping it stops the process without waiting for it.
#[derive(Debug)]
pub(crate) struct Kubelet {
    service: Service,
    /// `None` while no kubelet runs.
    keeper: Option<Keeper>,
    since: Timestamp,
}

impl Kubelet {
    /// Starts the kubelet.
    pub(crate) fn new(service: Service) -> Self {
        let mut kubelet = Self {
            service,
            keeper: None,
            since: Timestamp::UNIX_EPOCH,
        };
        kubelet.start();
        kubelet
    }

    pub(super) fn start(&mut self) {
        self.since = Timestamp::now();
        self.keeper = Some(Keeper::start(self.service.clone()));
    }

    /// Stops the kubelet, with SIGKILL if it takes too long.
    pub(crate) async fn stop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop().await;
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
    pub(super) fn ends(&self) -> u32 {
        self.keeper.as_ref().map_or(0, Keeper::ends)
    }

    /// Last line of the log, if the kubelet has exited.
    pub(super) fn last_words(&self) -> Option<String> {
        (self.ends() > 0).then(|| self.service.last_line())?
    }
}
