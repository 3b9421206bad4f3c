//! Events on Clusters and Tenants, written when a condition changes.

use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use yoke_api::Reason;

/// A recorder keeps what it wrote, so that what is said again is counted and not written; it looks whether that is old when it
/// writes the next. One that has kept so many is followed by another: the first events of 10,000 Clusters would stay for as
/// long as nothing happens.
const KEPT: usize = 256;

/// Writes events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// The present recorder, and how often it was used.
    recorder: Arc<Mutex<(Recorder, usize)>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

/// One event to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether it is a warning.
    pub warning: bool,
    /// What was being done, a verb.
    pub action: &'static str,
    /// Why.
    pub reason: Reason,
    /// A sentence.
    pub note: String,
}

impl Events {
    /// Events in the operator's name.
    pub fn new(client: Client) -> Self {
        let reporter = Reporter {
            controller: "yoke.drzzl.io/operator".into(),
            instance: std::env::var("POD_NAME").ok(),
        };
        Self {
            recorder: Arc::new(Mutex::new((Recorder::new(client.clone(), reporter.clone()), 0))),
            client,
            reporter,
        }
    }

    fn recorder(&self) -> Recorder {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        if recorder.1 >= KEPT {
            *recorder = (Recorder::new(self.client.clone(), self.reporter.clone()), 0);
        }
        recorder.1 += 1;
        recorder.0.clone()
    }

    /// Writes events about an object. A failure is logged: no event is worth failing for.
    pub async fn publish<K: Resource<DynamicType = ()>>(&self, object: &K, notices: &[Notice]) {
        let reference = object.object_ref(&());
        for notice in notices {
            let event = Event {
                type_: if notice.warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                },
                reason: notice.reason.as_str().to_owned(),
                note: Some(notice.note.chars().take(1000).collect()),
                action: notice.action.to_owned(),
                secondary: None,
            };
            if let Err(error) = self.recorder().publish(&event, &reference).await {
                tracing::warn!(error = %crate::chain(&error), "event cannot be written");
            }
        }
    }
}
