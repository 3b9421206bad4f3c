//! The result of a preflight check.

use serde::Serialize;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Warning,
    Failed,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) verdict: Verdict,
    pub(crate) found: String,
    #[serde(rename = "toDo", skip_serializing_if = "Option::is_none")]
    pub(crate) to_do: Option<String>,
}

impl Row {
    pub(super) fn ok(check: &str, found: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict: Verdict::Ok,
            found: found.into(),
            to_do: None,
        }
    }

    fn bad(check: &str, verdict: Verdict, found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict,
            found: found.into(),
            to_do: Some(to_do.into()),
        }
    }

    pub(super) fn failed(check: &str, found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self::bad(check, Verdict::Failed, found, to_do)
    }

    pub(super) fn warning(check: &str, found: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self::bad(check, Verdict::Warning, found, to_do)
    }
}

/// Reports whether the machine can be a worker: no check failed.
pub(crate) fn is_fit(rows: &[Row]) -> bool {
    rows.iter().all(|row| row.verdict != Verdict::Failed)
}
