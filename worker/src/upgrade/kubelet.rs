//! The kubelet that is kept running, whichever it is.

use jiff::Timestamp;

use crate::children::{Keeper, Service};

/// The kubelet. Dropped, it is asked to end, and nobody waits for it.
#[derive(Debug)]
pub(crate) struct Kubelet {
    service: Service,
    /// None in the moment between two of them.
    keeper: Option<Keeper>,
    since: Timestamp,
}

impl Kubelet {
    /// Starts it.
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

    /// Ends it, by force if it takes too long.
    pub(crate) async fn stop(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.stop().await;
        }
    }

    /// Starts another one in the place of one that has been stopped.
    pub(crate) fn replace(&mut self, service: Service) {
        self.service = service;
        self.start();
    }

    /// When it was started.
    pub(super) fn since(&self) -> Timestamp {
        self.since
    }

    /// How often it has ended since, without being asked to.
    pub(super) fn ends(&self) -> u32 {
        self.keeper.as_ref().map_or(0, Keeper::ends)
    }

    /// What it said last, if it has ended.
    pub(super) fn last_words(&self) -> Option<String> {
        (self.ends() > 0).then(|| self.service.last_line())?
    }
}
