//! The one signal by which a process tells its tasks to finish what they have and end.
//!
//! It goes one way: once draining, always draining. A [`Drain`] whose [`DrainTrigger`] was dropped counts as draining, so
//! that no task waits for a signal that nobody can send.

use tokio::sync::watch;

/// Starts the drain.
#[derive(Debug)]
pub struct DrainTrigger {
    draining: watch::Sender<bool>,
}

/// Tells whether the process is draining. Clones share one signal.
#[derive(Clone, Debug)]
pub struct Drain {
    draining: watch::Receiver<bool>,
}

impl DrainTrigger {
    /// A trigger and the signal that it gives.
    pub fn new() -> (Self, Drain) {
        let (sender, receiver) = watch::channel(false);
        (Self { draining: sender }, Drain { draining: receiver })
    }

    /// Starts the drain; again is no change.
    pub fn start(&self) {
        self.draining.send_replace(true);
    }
}

impl Drain {
    /// Waits until the drain starts; returns at once if it has.
    pub async fn started(&self) {
        // An error means that the trigger is gone, which counts as started.
        let _ = self.draining.clone().wait_for(|draining| *draining).await;
    }

    /// Whether the drain has started.
    pub fn has_started(&self) -> bool {
        *self.draining.borrow() || self.draining.has_changed().is_err()
    }

    /// Runs `work` until it ends or the drain starts; `None` if the drain came first.
    pub async fn until_started<F: Future>(&self, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.started() => None,
            output = work => Some(output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_sees_the_start() {
        let (trigger, drain) = DrainTrigger::new();
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.started().await }
        });
        assert!(!drain.has_started());
        trigger.start();
        trigger.start();
        waiting.await.unwrap();
        drain.started().await;
        assert!(drain.has_started());
    }

    #[tokio::test]
    async fn dropped_trigger_counts_as_started() {
        let (trigger, drain) = DrainTrigger::new();
        drop(trigger);
        drain.started().await;
        assert!(drain.has_started());
    }

    #[tokio::test]
    async fn work_is_cut_by_the_start() {
        let (trigger, drain) = DrainTrigger::new();
        assert_eq!(drain.until_started(async { 1 }).await, Some(1));
        trigger.start();
        assert_eq!(drain.until_started(std::future::pending::<()>()).await, None);
    }
}
