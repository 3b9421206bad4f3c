//! Decides what a candidate does with the Lease that it reads, and what it writes. Pure.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

/// Upper bound of a Lease's duration, whatever its holder wrote.
const LONGEST: Duration = Duration::from_secs(60);
/// Upper bound of the time that one read counts as unchanged. A holder cannot renew while the API
/// is down, so that time does not count against it.
const UNCHANGED_PER_READ_MAX: Duration = Duration::from_secs(2);

/// Decision about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// This candidate.
    This,
    /// Another operator holds it. Contains its identity.
    Other(String),
}

/// How long the Lease has been unchanged.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseObservation {
    /// Holder, number of earlier holders, time of the last renewal.
    last_seen: Option<(Option<String>, Option<i32>, Option<MicroTime>)>,
    last: Option<Instant>,
    unchanged: Duration,
}

impl LeaseObservation {
    /// Records the Lease that was read. Returns how long it has been unchanged.
    pub(crate) fn observe(&mut self, found: Option<&Lease>, now: Instant) -> Duration {
        let spec = found.and_then(|lease| lease.spec.clone());
        let last_seen = spec.map(|spec| (spec.holder_identity, spec.lease_transitions, spec.renew_time));
        let last = self.last.replace(now);
        if self.last_seen == last_seen {
            let since = last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
            self.unchanged += since.min(UNCHANGED_PER_READ_MAX);
        } else {
            (self.last_seen, self.unchanged) = (last_seen, Duration::ZERO);
        }
        self.unchanged
    }

    /// Records that the Lease could not be read.
    pub(crate) fn record_failed_read(&mut self) {
        self.last = None;
    }
}

/// Decides who may write a Lease that has been unchanged for this time. The Lease belongs to
/// another until it has not been renewed for its duration. That time is measured with the local
/// clock: the times in the Lease come from the clock of another node.
pub(crate) fn plan_holder(found: Option<&Lease>, identity: &str, unchanged: Duration) -> Holder {
    let Some(spec) = found.and_then(|lease| lease.spec.as_ref()) else {
        return Holder::This;
    };
    match holder(spec) {
        Some(holder) if holder != identity && unchanged < term(spec) => Holder::Other(holder.to_owned()),
        _ => Holder::This,
    }
}

/// The Lease as its holder writes it.
pub(crate) fn plan_lease(found: Option<Lease>, name: &str, identity: &str, term: Duration, now: Timestamp) -> Lease {
    let mut lease = found.unwrap_or_default();
    lease.metadata.name = Some(name.to_owned());
    let spec = lease.spec.get_or_insert_default();
    if holder(spec) != Some(identity) {
        // The first holder has no predecessor.
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
        spec.acquire_time = Some(MicroTime(now));
        spec.holder_identity = Some(identity.to_owned());
    }
    spec.lease_duration_seconds = i32::try_from(term.as_secs()).ok();
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// The Lease without its holder; `None` if `identity` is not the holder.
pub(crate) fn plan_release(mut lease: Lease, identity: &str) -> Option<Lease> {
    let spec = lease.spec.as_mut()?;
    (holder(spec) == Some(identity)).then(|| spec.holder_identity = None)?;
    Some(lease)
}

fn holder(spec: &LeaseSpec) -> Option<&str> {
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn term(spec: &LeaseSpec) -> Duration {
    let seconds = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(seconds.unwrap_or_default()).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    fn lease(holder: &str, seconds: Option<i32>) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: seconds,
                lease_transitions: Some(3),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    #[test]
    fn the_lease_belongs_to_another_while_it_is_renewed() {
        let other = Holder::Other("b".to_owned());
        for (rule, found, unchanged, expected) in [
            ("no Lease", None, 0, Holder::This),
            ("an empty Lease", Some(Lease::default()), 0, Holder::This),
            ("a released Lease", Some(lease("", Some(10))), 0, Holder::This),
            ("the own Lease", Some(lease("a", Some(10))), 0, Holder::This),
            ("renewed a moment ago", Some(lease("b", Some(10))), 9, other.clone()),
            ("not renewed in time", Some(lease("b", Some(10))), 10, Holder::This),
            (
                "a term without an end, renewed within a minute",
                Some(lease("b", Some(i32::MAX))),
                59,
                other,
            ),
            (
                "a term without an end, not renewed for a minute",
                Some(lease("b", Some(i32::MAX))),
                60,
                Holder::This,
            ),
            ("no term", Some(lease("b", None)), 0, Holder::This),
            ("a negative term", Some(lease("b", Some(-1))), 0, Holder::This),
        ] {
            let unchanged = Duration::from_secs(unchanged);
            assert_eq!(plan_holder(found.as_ref(), "a", unchanged), expected, "{rule}");
        }
    }

    #[test]
    fn a_failed_read_does_not_count_as_unchanged() {
        let (mut observation, start) = (LeaseObservation::default(), Instant::now());
        let (read, at) = (lease("b", Some(10)), |seconds| start + Duration::from_secs(seconds));
        let mut observe = |lease: &Lease, seconds| observation.observe(Some(lease), at(seconds)).as_secs();
        assert_eq!([observe(&read, 0), observe(&read, 1), observe(&read, 3)], [0, 1, 3]);
        // The answer took long.
        assert_eq!(observe(&read, 9), 5);
        observation.record_failed_read();
        let mut observe = |lease: &Lease, seconds| observation.observe(Some(lease), at(seconds)).as_secs();
        assert_eq!([observe(&read, 60), observe(&read, 61)], [5, 6]);
        let mut renewed = read.clone();
        renewed.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::UNIX_EPOCH));
        assert_eq!([observe(&renewed, 62), observe(&renewed, 63)], [0, 1]);
        // Another change of the Lease is not a renewal.
        renewed.metadata.resource_version = Some("7".into());
        assert_eq!(observe(&renewed, 64), 2);
    }

    #[test]
    fn taking_the_lease_sets_its_acquire_time_and_renewing_does_not() {
        let (first, second) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(5).unwrap());
        let taken = plan_lease(Some(lease("b", Some(30))), "x", "a", TERM, first);
        let renewed = plan_lease(Some(taken), "x", "a", TERM, second);
        let spec = renewed.spec.unwrap();
        assert_eq!(spec.holder_identity.as_deref(), Some("a"));
        assert_eq!(spec.lease_duration_seconds, Some(10));
        assert_eq!(spec.lease_transitions, Some(4));
        assert_eq!(
            (spec.acquire_time, spec.renew_time),
            (Some(MicroTime(first)), Some(MicroTime(second)))
        );
        assert_eq!(
            plan_lease(None, "x", "a", TERM, first).spec.unwrap().lease_transitions,
            Some(0)
        );
    }

    #[test]
    fn only_the_holder_releases_the_lease() {
        let left = plan_release(lease("a", Some(10)), "a").unwrap();
        assert_eq!(plan_holder(Some(&left), "b", Duration::ZERO), Holder::This);
        assert_eq!(plan_release(lease("b", Some(10)), "a"), None);
    }
}
