//! Events on Clusters and Tenants, written when a condition changes.

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use yoke_api::Reason;

/// Writes events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
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
            recorder: Recorder::new(client, reporter),
        }
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
            if let Err(error) = self.recorder.publish(&event, &reference).await {
                tracing::warn!(error = %crate::chain(&error), "event cannot be written");
            }
        }
    }
}
