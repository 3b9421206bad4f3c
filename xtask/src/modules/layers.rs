//! The imports between the top-level modules of each crate: the module lines of docs/layers.txt.

use std::collections::{BTreeMap, BTreeSet};

use super::imports::Graph;
use super::tree::Tree;
use crate::complaints::Complaints;
use crate::layers_file::{Edges, FILE};

/// Adds the imports between the top-level modules of one target.
pub(super) fn add(found: &mut Edges, package: &str, tree: &Tree, graph: &Graph) {
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

/// Compares the imports that the file allows with those in the code.
pub(super) fn compare(allowed: &Edges, found: &Edges) -> Complaints {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers_file::LayersFile;

    #[test]
    fn every_difference_is_named() {
        let layers = |text: &str| LayersFile::parse(text).modules;
        let same = "yoke-a: yoke-b\nyoke-a::b:\nyoke-a::c: b # why\n";
        assert!(compare(&layers(same), &layers(same)).is_empty());
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
            let complaints = compare(&layers("a::b:\na::c: b"), &layers(found));
            assert!(complaints.iter().any(|c| c == complaint), "{found}: {complaints:?}");
        }
    }
}
