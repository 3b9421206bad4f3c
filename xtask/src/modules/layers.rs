//! The imports between the top-level modules of each crate: the module lines of docs/layers.txt.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Graph;
use super::tree::Tree;
use crate::Complaints;

const FILE: &str = "docs/layers.txt";
/// The module lines follow this line of the file.
const HEADING: &str = "# Modules";

/// The imported modules of the same crate, by `crate::module`.
pub(crate) type ModuleLayers = BTreeMap<String, BTreeSet<String>>;

/// Adds the imports between the top-level modules of one target.
pub(super) fn add(found: &mut ModuleLayers, package: &str, tree: &Tree, graph: &Graph) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (path, module) in tree {
        if let Some(top) = path.first() {
            owners.entry(&module.file).or_insert(top);
        }
    }
    let key = |top: &str| format!("{package}::{top}");
    for top in owners.values() {
        found.entry(key(top)).or_default();
    }
    for (from, imports) in graph {
        for to in imports.keys() {
            if let (Some(from), Some(to)) = (owners.get(from.as_str()), owners.get(to.as_str()))
                && from != to
            {
                found.entry(key(from)).or_default().insert((*to).to_owned());
            }
        }
    }
}

/// Reads the module lines from the text of the file.
pub(crate) fn parse(text: &str) -> (ModuleLayers, Complaints) {
    let (mut layers, mut complaints) = (ModuleLayers::new(), Complaints::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some((name, edges)) = line.rsplit_once(": ").or_else(|| Some((line.strip_suffix(':')?, ""))) else {
            continue;
        };
        if !name.contains("::") {
            continue;
        }
        let edges = edges.split_whitespace().map(str::to_owned).collect();
        if layers.insert(name.to_owned(), edges).is_some() {
            complaints.push(format!("{FILE}:{}: {name} is listed twice", index + 1));
        }
    }
    (layers, complaints)
}

/// Reads the `cycle` lines: for each crate the number of files in its largest cycle.
pub(super) fn read_largest_cycles(root: &Path) -> Result<BTreeMap<String, usize>> {
    let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let cycles = text
        .lines()
        .filter_map(|line| line.strip_prefix("cycle ")?.split_once(' '));
    cycles
        .map(|(package, size)| {
            let size = size
                .parse()
                .with_context(|| format!("{FILE}: the size of the cycle of {package}"))?;
            Ok((package.to_owned(), size))
        })
        .collect()
}

/// Compares the imports in the code with the file.
pub(super) fn compare(root: &Path, found: &ModuleLayers) -> Result<Complaints> {
    let text = std::fs::read_to_string(root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let (allowed, mut complaints) = parse(&text);
    complaints.extend(differences(&allowed, found));
    Ok(complaints)
}

fn differences(allowed: &ModuleLayers, found: &ModuleLayers) -> Complaints {
    let mut complaints = Complaints::new();
    let none = BTreeSet::new();
    for name in allowed.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
        match (allowed.contains_key(name), found.contains_key(name)) {
            (true, false) => complaints.push(format!("{name} is in {FILE} and not in the code: remove the line")),
            (false, true) => complaints.push(format!("{name} is in the code and not in {FILE}: add a line")),
            _ => {}
        }
        let (allowed, found) = (allowed.get(name).unwrap_or(&none), found.get(name).unwrap_or(&none));
        for edge in found.difference(allowed) {
            complaints.push(format!("{name} imports {edge}, which {FILE} does not allow"));
        }
        for edge in allowed.difference(found) {
            complaints.push(format!(
                "{FILE} lets {name} import {edge}, which it does not: remove the word"
            ));
        }
    }
    complaints
}

/// Writes the lines below the heading from the code. The lines above the heading are written by
/// hand.
pub(super) fn write(root: &Path, found: &ModuleLayers) -> Result<()> {
    let file = root.join(FILE);
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {FILE}"))?;
    let above = text.split(HEADING).next().unwrap_or_default();
    let mut new = format!(
        "{above}{HEADING}\n# `crate::module: imported module …`: imports between the top-level modules of a crate.\n"
    );
    let mut last = "";
    for (name, edges) in found {
        let package = name.split("::").next().unwrap_or_default();
        if package != last {
            new.push('\n');
            last = package;
        }
        let edges: Vec<_> = edges.iter().map(String::as_str).collect();
        writeln!(new, "{}", format!("{name}: {}", edges.join(" ")).trim_end()).context("a String takes everything")?;
    }
    std::fs::write(&file, new).with_context(|| format!("cannot write {FILE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named() {
        let layers = |text: &str| parse(text).0;
        let same = "yoke-a: yoke-b\nyoke-a::b:\nyoke-a::c: b # why\n";
        assert!(differences(&layers(same), &layers(same)).is_empty());
        for (found, complaint) in [
            (
                "a::b: c\na::c: b",
                "a::b imports c, which docs/layers.txt does not allow",
            ),
            (
                "a::b:\na::c:",
                "docs/layers.txt lets a::c import b, which it does not: remove the word",
            ),
            (
                "a::b:",
                "a::c is in docs/layers.txt and not in the code: remove the line",
            ),
            (
                "a::b:\na::c: b\na::d:",
                "a::d is in the code and not in docs/layers.txt: add a line",
            ),
        ] {
            let complaints = differences(&layers("a::b:\na::c: b"), &layers(found));
            assert!(complaints.iter().any(|c| c == complaint), "{found}: {complaints:?}");
        }
    }
}
