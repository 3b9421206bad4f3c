//! `status -o json|yaml`: the state of a Cluster as data. Pure.

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use serde::Serialize;
use yoke_api::Cluster;
use yoke_api::cluster::{DesiredState, EndpointStatus, Phase};
use yoke_view::render::time_of;
use yoke_view::verdict::{Refusal, Verdict, is_asleep, judge};

use crate::advice::advise;

/// State of one Cluster, the reason, and what to do next.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    namespace: String,
    name: String,
    state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<EndpointStatus>,
    conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<ReportedEvent>,
    next: Vec<String>,
}

#[derive(Serialize)]
enum State {
    Ready,
    Asleep,
    Waiting,
    Refused,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportedEvent {
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Time>,
    reason: String,
    message: String,
}

/// The reports of several Clusters.
#[derive(Serialize)]
pub(crate) struct Reports {
    /// One report per Cluster.
    pub(crate) items: Vec<Report>,
}

/// Builds the report of a Cluster. `events` must be sorted, the latest first.
pub(crate) fn report(cluster: &Cluster, events: &[Event]) -> Report {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let status = cluster.status.clone().unwrap_or_default();
    let (state, reason, message) = match judge(cluster) {
        Verdict::Done if cluster.spec.state == DesiredState::Asleep => (State::Asleep, None, None),
        Verdict::Done => (State::Ready, None, None),
        Verdict::Waiting(message) if is_asleep(cluster) => (State::Asleep, None, message),
        Verdict::Waiting(message) => (State::Waiting, None, message),
        Verdict::Refused(Refusal { reason, message }) => (State::Refused, Some(reason), Some(message)),
    };
    let events = events.iter().map(|event| ReportedEvent {
        r#type: event.type_.clone().unwrap_or_default(),
        time: time_of(event).map(Time),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.message.clone().unwrap_or_default(),
    });
    Report {
        state,
        reason,
        message,
        phase: status.phase,
        version: status.version,
        endpoint: status.endpoint,
        conditions: status.conditions,
        events: events.collect(),
        next: advise(cluster, &name, &namespace),
        namespace,
        name,
    }
}
