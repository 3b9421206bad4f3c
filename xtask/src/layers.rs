//! Compares the dependencies between the crates of the workspace with `docs/layers.txt`.
//!
//! Each line describes a crate: `name: dependency …`. `(test)` follows a dependency that only tests
//! use.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

use crate::Complaints;
use crate::workspace::Workspace;

const FILE: &str = "docs/layers.txt";

type Layers = BTreeMap<String, BTreeSet<String>>;

/// Compares the manifests with the file.
pub(crate) fn check(workspace: &Workspace) -> Result<Complaints> {
    let text = std::fs::read_to_string(workspace.root.join(FILE)).with_context(|| format!("cannot read {FILE}"))?;
    let (allowed, mut complaints) = parse(&text);
    complaints.extend(compare(&allowed, &observe(workspace)));
    Ok(complaints)
}

fn observe(workspace: &Workspace) -> Layers {
    let edges = |package: &crate::workspace::Package| {
        let inside = package
            .dependencies
            .iter()
            .filter(|dependency| dependency.path.is_some());
        inside
            .map(|dependency| match dependency.kind.as_deref() {
                Some("dev") => format!("{}(test)", dependency.name),
                _ => dependency.name.clone(),
            })
            .collect()
    };
    workspace
        .packages
        .iter()
        .map(|package| (package.name.clone(), edges(package)))
        .collect()
}

fn parse(text: &str) -> (Layers, Complaints) {
    let (mut layers, mut complaints) = (Layers::new(), Complaints::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        // The lines of modules and cycles have a check of their own.
        if line.contains("::") || line.starts_with("cycle ") {
            continue;
        }
        match line.split_once(':') {
            Some((name, edges)) => {
                let edges = edges.split_whitespace().map(str::to_owned).collect();
                if layers.insert(name.trim().to_owned(), edges).is_some() {
                    complaints.push(format!("{FILE}:{}: {} is listed twice", index + 1, name.trim()));
                }
            }
            None => complaints.push(format!("{FILE}:{}: expected `crate: dependency …`", index + 1)),
        }
    }
    (layers, complaints)
}

fn compare(allowed: &Layers, found: &Layers) -> Complaints {
    let mut complaints = Complaints::new();
    let none = BTreeSet::new();
    for name in allowed.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
        if !found.contains_key(name) {
            complaints.push(format!("{name} is in {FILE} and not in the workspace: remove the line"));
            continue;
        }
        if !allowed.contains_key(name) {
            complaints.push(format!("{name} is in the workspace and not in {FILE}: add a line"));
        }
        let (allowed, found) = (allowed.get(name).unwrap_or(&none), found.get(name).unwrap_or(&none));
        for edge in found.difference(allowed) {
            complaints.push(format!("{name} depends on {edge}, which {FILE} does not allow"));
        }
        for edge in allowed.difference(found) {
            complaints.push(format!(
                "{FILE} lets {name} depend on {edge}, which it does not: remove the word"
            ));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(text: &str) -> Layers {
        let (layers, complaints) = parse(text);
        assert!(complaints.is_empty(), "{complaints:?}");
        layers
    }

    #[test]
    fn every_difference_is_named() {
        let same = "a:\nb: a # why\n\nc: a b(test)\n";
        assert!(compare(&layers(same), &layers(same)).is_empty());
        for (found, complaint) in [
            (
                "a: b\nb: a\nc: a b(test)",
                "a depends on b, which docs/layers.txt does not allow",
            ),
            (
                "a:\nb: a\nc: a b",
                "c depends on b, which docs/layers.txt does not allow",
            ),
            (
                "a:\nb:\nc: a b(test)",
                "docs/layers.txt lets b depend on a, which it does not: remove the word",
            ),
            (
                "a:\nb: a",
                "c is in docs/layers.txt and not in the workspace: remove the line",
            ),
            (
                "a:\nb: a\nc: a b(test)\nd:",
                "d is in the workspace and not in docs/layers.txt: add a line",
            ),
        ] {
            let complaints = compare(&layers(same), &layers(found));
            assert!(complaints.iter().any(|c| c == complaint), "{found}: {complaints:?}");
        }
    }

    #[test]
    fn bad_lines_are_named() {
        assert_eq!(parse("a\n").1, ["docs/layers.txt:1: expected `crate: dependency …`"]);
        assert_eq!(parse("a:\na: b\n").1, ["docs/layers.txt:2: a is listed twice"]);
    }
}
