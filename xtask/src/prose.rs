//! The prose lint: finds sentence openings and words that the language guide rejects, in comments
//! of production code.
//!
//! ```text
//!  *.rs without tests ──blocks──▶ runs of comment lines ──paragraphs──▶ text without code and links
//!      ──▶ openings and words of the guide ──▶ complaints, but for docs/prose-exceptions.txt
//! ```
//!
//! The guide and its glossary are in docs/book/src/contributor/writing.md.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use crate::complaints::Complaints;
use crate::sources::production_files;
use crate::workspace::Workspace;

const EXCEPTIONS: &str = "docs/prose-exceptions.txt";

/// Words that must not begin a sentence, because they leave out the subject.
const OPENINGS: &[&str] = &[
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "Of",
    "Those",
    "What",
    "Whatever",
    "That which",
    "Nobody",
    "The same",
    "One is",
    "One that",
    "One who",
    "One of",
    "One which",
    "One may",
    "By whom",
    "By which",
    "To whom",
    "In which",
    "From which",
    "Which",
    "Such",
    "He",
    "His",
];

/// Words that must not begin a comment, because they refer to something that is not in the comment.
const FIRST_WORDS: &[&str] = &["It", "Its", "They", "These", "Them", "There is one", "So"];

/// Rejected words, each with its replacements.
const WORDS: &[(&str, &str)] = &[
    ("told", "published, notified"),
    ("anew", "again; starts, restarts"),
    ("whoever", "name the subject"),
    ("stranger", "unauthenticated client"),
    ("strangers", "unauthenticated clients"),
    ("let in", "admitted"),
    ("lets in", "admits"),
    ("carry out", "reconcile, apply"),
    ("carries out", "reconciles, applies"),
    ("carried out", "reconciled, applied"),
    ("stand by", "standby"),
    ("stands by", "standby"),
    ("once more", "again"),
    ("come back", "recover, return"),
    ("comes back", "recovers, returns"),
    ("came back", "recovered, returned"),
    ("of whom", "name the subject"),
    ("by whom", "name the subject"),
    ("to whom", "name the subject"),
    ("from whom", "name the subject"),
    ("of which", "rewrite the sentence"),
    ("by which", "through which, or rewrite the sentence"),
    ("is so", "say what is the case"),
    ("are so", "say what is the case"),
    ("was so", "say what was the case"),
    ("he", "it: a client is no person"),
    ("him", "it: a client is no person"),
    ("his", "its: a client is no person"),
    ("hosted namespace", "control-plane namespace"),
    ("hosted namespaces", "control-plane namespaces"),
    ("asked", "requested"),
    ("asks", "requests"),
    ("noted", "recorded"),
    ("heed", "obey, apply"),
    ("heeds", "obeys, applies"),
    ("hears", "is notified, receives"),
    ("heard", "received"),
    ("kept", "persisted, cached, maintained"),
    ("foreign", "owned by another"),
    ("stray", "unexpected"),
    ("damaged", "corrupt"),
    ("former", "previous"),
    ("leash", "deadline"),
    ("gist", "summary"),
    ("jury", "sample"),
    ("scribe", "writer"),
    ("leaf", "certificate"),
    ("door", "port, listener"),
    ("doors", "ports, listeners"),
    ("seat", "slot, permit"),
    ("seats", "slots, permits"),
    ("somebody", "name the subject"),
    ("nobody", "name the subject"),
];

/// Paths of files, each with a word that the lint accepts there.
type Exceptions = BTreeSet<(String, String)>;

/// Checks the comments of all production code.
pub(crate) fn check(workspace: &Workspace) -> Result<Complaints> {
    let text = std::fs::read_to_string(workspace.root.join(EXCEPTIONS))
        .with_context(|| format!("cannot read {EXCEPTIONS}"))?;
    let (exceptions, mut complaints) = parse_exceptions(&text);
    let mut findings = Vec::new();
    for file in production_files(workspace)? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let shown = file
            .strip_prefix(&workspace.root)
            .unwrap_or(&file)
            .display()
            .to_string();
        findings.extend(find(&text).into_iter().map(|finding| (shown.clone(), finding)));
    }
    complaints.extend(compare(&exceptions, &findings));
    Ok(complaints)
}

