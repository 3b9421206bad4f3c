//! Builds the HTTP responses: the command's own JSON, with its exit code in a header. Pure.

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;

use crate::Error;
use crate::commands::parse::LINE_MAX;
use crate::error::with_causes;
use crate::identity::token::{TokenError, TokenRules};
use crate::limits::admission;
use crate::ssh::banner::name_owner;

/// Header with the exit code that the command would have over SSH.
const EXIT_CODE: HeaderName = HeaderName::from_static("yoke-exit-code");
/// `Retry-After` in seconds for a rate-limited client.
const PAUSE: HeaderValue = HeaderValue::from_static("5");

/// Reason why a request does not reach a command.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The path does not exist.
    #[error("this path does not exist: send command lines to /exec")]
    Path,
    /// The method is not allowed.
    #[error("send command lines with POST")]
    Method,
    /// The token is refused.
    #[error(transparent)]
    Token(TokenError),
    /// The command line is too long.
    #[error("a command line has at most {LINE_MAX} bytes")]
    Long,
    /// The body was not received in time.
    #[error("the command line was not received in time")]
    Incomplete,
    /// The Tenant has reached its limit of connections.
    #[error("{}", admission::Refusal::TenantFull.advice())]
    TenantFull,
}

impl Refusal {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Path => "no_path",
            Self::Method => "no_method",
            Self::Token(_) => "token",
            Self::Long => "too_long",
            Self::Incomplete => "incomplete",
            Self::TenantFull => "tenant_full",
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token(_) => StatusCode::UNAUTHORIZED,
            Self::Long => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Incomplete => StatusCode::REQUEST_TIMEOUT,
            Self::TenantFull => StatusCode::TOO_MANY_REQUESTS,
        }
    }

    /// Returns what the client can do about it.
    fn hint(&self, rules: &TokenRules, contact: Option<&str>) -> Option<String> {
        match self {
            Self::Token(TokenError::UnknownKey(_)) => Some(format!(
                "send the line of your .pub file to {}: it belongs into spec.sshKeys of your Tenant",
                name_owner(contact)
            )),
            Self::Token(_) => Some(format!(
                "sign one with `ssh-keygen -Y sign -n {} -f KEY FILE`, and send it as `Authorization: Bearer TOKEN`",
                rules.namespace()
            )),
            _ => None,
        }
    }
}

/// Builds the response to a command.
pub fn build_answer(result: Result<String, Error>) -> Response<Full<Bytes>> {
    match result {
        Ok(text) => build(StatusCode::OK, Some(0), text),
        Err(error) => build(to_status(&error), Some(error.exit_code()), error.to_text(true)),
    }
}

/// Builds the response to a request that does not reach a command.
pub fn build_refusal(refusal: &Refusal, rules: &TokenRules, contact: Option<&str>) -> Response<Full<Bytes>> {
    let hint = refusal.hint(rules, contact);
    let text = json!({"error": with_causes(refusal), "reason": refusal.as_str(), "hint": hint});
    build(refusal.status(), None, format!("{text}\n"))
}

fn build(status: StatusCode, code: Option<u32>, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // The answer may contain a kubeconfig.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(code) = code {
        headers.insert(EXIT_CODE, HeaderValue::from(code));
    }
    match status {
        StatusCode::UNAUTHORIZED => headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"yoke\"")),
        StatusCode::METHOD_NOT_ALLOWED => headers.insert(ALLOW, HeaderValue::from_static("POST")),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, PAUSE),
        _ => None,
    };
    response
}

fn to_status(error: &Error) -> StatusCode {
    match error {
        Error::NotConfirmed(_) => StatusCode::BAD_REQUEST,
        Error::RateLimited | Error::Busy => StatusCode::TOO_MANY_REQUESTS,
        Error::KeyWithdrawn => StatusCode::UNAUTHORIZED,
        Error::NotPermitted(_) => StatusCode::FORBIDDEN,
        Error::Refused { status, .. } => match status.code {
            403 | 404 | 409 => StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY),
            401 | 429 | 500..=599 => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        },
        Error::SpecRefused { .. } | Error::JoinRefused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        Error::NoKubeconfig(_) | Error::Deleted(_) | Error::Asleep(_) => StatusCode::CONFLICT,
        Error::ClusterUnreachable { .. } => StatusCode::BAD_GATEWAY,
        Error::Unreachable { .. }
        | Error::WatchEnded { .. }
        | Error::Draining
        | Error::JoinAbandoned(_)
        | Error::JoinTimeout { .. } => StatusCode::SERVICE_UNAVAILABLE,
        // The command has taken effect, so the client must not repeat the request.
        Error::Timeout { .. } | Error::WaitTimeout(_) | Error::WaitAbandoned(_) => StatusCode::GATEWAY_TIMEOUT,
        error if error.exit_code() == 2 => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_status_says_what_the_exit_code_says() {
        let usage = || Error::Usage("x".into());
        let wait = || {
            Error::WaitTimeout(yoke_view::progress::WaitTimeout {
                what: "it did not come".into(),
                limit: Duration::from_secs(1),
                last: None,
            })
        };
        let join = || Error::JoinTimeout {
            name: "a-1".into(),
            cluster: "a".into(),
            limit: Duration::from_secs(60),
            last: None,
            is_deleted: true,
        };
        let full = || Error::JoinRefused {
            name: "a-1".into(),
            cluster: "a".into(),
            refusal: yoke_view::verdict::Refusal {
                reason: "QuotaExceeded".into(),
                message: "There are 64 older ones.".into(),
            },
        };
        for (result, status, code, retry) in [
            (Ok("{}\n".to_owned()), 200, "0", false),
            (Err(usage()), 400, "2", false),
            (Err(Error::NotPermitted("delete")), 403, "1", false),
            (Err(Error::RateLimited), 429, "1", true),
            (Err(Error::KeyWithdrawn), 401, "1", false),
            (Err(wait()), 504, "3", false),
            (Err(Error::Busy), 429, "1", true),
            (Err(Error::JoinAbandoned("a".into())), 503, "1", true),
            (Err(join()), 503, "1", true),
            (Err(full()), 422, "1", false),
            (Err(Error::WaitAbandoned("a".into())), 504, "3", false),
            (Err(Error::KubeconfigInvalid("a".into())), 500, "1", false),
        ] {
            let rule = format!("{result:?}");
            let answer = build_answer(result);
            let head = answer.headers();
            assert_eq!(answer.status().as_u16(), status, "{rule}");
            assert_eq!(head[EXIT_CODE], code, "{rule}");
            assert_eq!(head.contains_key(RETRY_AFTER), retry, "{rule}");
            assert_eq!(head[CACHE_CONTROL], "no-store", "{rule}");
        }
    }
}
