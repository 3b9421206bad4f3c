//! Parses the report that etcd's `benchmark` prints at the end of a phase.

use std::str::FromStr;

/// Maximum length of a reason in characters. The rest is cut off.
const LONGEST_REASON: usize = 200;

/// A report of the program.
#[derive(Debug, PartialEq)]
pub(super) struct Report {
    /// Answered requests per second.
    pub(super) rate: f64,
    /// Median latency in milliseconds.
    pub(super) median: f64,
    /// 99th percentile of the latency in milliseconds.
    pub(super) slowest: f64,
    pub(super) failed: u64,
}

impl FromStr for Report {
    type Err = String;

    /// The error is the most frequent error, if no request was answered.
    fn from_str(text: &str) -> Result<Self, String> {
        // The program leaves out latencies that are zero.
        let mut report = Self {
            rate: 0.0,
            median: 0.0,
            slowest: 0.0,
            failed: 0,
        };
        let mut most = (0, "nothing was answered");
        for line in text.lines().map(str::trim) {
            if let Some(rate) = line.strip_prefix("Requests/sec:") {
                report.rate = number(rate)?;
            } else if let Some(time) = line.strip_prefix("50% in ") {
                report.median = seconds(time)? * 1000.0;
            } else if let Some(time) = line.strip_prefix("99% in ") {
                report.slowest = seconds(time)? * 1000.0;
            } else if let Some((count, error)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
                let count = count
                    .parse()
                    .map_err(|_| format!("{line:?} in place of an error's count"))?;
                report.failed += count;
                most = most.max((count, error.trim()));
            }
        }
        if report.rate > 0.0 {
            Ok(report)
        } else {
            Err(most.1.to_owned())
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.trim()
        .parse()
        .map_err(|_| format!("{text:?} in place of a number"))
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text.trim_end_matches(" secs."))
}

/// The reason why the program failed, from its error output: the line that names the error, or else
/// the last line.
pub(super) fn reason(errors: &str) -> String {
    let lines = || {
        errors
            .split(['\n', '\r'])
            .map(str::trim)
            .filter(|line| !line.is_empty())
    };
    let told = lines().find(|line| line.starts_with("panic:") || line.starts_with("Failed"));
    let line = told.or_else(|| lines().next_back()).unwrap_or("it ended with an error");
    line.chars().take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "
Summary:
  Total:\t0.371 secs.
  Slowest:\t0.0152 secs.
  Fastest:\t0.0006 secs.
  Average:\t0.0041 secs.
  Stddev:\t0.0018 secs.
  Requests/sec:\t7684.25

Response time histogram:
  0.0006 [1]\t|
  0.0021 [2999]\t|∎∎∎∎

Latency distribution:
  10% in 0.0021 secs.
  50% in 0.00375 secs.
  99% in 0.0105 secs.
  99.9% in 0.0149 secs.
";

    #[test]
    fn a_report_has_its_rate_its_times_and_its_failures() {
        let report = |failed| Report {
            rate: 7684.25,
            median: 3.75,
            slowest: 10.5,
            failed,
        };
        assert_eq!(PRINTED.parse(), Ok(report(0)));
        let errors =
            "\nError distribution:\n  [3]\trpc error: code = Unavailable\n  [4]\tetcdserver: too many requests\n";
        assert_eq!(format!("{PRINTED}{errors}").parse(), Ok(report(7)));
    }

    #[test]
    fn times_of_nought_are_left_out_by_the_program() {
        let printed = PRINTED.replace("  50% in 0.00375 secs.\n", "");
        assert_eq!(printed.parse::<Report>().map(|report| report.median), Ok(0.0));
    }

    #[test]
    fn a_report_without_an_answer_says_why() {
        for (printed, reason) in [
            ("", "nothing was answered"),
            (
                "\nError distribution:\n  [2]\tother\n  [98]\tnot supported\n",
                "not supported",
            ),
            ("  Requests/sec:\tfast\n", "\"\\tfast\" in place of a number"),
        ] {
            assert_eq!(printed.parse::<Report>(), Err(reason.to_owned()), "{printed:?}");
        }
    }

    #[test]
    fn what_the_program_wrote_before_its_end_is_why() {
        for (errors, why) in [
            (
                "0 / 9 ---\rFailed to Put for x: not supported\n 1 / 9",
                "Failed to Put for x: not supported",
            ),
            (
                "bar\npanic: index out of range\n\ngoroutine 1 [running]:\n",
                "panic: index out of range",
            ),
            ("Error: unknown flag: --total\n", "Error: unknown flag: --total"),
            ("", "it ended with an error"),
        ] {
            assert_eq!(reason(errors), why, "{errors:?}");
        }
    }
}
