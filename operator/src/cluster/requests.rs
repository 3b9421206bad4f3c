//! The second step of a reconcile: collects the requests to change the Cluster object itself, which
//! do not come from its spec. Pure.
//!
//! The requests are in the order in which they are recorded. Each is planned for the Cluster as it is
//! once those before it are recorded.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use yoke_api::Cluster;
use yoke_api::sleep::SleepReason;

use crate::cluster::observe::View;
use crate::cluster::sleep::inputs::SleepInputs;
use crate::cluster::sleep::schedule;
use crate::cluster::sleep::state::{self, SleepCommand, SleepState};
use crate::model::conditions;

/// A request to change the Cluster object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Delete the Cluster: its lifetime is over.
    Expire,
    /// Withdraw a request to sleep, as `spec.state` overrides it.
    WithdrawSleep,
    /// Record the command of the annotation `yoke.drzzl.io/sleep`, and remove the annotation.
    Annotation(SleepCommand),
    /// Record that the schedules are done up to a time, with the command of the last one.
    Schedule {
        /// The command; `None` if it would change nothing.
        command: Option<SleepCommand>,
        /// The due time of the last schedule.
        time: Timestamp,
    },
    /// Wake the Cluster so that its Nodes can renew their certificates.
    WakeForNodeCertificates,
    /// Send the Cluster to sleep, as no client uses it.
    SleepUnused,
}

/// Collects the requests that are due.
pub(crate) fn collect(view: &View<'_>, now: Timestamp) -> Vec<Request> {
    if view.lifetime.is_some_and(|lifetime| lifetime.is_zero()) {
        return vec![Request::Expire];
    }
    plan_sleep_requests(&view.cluster, &view.sleep, now)
}

/// The requests to sleep or to wake.
fn plan_sleep_requests(cluster: &Cluster, sleep: &SleepInputs, now: Timestamp) -> Vec<Request> {
    let mut cluster = Cow::Borrowed(cluster);
    let mut requests = Vec::new();
    let steps = [
        plan_annotation_request,
        plan_schedule_request,
        plan_renewal_request,
        plan_unused_request,
    ];
    for step in steps {
        if let Some(request) = step(&cluster, sleep, now) {
            overlay_request(cluster.to_mut(), &request, now);
            requests.push(request);
        }
    }
    requests
}

fn plan_annotation_request(cluster: &Cluster, _: &SleepInputs, _: Timestamp) -> Option<Request> {
    if state::is_overridden(cluster) {
        return Some(Request::WithdrawSleep);
    }
    // A paused Cluster keeps its annotation.
    let command = state::parse_sleep_annotation(cluster).filter(|_| !cluster.spec.paused);
    command.map(Request::Annotation)
}

fn plan_schedule_request(cluster: &Cluster, sleep: &SleepInputs, now: Timestamp) -> Option<Request> {
    let due = schedule::plan_due(cluster, now)?;
    let command = match due.sleeps() {
        // Skip the sleep of a refused spec: it would be applied long afterwards, while clients use
        // the cluster.
        true if !conditions::is_current(cluster) => None,
        // The sleep stays due.
        true if !is_sleep_possible(sleep) => return None,
        _ => due.command,
    };
    Some(Request::Schedule {
        command,
        time: due.time,
    })
}

fn plan_renewal_request(cluster: &Cluster, _: &SleepInputs, now: Timestamp) -> Option<Request> {
    let remaining = state::plan_renewal(cluster, now)?;
    remaining.is_zero().then_some(Request::WakeForNodeCertificates)
}

fn plan_unused_request(cluster: &Cluster, sleep: &SleepInputs, _: Timestamp) -> Option<Request> {
    let may_sleep = conditions::is_current(cluster) && !SleepState::of(cluster).is_asleep();
    (sleep.is_unused && may_sleep && is_sleep_possible(sleep)).then_some(Request::SleepUnused)
}

fn is_sleep_possible(sleep: &SleepInputs) -> bool {
    sleep
        .possible
        .as_ref()
        .is_some_and(|possible| possible.status == Some(true))
}

