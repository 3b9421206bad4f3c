//! Answers in place of an API server: a `Status` as HTTP headers and body. Pure.
//!
//! kubectl without a discovery cache first requests the API's resources. If that fails it does not
//! show the body: it says "the server is currently unable to handle the request", or "unknown"
//! (`transformResponse` of client-go 0.35, whose error `Raw` returns as it is). kubectl always
//! shows the header `Warning`, so the message is repeated there.

use http::HeaderName;
use http::header::{CONTENT_TYPE, RETRY_AFTER, WARNING};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;

const JSON: &str = "application/json";
/// Warn code "Miscellaneous persistent warning" with an unnamed agent, as kube-apiserver writes it
/// (RFC 7234, section 5.5; KEP-1693).
const WARN_CODE: &str = "299 -";
/// Maximum number of characters of a warning: all headers of an answer must fit the limits of
/// clients and Envoy.
const LONGEST_WARNING: usize = 1024;
const UNAUTHORIZED: i32 = 401;

/// `Retry-After` in seconds for short causes: Kubernetes clients retry by themselves, ten times.
pub(crate) const SOON: i32 = 1;
/// `Retry-After` in seconds for causes that may persist.
pub(crate) const LATER: i32 = 10;
/// Message for a client whose user agent does not wake the cluster.
pub(crate) const IGNORED: &str =
    "the cluster is asleep, and does not wake for this client: its user agent is in spec.sleep.ignoreUserAgents";

/// The headers of an answer: content type, `Retry-After`, and a warning for people. A 401 has no
/// warning.
pub fn build_headers(status: &Status) -> impl Iterator<Item = (HeaderName, String)> {
    let retry = status.details.as_ref().and_then(|details| details.retry_after_seconds);
    let message = status.message.as_deref();
    let visible = message.filter(|_| status.code != Some(UNAUTHORIZED));
    [
        Some((CONTENT_TYPE, JSON.to_owned())),
        retry.map(|seconds| (RETRY_AFTER, seconds.to_string())),
        visible.map(|message| (WARNING, build_warning(message))),
    ]
    .into_iter()
    .flatten()
}

/// The body of an answer.
pub fn build_body(status: &Status) -> String {
    serde_json::to_string(status).unwrap_or_default()
}

/// The message to a caller when a cluster does not finish waking: the problem, and what to do.
pub fn build_advice(problem: &str) -> String {
    format!("{problem} Ask the cluster's owner; the conditions of the Cluster object say more.")
}

/// The message as a quoted HTTP string. Control characters are removed: a line break would end the
/// header.
fn build_warning(message: &str) -> String {
    let mut warning = format!("{WARN_CODE} \"");
    for character in message
        .chars()
        .filter(|character| !character.is_control())
        .take(LONGEST_WARNING)
    {
        if matches!(character, '"' | '\\') {
            warning.push('\\');
        }
        warning.push(character);
    }
    warning.push('"');
    warning
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::StatusDetails;

    use super::*;

    fn headers(code: i32, message: &str, retry: Option<i32>) -> Vec<(String, String)> {
        let status = Status {
            code: Some(code),
            message: Some(message.to_owned()),
            details: retry.map(|seconds| StatusDetails {
                retry_after_seconds: Some(seconds),
                ..StatusDetails::default()
            }),
            ..Status::default()
        };
        let headers = build_headers(&status).map(|(name, value)| (name.to_string(), value));
        headers.filter(|(name, _)| name != "content-type").collect()
    }

    #[test]
    fn a_message_is_repeated_in_a_warning_header() {
        let row = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for (rule, code, message, retry, expected) in [
            (
                "quoted",
                403,
                r#"no "room" on C:\"#,
                None,
                vec![row("warning", r#"299 - "no \"room\" on C:\\""#)],
            ),
            (
                "who comes again",
                503,
                "later",
                Some(0),
                vec![row("retry-after", "0"), row("warning", r#"299 - "later""#)],
            ),
            (
                "no header of the message's own",
                503,
                "a\r\nset-cookie: b\0\u{85}ü",
                None,
                vec![row("warning", r#"299 - "aset-cookie: bü""#)],
            ),
            ("a stranger", 401, "Unauthorized", None, vec![]),
        ] {
            assert_eq!(headers(code, message, retry), expected, "{rule}");
        }
        let long = headers(503, &"é".repeat(2 * LONGEST_WARNING), None);
        assert_eq!(long[0].1.chars().count(), LONGEST_WARNING + r#"299 - """#.len());
    }
}
