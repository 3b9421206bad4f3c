//! Times on the command line. Pure.

use std::time::Duration;

use jiff::SignedDuration;

/// Reads `90s`, `5m`, `1h30m`; a bare number is seconds, as with kubectl.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let wrong = || "expected a time such as 30s, 5m or 1h30m".to_owned();
    let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

/// Zero means without a limit.
pub(crate) fn limit(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_kubectl_does() {
        for (text, seconds) in [
            ("0", Some(0)),
            ("45", Some(45)),
            ("30s", Some(30)),
            ("5m", Some(300)),
            ("1h30m", Some(5400)),
            ("", None),
            ("5 parsecs", None),
            ("-5m", None),
        ] {
            assert_eq!(parse_duration(text).ok(), seconds.map(Duration::from_secs), "{text:?}");
        }
    }
}
