//! Checks links, anchors and source paths in the documentation.
//!
//! Input: every `*.md` of the repository, and paths of `docs/` in other text files. Output: one
//! complaint for each target that does not exist. Links to other hosts are not followed.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::complaints::Complaints;

/// Folders whose files are not part of the repository.
const SKIPPED: [&str; 4] = ["target", ".dev", ".git", "node_modules"];
const BOOK: &str = "docs/book/src";
const SUMMARY: &str = "SUMMARY.md";
/// Extensions of the text files, besides Markdown, that may name a page.
const NAMERS: [&str; 5] = ["rs", "yaml", "toml", "sh", "tpl"];
/// Extensions of the files in `docs/` that other files name.
const NAMED: [&str; 4] = [".md", ".json", ".txt", ".svg"];

/// Checks all pages of the repository.
pub(crate) fn check(root: &Path) -> Result<Complaints> {
    let mut files = Vec::new();
    find_files(root, root, &mut files)?;
    files.sort();
    let mut pages = BTreeMap::new();
    let mut complaints = Complaints::new();
    for file in &files {
        let extension = file
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if extension == "md" {
            pages.insert(file.clone(), read(root, file)?);
        } else if NAMERS.contains(&extension) || name == "Makefile" {
            let named = find_named(&read(root, file)?);
            let missing = named.into_iter().filter(|path| !root.join(path).exists());
            complaints.extend(missing.map(|path| format!("{}: {path} does not exist", file.display())));
        }
    }
    for (file, text) in &pages {
        let page = Page::parse(text);
        for link in &page.links {
            complaints.extend(check_link(root, file, link, &pages));
        }
        for path in page.paths.iter().filter(|path| names_source(root, path)) {
            if !root.join(path).exists() {
                complaints.push(format!("{}: `{path}` does not exist", file.display()));
            }
        }
    }
    complaints.extend(check_summary(root, &pages)?);
    Ok(complaints)
}

/// The parts of a page that are checked.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    /// Targets of links and images.
    links: Vec<String>,
    /// Code spans that look like paths.
    paths: Vec<String>,
    /// Anchors of the headings.
    anchors: Vec<String>,
}

impl Page {
    /// Parses the text outside of fenced code blocks.
    fn parse(text: &str) -> Self {
        let mut page = Self::default();
        let mut within = false;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                within = !within;
                continue;
            }
            if within {
                continue;
            }
            if let Some(title) = line.strip_prefix('#') {
                page.anchors.push(to_anchor(title.trim_start_matches('#').trim()));
            }
            // A code span contains no links.
            for (index, part) in line.split('`').enumerate() {
                if index % 2 == 1 && is_path(part) {
                    page.paths.push(part.to_owned());
                }
            }
            page.links.extend(find_links(line));
        }
        page
    }
}

/// Targets of `[text](target)`. The text may contain code spans, the target may not.
fn find_links(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((_, behind)) = rest.split_once("](") {
        let Some((target, further)) = behind.split_once(')') else {
            break;
        };
        found.push(target.split(' ').next().unwrap_or_default().to_owned());
        rest = further;
    }
    found
}

