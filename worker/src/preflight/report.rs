//! Formats the rows as a table for a user, or as JSON for a script. Pure.

use serde::Serialize;

use super::row::{Row, Verdict, is_fit};

#[derive(Serialize)]
struct Report<'a> {
    fit: bool,
    checks: &'a [Row],
}

/// Formats JSON: whether the machine is fit, and every row.
pub(crate) fn to_json(rows: &[Row]) -> String {
    let report = Report {
        fit: is_fit(rows),
        checks: rows,
    };
    let mut text = serde_json::to_string_pretty(&report).expect("strings and a flag are JSON");
    text.push('\n');
    text
}

/// Formats a table: a line for each row, with advice below it, and a summary at the end.
pub(crate) fn to_text(rows: &[Row]) -> String {
    let check = rows.iter().map(|row| row.check.len()).max().unwrap_or_default();
    let mut text = String::new();
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Failed => "FAILED",
        };
        text += &format!("{verdict:<7}  {:<check$}  {}\n", row.check, row.found);
        if let Some(to_do) = &row.to_do {
            text += &format!("{:<7}  {:<check$}  -> {to_do}\n", "", "");
        }
    }
    let count = |verdict: Verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let (failed, warnings) = (count(Verdict::Failed), count(Verdict::Warning));
    text += &match failed {
        0 => format!("\nThis machine can be a worker. Warnings: {warnings}\n"),
        _ => format!("\nThis machine cannot be a worker yet. Failed: {failed}, warnings: {warnings}\n"),
    };
    text
}
