//! Finds the commands of `README.md`, so that tests can run them like a reader.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::command::run;

/// Timeout of all commands in one kind of block.
const LIMIT: Duration = Duration::from_secs(600);

/// Root folder of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Commands in all blocks that begin with "```" and `kind`, in order. Fails if there are none,
/// because the README's format has changed.
pub fn commands(kind: &str) -> Result<Vec<String>> {
    let readme = std::fs::read_to_string(root().join("README.md")).context("reading the README")?;
    let found = parse(&readme, kind);
    ensure!(!found.is_empty(), "the README has no command in a block of {kind:?}");
    Ok(found)
}

/// Commands in the running text, between backquotes, that start with a program's name.
pub fn inline(program: &str) -> Result<Vec<String>> {
    let readme = std::fs::read_to_string(root().join("README.md")).context("reading the README")?;
    let found = parse_inline(&readme, program);
    ensure!(!found.is_empty(), "the README's text has no command of {program}");
    Ok(found)
}

/// Every kind of block in the README.
pub fn kinds() -> Result<Vec<String>> {
    let readme = std::fs::read_to_string(root().join("README.md")).context("reading the README")?;
    let fences = readme.lines().filter_map(|line| line.strip_prefix("```"));
    Ok(fences.filter(|kind| !kind.is_empty()).map(str::to_owned).collect())
}

/// Runs commands in one shell, as a reader would type them, until the first failure. Returns their
/// output.
pub async fn type_in(directory: &Path, environment: &[(&str, &Path)], commands: &[String]) -> Result<String> {
    let script = commands.join("\n");
    let mut shell = Command::new("bash");
    shell
        .args(["-e", "-x", "-o", "pipefail", "-c", &script])
        .current_dir(directory)
        .env_remove("KUBECONFIG")
        .envs(environment.iter().copied());
    run(shell, LIMIT).await?.ok().context("the last printed command failed")
}

fn parse(readme: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}");
    let mut within = false;
    let mut found = Vec::new();
    for line in readme.lines() {
        if line == fence {
            within = true;
        } else if line.starts_with("```") {
            within = false;
        } else if within && let Some(command) = line.strip_prefix("$ ") {
            found.push(command.to_owned());
        }
    }
    found
}

fn parse_inline(readme: &str, program: &str) -> Vec<String> {
    let mut within = false;
    let outside = readme.lines().filter(|line| {
        let fence = line.starts_with("```");
        within ^= fence;
        !within && !fence
    });
    let text = outside.collect::<Vec<_>>().join("\n");
    let quoted = text.split('`').skip(1).step_by(2);
    quoted
        .filter(|text| text.split(' ').next() == Some(program))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_the_kind() {
        let text = "```a\n$ one\nprinted\n```\n$ none\n```a b\n$ two\n```\n```a\n$ three\n```\n";
        assert_eq!(parse(text, "a"), ["one", "three"]);
        assert_eq!(parse(text, "a b"), ["two"]);
    }

    #[test]
    fn inline_commands_are_those_between_backquotes_outside_of_blocks() {
        let text = "See `a one` and `b`.\n```a\n$ `a two`\n```\n| `a three` | `ab` |\n";
        assert_eq!(parse_inline(text, "a"), ["a one", "a three"]);
    }
}