/// The anchor that GitHub and mdBook generate for a heading.
fn to_anchor(title: &str) -> String {
    let kept = title.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        _ if character.is_alphanumeric() || character == '-' || character == '_' => Some(character),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

fn is_path(word: &str) -> bool {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    word.contains('/') && !word.starts_with(['/', '.', '-']) && word.chars().all(is_plain)
}

/// Whether a path begins with a folder of the repository, and so names a source file.
fn names_source(root: &Path, path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    !SKIPPED.contains(&first) && root.join(first).is_dir()
}

/// Paths of documents that a text names.
fn find_named(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("docs/") {
        let before = text.get(..start).and_then(|before| before.chars().next_back());
        if before.is_some_and(|character| character.is_ascii_alphanumeric() || "/-_.".contains(character)) {
            continue;
        }
        let rest = text.get(start..).unwrap_or_default();
        let is_part = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
        let end = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let path = rest.get(..end).unwrap_or_default().trim_end_matches('.');
        if NAMED.iter().any(|extension| path.ends_with(extension)) {
            found.push(path.to_owned());
        }
    }
    found
}

fn check_link(root: &Path, file: &Path, link: &str, pages: &BTreeMap<PathBuf, String>) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = match target {
        "" => file.to_path_buf(),
        _ => normalize(&file.parent().unwrap_or(Path::new("")).join(target)),
    };
    if !root.join(&path).exists() {
        return Some(format!("{}: the link {link} leads nowhere", file.display()));
    }
    if anchor.is_empty() {
        return None;
    }
    // The book may contain the page as a symbolic link.
    let real = root.join(&path).canonicalize().ok();
    let real = real
        .as_deref()
        .and_then(|real| real.strip_prefix(root.canonicalize().ok()?).ok().map(Path::to_path_buf));
    let text = real
        .as_ref()
        .and_then(|real| pages.get(real))
        .or_else(|| pages.get(&path))?;
    match Page::parse(text).anchors.iter().any(|known| known == anchor) {
        true => None,
        false => Some(format!("{}: the link {link} names no heading", file.display())),
    }
}

/// Checks that the summary lists every page of the book, because mdBook leaves out other pages.
fn check_summary(root: &Path, pages: &BTreeMap<PathBuf, String>) -> Result<Complaints> {
    let book = Path::new(BOOK);
    let summary = book.join(SUMMARY);
    let text =
        std::fs::read_to_string(root.join(&summary)).with_context(|| format!("cannot read {}", summary.display()))?;
    let listed: Vec<_> = Page::parse(&text).links.iter().map(|link| book.join(link)).collect();
    let inside = pages.keys().filter(|page| page.starts_with(book) && **page != summary);
    let missing = inside.filter(|page| !listed.contains(page));
    Ok(missing
        .map(|page| format!("{} is not in {}", page.display(), summary.display()))
        .collect())
}

fn normalize(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::CurDir => {}
            other => parts.push(other),
        }
    }
    parts
}

fn read(root: &Path, file: &Path) -> Result<String> {
    std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {}", file.display()))
}

/// Finds regular files below a folder, as paths relative to the root. Does not follow symbolic
/// links.
fn find_files(root: &Path, folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED.iter().any(|skipped| name == *skipped) {
            find_files(root, &entry.path(), found)?;
        } else if kind.is_file() {
            found.push(entry.path().strip_prefix(root).unwrap_or(&entry.path()).to_path_buf());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_repository_link_to_what_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let complaints = check(&root).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    #[test]
    fn links_paths_and_anchors_are_found_outside_of_blocks() {
        let text = "# A `b` c: d\n[`x`](y.md#z) ![p](q.svg) `src/a.md` `not a/path`\n```text\n[n](o.md)\n```\n## E/F\n";
        let page = Page::parse(text);
        assert_eq!(page.links, ["y.md#z", "q.svg"]);
        assert_eq!(page.paths, ["src/a.md"]);
        assert_eq!(page.anchors, ["a-b-c-d", "ef"]);
    }

    #[test]
    fn named_documents_are_found() {
        // The text uses another folder name, because this test must not name pages that do not
        // exist.
        let text = "see DOCS/adr/0001-a.md. And DOCS/x/{name}.svg, ../DOCS/b.json, https://h/DOCS/c.md, \"DOCS/d.txt\"";
        let found = find_named(&text.replace("DOCS", "docs"));
        let found: Vec<_> = found.iter().map(|path| path.replace("docs", "DOCS")).collect();
        assert_eq!(found, ["DOCS/adr/0001-a.md", "DOCS/d.txt"]);
    }

    #[test]
    fn paths_are_normalized() {
        assert_eq!(normalize(Path::new("a/b/../../c/./d.md")), Path::new("c/d.md"));
    }
}