/// Complains about findings without an exception, and about exceptions that no finding needs.
fn compare(exceptions: &Exceptions, findings: &[(String, Finding)]) -> Complaints {
    let mut complaints = Complaints::new();
    let mut used = Exceptions::new();
    for (file, finding) in findings {
        let exception = (file.clone(), finding.word.to_lowercase());
        if exceptions.contains(&exception) {
            used.insert(exception);
            continue;
        }
        complaints.push(format!(
            "{file}:{}: \"{}\": {} (docs/book/src/contributor/writing.md)",
            finding.line, finding.word, finding.advice
        ));
    }
    for (file, word) in exceptions.difference(&used) {
        complaints.push(format!(
            "{EXCEPTIONS} excepts \"{word}\" in {file}, which does not use it: remove the line"
        ));
    }
    complaints
}

/// A place in a comment that violates the guide.
#[derive(Debug, PartialEq)]
struct Finding {
    /// First line of the paragraph, counted from 1.
    line: usize,
    word: String,
    advice: String,
}

/// Finds violations in the comments of a source text. Stops at the unit tests.
fn find(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, paragraph) in paragraphs(text) {
        let prose = strip_code(&paragraph);
        for (is_first, sentence) in sentences(&prose)
            .into_iter()
            .enumerate()
            .map(|(index, s)| (index == 0, s))
        {
            let openings = OPENINGS.iter().chain(if is_first { FIRST_WORDS } else { &[] });
            for opening in openings {
                if begins_with(sentence, opening) {
                    findings.push(Finding {
                        line,
                        word: (*opening).to_owned(),
                        advice: "name the subject first".to_owned(),
                    });
                }
            }
        }
        let lower = prose.to_lowercase();
        for (word, advice) in WORDS.iter().filter(|(word, _)| contains_word(&lower, word)) {
            findings.push(Finding {
                line,
                word: (*word).to_owned(),
                advice: format!("write: {advice}"),
            });
        }
    }
    findings
}

/// The paragraphs of all comments, each with its first line. Code blocks are left out.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut current: Option<(usize, &str, String)> = None;
    let mut is_code = false;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let next = lines.peek().map_or("", |(_, next)| next);
        if line == "#[cfg(test)]" && next.starts_with("mod ") && next.ends_with('{') {
            break;
        }
        let comment = split_comment(line);
        let Some((marker, content)) = comment else {
            found.extend(current.take().map(|(line, _, text)| (line, text)));
            is_code = false;
            continue;
        };
        if content.trim_start().starts_with("```") {
            is_code = !is_code;
            found.extend(current.take().map(|(line, _, text)| (line, text)));
        } else if is_code || content.trim().is_empty() {
            found.extend(current.take().map(|(line, _, text)| (line, text)));
        } else if let Some((_, _, text)) = current.as_mut().filter(|(_, known, _)| *known == marker) {
            text.push(' ');
            text.push_str(content.trim());
        } else {
            found.extend(current.take().map(|(line, _, text)| (line, text)));
            current = Some((index + 1, marker, content.trim().to_owned()));
        }
    }
    found.extend(current.map(|(line, _, text)| (line, text)));
    found
}

/// The marker and the text of a line that contains only a comment.
fn split_comment(line: &str) -> Option<(&'static str, &str)> {
    let line = line.trim_start();
    ["//!", "///", "//"]
        .into_iter()
        .find_map(|marker| Some((marker, line.strip_prefix(marker)?)))
}

/// Replaces each code span with a placeholder word.
fn strip_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 0 { part } else { "code" })
        .collect()
}

fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut begin = 0;
    for (index, _) in text.match_indices(' ') {
        if text[..index].ends_with(['.', '!', '?', ':', ';']) {
            found.push(text[begin..index].trim());
            begin = index + 1;
        }
    }
    found.push(text[begin..].trim());
    found
}

