//! Writes Kubernetes events on the ConfigMap of the base configuration when it is served or
//! refused. An adapter.

use std::convert::Infallible;
use std::error::Error;

use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use yoke_runtime::Drain;

use crate::base::Notice;

/// Maximum length of an event's note in bytes; a limit of the Kubernetes API.
const MAX_NOTE: usize = 1000;

/// Writes events until the drain starts. Failures are only logged: a lost event must not end the
/// process.
pub async fn announce(client: Client, mut notices: mpsc::Receiver<Notice>, drain: Drain) -> Result<(), Infallible> {
    let reporter = Reporter {
        controller: "yoke.drzzl.io/ingress-xds".into(),
        instance: std::env::var("HOSTNAME").ok(),
    };
    let recorder = Recorder::new(client, reporter);
    while let Some(Some(notice)) = drain.until_started(notices.recv()).await {
        let (type_, reason) = match notice.refused {
            true => (EventType::Warning, "BaseConfigRefused"),
            false => (EventType::Normal, "BaseConfigServed"),
        };
        let mut note = notice.note;
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(note),
            action: "ServeBaseConfig".to_owned(),
            secondary: None,
        };
        let written = drain.until_started(recorder.publish(&event, &notice.object)).await;
        if let Some(Err(error)) = written {
            tracing::warn!(error = &error as &dyn Error, "writing an event failed");
        }
    }
    Ok(())
}
