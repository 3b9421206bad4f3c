//! Counts how long a Cluster had a control plane. The counter is written only when that time ends,
//! so there are no writes in between.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use yoke_api::usage::UsageStatus;

use crate::cluster::outcome::Outcome;
use crate::cluster::status::ControlPlane;
use crate::config::Config;

/// The usage to write. A Cluster that never had a control plane has used nothing.
pub(super) fn plan_usage(
    before: Option<UsageStatus>,
    outcome: &Outcome,
    config: &Config,
    now: Timestamp,
) -> Option<UsageStatus> {
    // An existing control plane counts as used, whatever the spec says now.
    let is_there = !matches!(
        outcome.control_plane,
        ControlPlane::Absent | ControlPlane::Asleep | ControlPlane::GoingToSleep
    );
    let is_awake = is_there && !outcome.run_state.is_asleep();
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
