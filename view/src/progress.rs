//! State of a wait for an object: the message shown last, and the refusal that is still tolerated.
//! Pure: the caller watches the object and measures the time since the start of the wait.

use std::fmt;
use std::time::Duration;

use crate::verdict::{Refusal, Verdict};

/// How long a refusal is tolerated that may disappear by itself.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A wait that exceeded its limit. The text is a sentence without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitTimeout {
    /// The object, and the expected state that it did not reach.
    pub what: String,
    /// The limit.
    pub limit: Duration,
    /// The last message that was seen.
    pub last: Option<String>,
}

impl fmt::Display for WaitTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = format_last(self.last.as_deref());
        write!(f, "{} within {:?}{last}", self.what, self.limit)
    }
}

/// Formats the last message that was seen, as the end of an error.
pub fn format_last(last: Option<&str>) -> String {
    last.map(|last| format!("; last seen: {last}")).unwrap_or_default()
}

/// Describes what happened to a JoinToken whose join command was not printed.
pub fn describe_unused_token(is_deleted: bool) -> &'static str {
    match is_deleted {
        true => "was deleted, so no worker can join with it",
        false => "could not be deleted, but its join command was not printed",
    }
}

/// Result of a verdict for the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The wait is over: the object has the desired state.
    Done,
    /// The wait continues. The text says what is pending.
    Pending(Option<String>),
    /// The wait is over: the refusal is final.
    Refused(Refusal),
}

/// Progress of one wait.
#[derive(Clone, Debug, Default)]
pub struct WaitProgress {
    last: Option<String>,
    tolerated: Option<(Refusal, Duration)>,
}

impl WaitProgress {
    /// Handles a verdict, `elapsed` after the start of the wait.
    pub fn follow(&mut self, verdict: Verdict, elapsed: Duration) -> Step {
        let tolerated = self.tolerated.take();
        match verdict {
            Verdict::Done => Step::Done,
            Verdict::Waiting(message) => Step::Pending(message),
            Verdict::Refused(refusal) if refusal.may_pass() => {
                let until = tolerated.map_or(elapsed + PATIENCE, |(_, until)| until);
                let text = refusal.message.clone();
                self.tolerated = Some((refusal, until));
                Step::Pending(Some(text))
            }
            Verdict::Refused(refusal) => Step::Refused(refusal),
        }
    }

    /// Returns when the tolerated refusal becomes final, as the time since the start of the wait.
    pub fn refusal_ends(&self) -> Option<Duration> {
        self.tolerated.as_ref().map(|(_, until)| *until)
    }

    /// Returns when a wait with this limit ends, as the time since its start: a tolerated refusal
    /// may become final before the limit.
    pub fn ends(&self, limit: Duration) -> Duration {
        self.refusal_ends().map_or(limit, |until| until.min(limit))
    }

    /// Returns the message shown last.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Returns the line to show for a message, or `None` if it repeats the last message.
    pub fn line(&mut self, message: &str, elapsed: Duration) -> Option<String> {
        if self.last() == Some(message) {
            return None;
        }
        self.last = Some(message.to_owned());
        Some(format_line(message, elapsed))
    }

    /// Ends the wait. Returns the tolerated refusal, or the message shown last.
    pub fn end(self) -> Result<Option<String>, Refusal> {
        match self.tolerated {
            Some((refusal, _)) => Err(refusal),
            None => Ok(self.last),
        }
    }
}

/// Formats a message with the time since the start of the wait.
pub fn format_line(message: &str, elapsed: Duration) -> String {
    format!("{:>4}s  {message}", elapsed.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(reason: &str) -> Verdict {
        Verdict::Refused(Refusal {
            reason: reason.into(),
            message: "no".into(),
        })
    }

    #[test]
    fn transient_refusals_are_tolerated_from_the_first_on() {
        let mut progress = WaitProgress::default();
        let pending = Step::Pending(Some("no".into()));
        assert_eq!(
            progress.follow(refused("TenantMissing"), Duration::from_secs(1)),
            pending
        );
        assert_eq!(
            progress.follow(refused("TenantMissing"), Duration::from_secs(5)),
            pending
        );
        assert_eq!(progress.refusal_ends(), Some(Duration::from_secs(11)));
        assert_eq!(progress.ends(Duration::from_secs(60)), Duration::from_secs(11));
        assert_eq!(progress.ends(Duration::from_secs(10)), Duration::from_secs(10));
        let ended = progress.clone().end().unwrap_err();
        assert_eq!((ended.reason.as_str(), ended.message.as_str()), ("TenantMissing", "no"));
        assert_eq!(
            progress.follow(Verdict::Waiting(None), Duration::from_secs(6)),
            Step::Pending(None)
        );
        assert_eq!(progress.refusal_ends(), None);
        assert_eq!(progress.ends(Duration::from_secs(60)), Duration::from_secs(60));
        assert_eq!(progress.follow(Verdict::Done, Duration::from_secs(7)), Step::Done);
        let last = progress.follow(refused("QuotaExceeded"), Duration::from_secs(8));
        assert!(matches!(last, Step::Refused(refusal) if refusal.reason == "QuotaExceeded"));
    }

    #[test]
    fn a_message_is_shown_once_in_a_row() {
        let mut progress = WaitProgress::default();
        let mut line = |message: &str, seconds| progress.line(message, Duration::from_secs(seconds));
        assert_eq!(line("a", 0).as_deref(), Some("   0s  a"));
        assert_eq!(line("a", 1), None);
        assert_eq!(line("b", 12).as_deref(), Some("  12s  b"));
        assert_eq!(line("a", 12345).as_deref(), Some("12345s  a"));
        assert_eq!(progress.end(), Ok(Some("a".to_owned())));
    }

    #[test]
    fn a_timeout_shows_the_last_message() {
        let timeout = |last: Option<&str>| WaitTimeout {
            what: "Cluster a did not become ready".into(),
            limit: Duration::from_secs(1),
            last: last.map(str::to_owned),
        };
        let text = "Cluster a did not become ready within 1s";
        assert_eq!(timeout(None).to_string(), text);
        assert_eq!(
            timeout(Some("starting")).to_string(),
            format!("{text}; last seen: starting")
        );
    }
}
