//! The page of labels, annotations and finalizers.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use super::comments::documented;
use super::markdown::head;

/// The source file of labels.
pub(super) const SOURCE: &str = "api/src/labels.rs";

/// Builds the page from the text of the source file.
pub(super) fn build_labels(source: &str) -> Result<String> {
    let values: Vec<_> = documented(source, |line| {
        let (_, value) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
        value.strip_suffix("\";")
    });
    ensure!(values.len() > 10, "{SOURCE} has too few labels: {}", values.len());
    let mut page = head("Labels and annotations", SOURCE);
    page.push_str("Keys of labels, annotations and finalizers, and values of fixed sets. Those without a slash are values.\n\n| key or value | meaning |\n|---|---|\n");
    // The comments name constants, but readers only know the values.
    let constants: Vec<_> = source
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("pub const ")?
                .strip_suffix("\";")?
                .split_once(": &str = \"")
        })
        .collect();
    for (value, meaning) in values {
        let meaning = constants.iter().fold(meaning, |meaning, (name, value)| {
            meaning.replace(&format!("`{name}`"), &format!("`{value}`"))
        });
        let _ = writeln!(page, "| `{value}` | {meaning} |");
    }
    Ok(page)
}