impl Request {
    /// The command to record in the status, if the request has one.
    pub(crate) const fn command(&self) -> Option<SleepCommand> {
        match self {
            Self::Annotation(command) => Some(*command),
            Self::Schedule { command, .. } => *command,
            Self::WithdrawSleep | Self::WakeForNodeCertificates => Some(SleepCommand::Wake),
            Self::SleepUnused => Some(SleepCommand::Sleep(SleepReason::Inactivity)),
            Self::Expire => None,
        }
    }
}

/// Changes a Cluster as the host API does when a request is recorded.
fn overlay_request(cluster: &mut Cluster, request: &Request, now: Timestamp) {
    let activity = cluster.status.get_or_insert_default().activity.get_or_insert_default();
    if let Some(command) = request.command() {
        let requested = state::plan_sleep_requested(Some(activity), command, now);
        (activity.sleep_requested_time, activity.sleep_reason) = requested.unzip();
    }
    if let Request::Schedule { time, .. } = request {
        activity.scheduled_time = Some(Time(*time));
    }
}

#[cfg(test)]
mod tests {
    use yoke_api::cluster::DesiredState;
    use yoke_api::labels;

    use super::*;
    use crate::fixtures::{cluster, with};
    use crate::model::conditions::State;

    fn annotated(mut cluster: Cluster, value: &str) -> Cluster {
        let annotations = cluster.metadata.annotations.get_or_insert_default();
        annotations.insert(labels::SLEEP.into(), value.into());
        cluster
    }

    /// The Cluster with the status of an accepted spec.
    fn accepted(mut cluster: Cluster) -> Cluster {
        let condition = serde_json::json!({"type": "Accepted", "status": "True", "reason": "Valid", "message": "",
            "lastTransitionTime": "2026-11-21T00:00:00Z"});
        let status = cluster.status.get_or_insert_default();
        status.conditions = vec![serde_json::from_value(condition).unwrap()];
        status.observed_generation = cluster.metadata.generation;
        cluster
    }

    fn asleep(mut cluster: Cluster) -> Cluster {
        overlay_request(&mut cluster, &Request::SleepUnused, Timestamp::from_second(10).unwrap());
        cluster
    }

    #[test]
    fn requests_follow_from_annotation_and_use() {
        let now = Timestamp::from_second(1000).unwrap();
        let (yes, no) = (
            State::yes(yoke_api::Reason::AsExpected, ""),
            State::no(yoke_api::Reason::WorkersConnected, ""),
        );
        let unused = |possible: Option<&State>| SleepInputs {
            is_unused: true,
            possible: possible.cloned(),
        };
        let running = || accepted(cluster("a"));
        let asleep_by_owner = || with(asleep(running()), |spec| spec.state = DesiredState::Asleep);
        let sleep = Request::Annotation(SleepCommand::Sleep(SleepReason::Annotation));
        for (rule, cluster, inputs, expected) in [
            ("nothing is requested", running(), SleepInputs::default(), vec![]),
            (
                "the annotation requests sleep",
                annotated(running(), "now"),
                SleepInputs::default(),
                vec![sleep.clone()],
            ),
            (
                "a paused Cluster keeps its annotation",
                annotated(with(running(), |spec| spec.paused = true), "now"),
                SleepInputs::default(),
                vec![],
            ),
            (
                "spec.state overrides a request",
                asleep_by_owner(),
                SleepInputs::default(),
                vec![Request::WithdrawSleep],
            ),
            (
                "an unused cluster sleeps",
                running(),
                unused(Some(&yes)),
                vec![Request::SleepUnused],
            ),
            ("an obstacle prevents it", running(), unused(Some(&no)), vec![]),
            ("obstacles are not known", running(), unused(None), vec![]),
            ("it sleeps already", asleep(running()), unused(Some(&yes)), vec![]),
            (
                "the annotation comes first",
                annotated(running(), "now"),
                unused(Some(&yes)),
                vec![sleep],
            ),
            ("its spec is not applied yet", cluster("a"), unused(Some(&yes)), vec![]),
        ] {
            assert_eq!(plan_sleep_requests(&cluster, &inputs, now), expected, "{rule}");
        }
    }
}
