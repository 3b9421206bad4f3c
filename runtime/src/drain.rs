//! The signal that makes the tasks of a process finish their current work and end.
//!
//! A drain cannot be undone. A [`Drain`] whose [`DrainTrigger`] was dropped counts as draining,
//! because the signal could never arrive.

use tokio::sync::watch;

/// Starts the drain.
#[derive(Debug)]
pub struct DrainTrigger {
    draining: watch::Sender<bool>,
}

/// Reports whether the process is draining. Clones share one signal.
#[derive(Clone, Debug)]
pub struct Drain {
    draining: watch::Receiver<bool>,
}

impl DrainTrigger {
    /// Creates a trigger and its signal.
    pub fn new() -> (Self, Drain) {
        let (sender, receiver) = watch::channel(false);
        (Self { draining: sender }, Drain { draining: receiver })
    }

    /// Starts the drain. Further calls have no effect.
    pub fn start(&self) {
        self.draining.send_replace(true);
    }
}

impl Drain {
    /// Waits until the drain starts. Returns immediately if it has started.
    pub async fn started(&self) {
        // An error means that the trigger was dropped, which counts as started.
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
