//! The commands of `README.md` and of the book, so that tests can run them as a reader would.
//!
//! A fenced block of a kind such as `console` has commands behind `$ `. Each kind has a test that runs its commands; blocks of the
//! kind `sh` are examples with placeholders, and are parsed only.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::command::run;

/// Timeout for all commands of one kind on one page.
const LIMIT: Duration = Duration::from_secs(600);

/// The book's pages, beside `README.md`.
const BOOK: &str = "docs/book/src";

/// Pages whose commands within the text, between backquotes, are run too.
const INLINE: [&str; 2] = ["README.md", "docs/book/src/admin/troubleshooting"];

/// The checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads one page by its path within the checkout.
pub fn page(path: &str) -> Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| format!("reading {path}"))
}

/// All pages with their paths within the checkout: `README.md` first, then the book in the order of its paths. Symbolic links
/// (decision records, benchmark results) are not followed.
pub fn pages() -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    find_pages(&root().join(BOOK), &mut paths)?;
    paths.sort();
    let mut pages = vec![("README.md".to_owned(), page("README.md")?)];
    for path in paths {
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        pages.push((name, text));
    }
    Ok(pages)
}

fn find_pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find_pages(&entry.path(), found)?;
        } else if entry.path().extension().is_some_and(|extension| extension == "md") && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// The commands in all blocks that begin with "```" and `kind`, page by page, for pages that have any. None at all is an
/// error: the form of the pages has changed.
pub fn scripts(kind: &str) -> Result<Vec<(String, Vec<String>)>> {
    let pages = pages()?.into_iter().map(|(name, text)| (name, parse(&text, kind)));
    let found: Vec<_> = pages.filter(|(_, commands)| !commands.is_empty()).collect();
    ensure!(!found.is_empty(), "no page has a command in a block of {kind:?}");
    Ok(found)
}

/// The commands of [`scripts`], of all pages one after the other.
pub fn commands(kind: &str) -> Result<Vec<String>> {
    Ok(scripts(kind)?.into_iter().flat_map(|(_, commands)| commands).collect())
}

/// The commands of a program in the text itself, between backquotes, of the pages whose commands are run.
pub fn inline(program: &str) -> Result<Vec<String>> {
    let pages = pages()?.into_iter();
    let listed = pages.filter(|(name, _)| INLINE.iter().any(|page| name.starts_with(page)));
    let found: Vec<_> = listed.flat_map(|(_, text)| parse_inline(&text, program)).collect();
    ensure!(!found.is_empty(), "no page has a command of {program} in its text");
    Ok(found)
}

/// Every kind of block, with the page that has it.
pub fn kinds() -> Result<Vec<(String, String)>> {
    let mut kinds = Vec::new();
    for (name, text) in pages()? {
        let mut within = false;
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("```") {
                within = !within;
                if within {
                    kinds.push((name.clone(), kind.to_owned()));
                }
            }
        }
    }
    Ok(kinds)
}

/// The text of all blocks of a kind, each with its page.
pub fn blocks(kind: &str) -> Result<Vec<(String, String)>> {
    let fence = format!("```{kind}");
    let mut blocks = Vec::new();
    for (name, text) in pages()? {
        let mut block: Option<String> = None;
        for line in text.lines() {
            if line == fence {
                block = Some(String::new());
            } else if line.starts_with("```") {
                blocks.extend(block.take().map(|text| (name.clone(), text)));
            } else if let Some(block) = &mut block {
                block.push_str(line);
                block.push('\n');
            }
        }
    }
    Ok(blocks)
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

fn parse(page: &str, kind: &str) -> Vec<String> {
    let fence = format!("```{kind}");
    let mut within = false;
    let mut found = Vec::new();
    for line in page.lines() {
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

fn parse_inline(page: &str, program: &str) -> Vec<String> {
    let mut within = false;
    let outside = page.lines().filter(|line| {
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

    #[test]
    fn pages_are_the_readme_and_the_book_without_links() {
        let names: Vec<_> = pages().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.first().map(String::as_str), Some("README.md"));
        assert!(
            names.contains(&"docs/book/src/start/quick-start.md".to_owned()),
            "{names:?}"
        );
        assert!(!names.iter().any(|name| name.contains("/adr/")), "{names:?}");
    }
}