fn begins_with(sentence: &str, opening: &str) -> bool {
    let sentence = sentence.trim_start_matches(['-', '*', ' ']);
    let rest = sentence.strip_prefix(opening);
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '\'' || c == '-'))
}

fn contains_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word)
        .any(|(index, _)| !text[..index].ends_with(is_part) && !text[index + word.len()..].starts_with(is_part))
}

/// Parses the exceptions, one per line: `path: word: reason`.
fn parse_exceptions(text: &str) -> (Exceptions, Complaints) {
    let (mut exceptions, mut complaints) = (Exceptions::new(), Complaints::new());
    for (index, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
    {
        let parts: Vec<_> = line.splitn(3, ':').map(str::trim).collect();
        match parts.as_slice() {
            [file, word, reason] if !reason.is_empty() => {
                if !exceptions.insert(((*file).to_owned(), word.to_lowercase())) {
                    complaints.push(format!(
                        "{EXCEPTIONS}:{}: {file} and {word} are listed twice",
                        index + 1
                    ));
                }
            }
            _ => complaints.push(format!("{EXCEPTIONS}:{}: expected `path: word: reason`", index + 1)),
        }
    }
    (exceptions, complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        find(text).into_iter().map(|finding| finding.word).collect()
    }

    #[test]
    fn each_rule_finds_its_place_and_no_other() {
        for (rule, text, expected) in [
            (
                "a clause as the subject",
                "/// Who took so long.\nfn a() {}",
                vec!["Who"],
            ),
            ("in a later sentence", "/// A name. Of what it is.\n", vec!["Of"]),
            ("a pronoun at the beginning", "// It is late.\n", vec!["It"]),
            ("a pronoun later", "// A lease ends. It is late.\n", vec![]),
            ("a longer word", "/// Offers a name. Whole seconds.\n", vec![]),
            (
                "a dropped word",
                "/// The operator is\n/// told a name.\n",
                vec!["told"],
            ),
            ("in code", "/// The field `told` of the type.\n", vec![]),
            (
                "in a drawing",
                "//! A flow:\n//!\n//! ```text\n//!  told ─▶ asked\n//! ```\n",
                vec![],
            ),
            ("in a string", "let a = \"told\";\n", vec![]),
            (
                "in a unit test",
                "#[cfg(test)]\nmod tests {\n    // It was told.\n}\n",
                vec![],
            ),
            ("two comments", "/// A lease.\n// So it ends.\n", vec!["So"]),
        ] {
            assert_eq!(words(text), expected, "{rule}");
        }
    }

    #[test]
    fn a_finding_names_its_line_and_what_to_write() {
        let found = find("fn a() {}\n\n/// A lease.\n///\n/// The client is told.\n");
        assert_eq!(
            found,
            [Finding {
                line: 5,
                word: "told".into(),
                advice: "write: published, notified".into()
            }]
        );
    }

    #[test]
    fn an_exception_must_be_complete_and_needed() {
        let found = |file: &str| {
            find("/// It was told.\n")
                .into_iter()
                .map(|f| (file.to_owned(), f))
                .collect::<Vec<_>>()
        };
        let (exceptions, complaints) = parse_exceptions("# Why.\na.rs: It: a reason\na.rs: told: a: reason\n");
        assert!(complaints.is_empty(), "{complaints:?}");
        assert!(compare(&exceptions, &found("a.rs")).is_empty());
        let complaints = compare(&exceptions, &found("b.rs"));
        assert_eq!(complaints.len(), 4, "{complaints:?}");
        assert!(complaints[3].ends_with("excepts \"told\" in a.rs, which does not use it: remove the line"));
        for (text, complaint) in [
            (
                "a.rs: told",
                "docs/prose-exceptions.txt:1: expected `path: word: reason`",
            ),
            (
                "a.rs: told: x\na.rs: told: y",
                "docs/prose-exceptions.txt:2: a.rs and told are listed twice",
            ),
        ] {
            assert_eq!(parse_exceptions(text).1, [complaint], "{text}");
        }
    }
}
