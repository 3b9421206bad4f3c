//! Log lines on standard error: JSON for log collectors, or text on a terminal.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Environment variable with the log filter, in the syntax of [`EnvFilter`]. If it is unset,
/// `RUST_LOG` applies.
pub const FILTER_VARIABLE: &str = "YOKE_LOG";

const FALLBACK_VARIABLE: &str = "RUST_LOG";
const DEFAULT_FILTER: &str = "info";
/// Targets that `info` excludes:
///
/// - `async_nats` logs ordinary events at `info`, such as each connection.
/// - `kube_client::client` logs each unsuccessful response, which probes expect. It logs a response
///   that it cannot parse completely, even if it is a Secret.
/// - `russh` and `russh_sftp` let unauthenticated clients write any number of log lines.
const QUIET: &str = "async_nats=warn,kube_client::client=off,russh=off,russh_sftp=off";

/// Logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter in the environment is invalid.
    #[error("reading the log filter {filter:?}")]
    Filter {
        /// The filter, as given.
        filter: String,
        /// Reason of the parser.
        #[source]
        source: ParseError,
    },
    /// The process already has a subscriber.
    #[error("setting up logging")]
    Subscriber(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Starts logging to standard error for the process `name`.
///
/// The filter comes from `YOKE_LOG`, else from `RUST_LOG`, else it is `info`. Lines are JSON unless
/// standard error is a terminal.
pub fn init_tracing(name: &str) -> Result<(), LoggingError> {
    let filter = filter_of(|variable| std::env::var(variable).ok())?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let result = if std::io::stderr().is_terminal() {
        builder.try_init()
    } else {
        let json = builder.json().flatten_event(true).with_span_list(false);
        json.with_ansi(false).try_init()
    };
    result.map_err(LoggingError::Subscriber)?;
    tracing::info!(process = name, "process started");
    Ok(())
}

fn filter_of(variable: impl Fn(&str) -> Option<String>) -> Result<EnvFilter, LoggingError> {
    let filter = [FILTER_VARIABLE, FALLBACK_VARIABLE]
        .into_iter()
        .filter_map(variable)
        .find(|filter| !filter.trim().is_empty())
        .unwrap_or_else(|| DEFAULT_FILTER.into());
    EnvFilter::builder()
        .parse(match filter.trim() {
            DEFAULT_FILTER => format!("{filter},{QUIET}"),
            _ => filter.clone(),
        })
        .map_err(|source| LoggingError::Filter { filter, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_comes_from_the_environment() {
        for (rule, yoke, rust, expected) in [
            ("own variable", Some("debug"), None, "debug"),
            ("common variable", None, Some("warn"), "warn"),
            ("own variable wins", Some("trace"), Some("warn"), "trace"),
            ("empty is not set", Some(" "), Some("warn"), "warn"),
            ("by target", Some("kube=error"), None, "kube=error"),
        ] {
            let filter = filter_of(|name| match name {
                "YOKE_LOG" => yoke.map(str::to_owned),
                "RUST_LOG" => rust.map(str::to_owned),
                _ => None,
            });
            assert_eq!(filter.unwrap().to_string(), expected, "{rule}");
        }
    }

    #[test]
    fn libraries_are_quiet_unless_asked_for() {
        let filter = |given: Option<&str>| filter_of(|_| given.map(str::to_owned)).unwrap().to_string();
        for given in [None, Some("info")] {
            let quiet = filter(given);
            assert!(quiet.contains("async_nats=warn") && quiet.contains("info"), "{quiet}");
            assert!(
                quiet.contains("russh=off") && quiet.contains("russh_sftp=off"),
                "{quiet}"
            );
        }
        assert_eq!(filter(Some("error")), "error");
    }

    #[test]
    fn bad_filter_is_refused() {
        let result = filter_of(|_| Some("kube=loud".into()));
        assert!(matches!(result, Err(LoggingError::Filter { filter, .. }) if filter == "kube=loud"));
    }
}
