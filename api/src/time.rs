//! Durations as users write them in a spec. Pure.

use std::time::Duration;

/// Parses a duration in whole minutes or hours, such as `90m` or `8h`. Callers (the CRDs and the
/// CLI) accept at most four digits; larger numbers count as 10,000.
pub fn parse_time(text: &str) -> Option<Duration> {
    let number = |text: &str| {
        let number = text.parse::<u64>().ok().filter(|_| !text.starts_with('+'))?;
        Some(number.min(10_000))
    };
    match (text.strip_suffix('h'), text.strip_suffix('m')) {
        (Some(hours), _) => number(hours).map(Duration::from_hours),
        (None, minutes) => number(minutes?).map(Duration::from_mins),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_hours_are_read() {
        for (text, minutes) in [
            ("1m", Some(1)),
            ("90m", Some(90)),
            ("8h", Some(480)),
            ("99999999h", Some(600_000)),
            ("8", None),
            ("h", None),
            ("-1h", None),
            ("1h30m", None),
            ("1d", None),
            ("", None),
        ] {
            assert_eq!(parse_time(text), minutes.map(Duration::from_mins), "{text:?}");
        }
    }
}
