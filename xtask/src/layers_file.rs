//! Reads and writes `docs/layers.txt`: the dependencies that crates and modules may have, and numbers that may only
//! fall.
//!
//! Text behind `#` is a comment. Every other line has one of these forms:
//!
//! | line | meaning |
//! |---|---|
//! | `crate: dependency …` | crates on which a crate depends; `(test)` behind a name: only tests use it |
//! | `crate::module: module …` | modules of the same crate that a module imports |
//! | `cycle crate 4` | files in the largest import cycle of a crate |
//! | `functions 9` | functions that are too long |
//! | `files 9` | files that are too long |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::complaints::Complaints;

/// Path of the file, relative to the root of the workspace.
pub(crate) const FILE: &str = "docs/layers.txt";
/// The module lines follow this line of the file.
const HEADING: &str = "# Modules";
const EXPECTED: &str = "expected `crate: dependency …`, `cycle crate number`, `functions number` or `files number`";

/// For each crate or module, the names of the crates or modules on which it depends.
pub(crate) type Edges = BTreeMap<String, BTreeSet<String>>;

/// Contents of the file.
#[derive(Debug, Default)]
pub(crate) struct LayersFile {
    /// Dependencies of each crate.
    pub(crate) crates: Edges,
    /// Imports of each module, by `crate::module`.
    pub(crate) modules: Edges,
    /// Number of files in the largest import cycle of each crate that has one.
    pub(crate) cycles: BTreeMap<String, usize>,
    /// Number of functions that are longer than the limit.
    pub(crate) functions: usize,
    /// Number of files that are longer than the limit.
    pub(crate) files: usize,
    /// Lines that have none of the forms, or repeat a line.
    pub(crate) complaints: Complaints,
}

impl LayersFile {
    /// Reads and parses the file.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        Ok(Self::parse(&read_text(root)?))
    }

    /// Parses the text of the file.
    pub(crate) fn parse(text: &str) -> Self {
        let mut file = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            if let Err(complaint) = file.add(line) {
                file.complaints.push(format!("{FILE}:{}: {complaint}", index + 1));
            }
        }
        file
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        if let Some((name, edges)) = line.rsplit_once(": ").or_else(|| Some((line.strip_suffix(':')?, ""))) {
            let edges = edges.split_whitespace().map(str::to_owned).collect();
            let known = if name.contains("::") {
                &mut self.modules
            } else {
                &mut self.crates
            };
            return match known.insert(name.to_owned(), edges) {
                Some(_) => Err(format!("{name} is listed twice")),
                None => Ok(()),
            };
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let count = |word: &str| word.parse().map_err(|_| format!("{word} is not a number"));
        match words.as_slice() {
            ["cycle", name, size] => {
                if self.cycles.insert((*name).to_owned(), count(size)?).is_some() {
                    return Err(format!("the cycle of {name} is listed twice"));
                }
            }
            ["functions", number] => self.functions = count(number)?,
            ["files", number] => self.files = count(number)?,
            _ => return Err(EXPECTED.to_owned()),
        }
        Ok(())
    }
}

/// Replaces the module lines of the file. The lines above their heading are written by hand.
pub(crate) fn write_modules(root: &Path, modules: &Edges) -> Result<()> {
    let text = read_text(root)?;
    let above = text.split(HEADING).next().unwrap_or_default();
    let mut new = format!(
        "{above}{HEADING}\n# `crate::module: imported module …`: imports between the top-level modules of a crate.\n"
    );
    let mut last = "";
    for (name, edges) in modules {
        let package = name.split("::").next().unwrap_or_default();
        if package != last {
            new.push('\n');
            last = package;
        }
        let edges: Vec<_> = edges.iter().map(String::as_str).collect();
        writeln!(new, "{}", format!("{name}: {}", edges.join(" ")).trim_end()).context("a String takes everything")?;
    }
    std::fs::write(root.join(FILE), new).with_context(|| format!("cannot write {FILE}"))
}

fn read_text(root: &Path) -> Result<String> {
    std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_line_is_read() {
        let file = LayersFile::parse(
            "# Crates\na:\nb: a c(test) # why\ncycle b 4\n\nfunctions 9\nfiles 8\n\na::x:\na::y: x z\n",
        );
        assert!(file.complaints.is_empty(), "{:?}", file.complaints);
        let edges = |edges: &Edges| format!("{edges:?}");
        assert_eq!(edges(&file.crates), r#"{"a": {}, "b": {"a", "c(test)"}}"#);
        assert_eq!(edges(&file.modules), r#"{"a::x": {}, "a::y": {"x", "z"}}"#);
        assert_eq!(file.cycles, BTreeMap::from([("b".to_owned(), 4)]));
        assert_eq!((file.functions, file.files), (9, 8));
    }

    #[test]
    fn bad_lines_are_named() {
        let complaints = |text: &str| LayersFile::parse(text).complaints.join("\n");
        assert_eq!(complaints("a\n"), format!("docs/layers.txt:1: {EXPECTED}"));
        assert_eq!(complaints("a:\na: b\n"), "docs/layers.txt:2: a is listed twice");
        assert_eq!(complaints("a::b:\na::b:\n"), "docs/layers.txt:2: a::b is listed twice");
        assert_eq!(complaints("cycle a x\n"), "docs/layers.txt:1: x is not a number");
        assert_eq!(
            complaints("cycle a 3\ncycle a 3\n"),
            "docs/layers.txt:2: the cycle of a is listed twice"
        );
    }
}
