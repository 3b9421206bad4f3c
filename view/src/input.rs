//! Parses durations and quantities as users type them on a command line. Pure.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use yoke_api::time::parse_time;

/// Parses a duration such as `90s`, `5m` or `1h30m`. A bare number is seconds, as in kubectl.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let wrong = || "expected a time such as 30s, 5m or 1h30m".to_owned();
    let duration: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(duration).map_err(|_| wrong())
}

/// Turns a timeout option into a limit: zero means no limit.
pub fn limit(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

/// Checks that a quantity is a number with a Kubernetes suffix. The host's API checks the rest.
pub fn parse_quantity(text: &str) -> Result<Quantity, String> {
    let digits = text
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || *byte == b'.')
        .count();
    let suffix = &text[digits..];
    let known = ["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"];
    if digits > 0 && known.contains(&suffix) {
        Ok(Quantity(text.to_owned()))
    } else {
        Err("expected a number with an optional suffix, such as 256Mi or 1Gi".to_owned())
    }
}

/// Checks a `spec.ttl`: minutes or hours, at most `9999h`.
pub fn parse_ttl(text: &str) -> Result<String, String> {
    let is_short = text.len() <= 5 && !text.starts_with('0');
    match parse_time(text).filter(|_| is_short) {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected a time in minutes or hours, such as 90m or 8h, up to 9999h".into()),
    }
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

    #[test]
    fn lifetimes_are_those_that_a_spec_takes() {
        for (text, good) in [
            ("8h", true),
            ("9999h", true),
            ("90m", true),
            ("", false),
            ("0h", false),
            ("10000h", false),
            ("90s", false),
            ("1h30m", false),
            ("+8h", false),
        ] {
            assert_eq!(parse_ttl(text).is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn quantities_are_checked() {
        for (text, good) in [
            ("256Mi", true),
            ("1.5Gi", true),
            ("1000", true),
            ("", false),
            ("Mi", false),
            ("1MB", false),
            ("-1Mi", false),
        ] {
            assert_eq!(parse_quantity(text).is_ok(), good, "{text:?}");
        }
    }
}
