//! Events on Clusters and Tenants, written when a condition changes.

use std::sync::{Arc, Mutex, PoisonError};

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use yoke_api::Reason;

/// Uses of a recorder before a new one replaces it. A recorder caches its events, so that a
/// repeated event is counted instead of written. It removes old entries only when it writes the
/// next event. Without the replacement, the first events of 10,000 Clusters would stay in memory
/// for as long as nothing happens.
const USES_MAX: usize = 256;

/// Publishes events.
#[derive(Clone)]
pub struct Events {
    client: Client,
    reporter: Reporter,
    /// The current recorder, and how often it was used.
    recorder: Arc<Mutex<(Recorder, usize)>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

/// One event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whether the event's type is `Warning`.
    pub warning: bool,
    /// The current action, a verb.
    pub action: &'static str,
    /// Machine-readable cause.
    pub reason: Reason,
    /// A sentence.
    pub note: String,
}

impl Events {
    /// Creates a publisher that reports as the operator.
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
        if recorder.1 >= USES_MAX {
            *recorder = (Recorder::new(self.client.clone(), self.reporter.clone()), 0);
        }
        recorder.1 += 1;
        recorder.0.clone()
    }

    /// Publishes events about an object. A failure is only logged: an event is not worth a failed
    /// reconciliation.
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
                tracing::warn!(error = %crate::chain(&error), "writing an event failed");
            }
        }
    }
}
