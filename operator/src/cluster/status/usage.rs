//! How long a control plane was asked for. It is counted up when that ends, so that nothing is written in between.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use yoke_api::usage::UsageStatus;

use super::{ControlPlane, Outcome};
use crate::config::Config;

/// What to say of it. A Cluster that never had a control plane has used nothing.
pub(super) fn plan_usage(
    before: Option<UsageStatus>,
    outcome: &Outcome,
    config: &Config,
    now: Timestamp,
) -> Option<UsageStatus> {
    // Whatever the spec says by now: one that is there is used.
    let is_there = !matches!(
        outcome.control_plane,
        ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep
    );
    let is_awake = is_there && !outcome.rest.is_asleep();
    if before.is_none() && !is_awake {
        return None;
    }
    let before = before.unwrap_or_default();
    let seconds = match is_awake {
        true => before.awake_seconds,
        false => i64::try_from(before.awake(now)).unwrap_or(i64::MAX),
    };
    Some(UsageStatus {
        awake_seconds: seconds,
        awake_since: is_awake.then(|| before.awake_since.unwrap_or(Time(now))),
        price_per_hour: config.price_per_hour.clone(),
    })
}
