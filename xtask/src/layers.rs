//! Compares the dependencies between the crates of the workspace with `docs/layers.txt`.

use std::collections::BTreeSet;

use crate::complaints::Complaints;
use crate::layers_file::{Edges, FILE, LayersFile};
use crate::workspace::{Package, Workspace};

/// Compares the manifests with the file. Also returns the complaints about lines that cannot be read.
pub(crate) fn check(workspace: &Workspace, file: &LayersFile) -> Complaints {
    let mut complaints = file.complaints.clone();
    complaints.extend(compare(&file.crates, &observe(workspace)));
    complaints
}

fn observe(workspace: &Workspace) -> Edges {
    let edges = |package: &Package| {
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

fn compare(allowed: &Edges, found: &Edges) -> Complaints {
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

    fn layers(text: &str) -> Edges {
        let file = LayersFile::parse(text);
        assert!(file.complaints.is_empty(), "{:?}", file.complaints);
        file.crates
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
}
