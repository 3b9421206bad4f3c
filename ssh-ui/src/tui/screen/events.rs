//! The latest events on the screen. Pure.

use std::cmp::Reverse;
use std::collections::VecDeque;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use kube::runtime::watcher;
use yoke_view::render::time_of;

use super::text::clip;

/// Maximum number of stored events.
const EVENTS: usize = 100;

/// One event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    uid: String,
    pub(super) time: Option<Timestamp>,
    pub(super) about: String,
    pub(super) reason: String,
    pub(super) text: String,
    pub(super) is_warning: bool,
}

/// The events, the latest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    lines: VecDeque<Line>,
}

impl Events {
    /// Applies an event of the watch. An event stays after the host has deleted it.
    pub(super) fn follow(&mut self, event: watcher::Event<Event>) {
        if let watcher::Event::InitApply(event) | watcher::Event::Apply(event) = event {
            self.add(to_line(&event));
        }
    }

    /// Returns the events, the latest first.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    fn add(&mut self, line: Line) {
        // The host increments the count of a repeated event in the same object.
        self.lines.retain(|other| other.uid != line.uid);
        let at = self
            .lines
            .partition_point(|other| Reverse(other.time) < Reverse(line.time));
        self.lines.insert(at, line);
        self.lines.truncate(EVENTS);
    }
}

fn to_line(event: &Event) -> Line {
    Line {
        uid: event.uid().unwrap_or_default(),
        time: time_of(event),
        about: clip(event.involved_object.name.as_deref().unwrap_or_default()),
        reason: clip(event.reason.as_deref().unwrap_or_default()),
        text: clip(event.message.as_deref().unwrap_or_default()),
        is_warning: event.type_.as_deref() == Some("Warning"),
    }
}
