//! Finds import cycles between files.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::imports::Graph;
use crate::complaints::Complaints;

/// Maximum number of files in an allowed cycle. A type and the one function that creates it are
/// readable as a pair.
const LARGEST: usize = 2;

/// A cycle of a package: its number of files, and the complaint about it.
pub(super) struct Cycle {
    size: usize,
    description: String,
}

impl Cycle {
    /// Describes a cycle of a target.
    pub(super) fn new(files: &[String], graph: &Graph) -> Self {
        Self {
            size: files.len(),
            description: describe(files, graph),
        }
    }
}

/// Complains about cycles larger than the package's number in docs/layers.txt, and about a number that is too large.
pub(super) fn check(package: &str, cycles: &[Cycle], known: Option<usize>) -> Complaints {
    let found = cycles.iter().map(|cycle| cycle.size).max().unwrap_or_default();
    match known {
        Some(known) if found == known => Complaints::new(),
        Some(known) if found < known => vec![match found {
            0 => format!("{package} has no cycle of more than {LARGEST} files: remove its `cycle` line"),
            found => format!("the largest cycle of {package} has {found} files: lower {known} in its `cycle` line"),
        }],
        _ => cycles.iter().map(|cycle| cycle.description.clone()).collect(),
    }
}

/// The cycles of more than [`LARGEST`] files, each sorted by path.
pub(super) fn find(graph: &Graph) -> Vec<Vec<String>> {
    let edges = graph
        .iter()
        .flat_map(|(from, imports)| imports.keys().map(|to| (from.as_str(), to.as_str())));
    let mut cycles: Vec<Vec<String>> = tarjan_scc(&DiGraphMap::<&str, ()>::from_edges(edges))
        .into_iter()
        .filter(|files| files.len() > LARGEST)
        .map(|files| {
            let mut files: Vec<_> = files.into_iter().map(str::to_owned).collect();
            files.sort();
            files
        })
        .collect();
    cycles.sort();
    cycles
}

/// Describes one cycle: its files, and the imports that form it.
pub(super) fn describe(cycle: &[String], graph: &Graph) -> String {
    let mut text = format!(
        "{} files import each other in a cycle; move what ties them below both:",
        cycle.len()
    );
    for (from, imports) in graph.iter().filter(|(from, _)| cycle.contains(from)) {
        for (to, names) in imports.iter().filter(|(to, _)| cycle.contains(to)) {
            text.push_str(&format!("\n    {from} -> {to}: {}", names.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in edges {
            let imports: &mut BTreeMap<_, _> = graph.entry((*from).to_owned()).or_default();
            imports.insert((*to).to_owned(), vec!["Name".to_owned()]);
        }
        graph
    }

    #[test]
    fn cycles_of_three_files_are_found_and_pairs_are_not() {
        assert!(find(&graph(&[("a", "b"), ("b", "a"), ("b", "c")])).is_empty());
        let circle = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]);
        assert_eq!(find(&circle), [["a", "b", "c"]]);
        let text = describe(&find(&circle)[0], &circle);
        assert!(text.starts_with("3 files import each other"), "{text}");
        assert!(text.ends_with("c -> a: Name"), "{text}");
    }

    #[test]
    fn a_known_cycle_may_shrink_and_not_grow() {
        let circle = graph(&[("a", "b"), ("b", "c"), ("c", "a")]);
        let cycles: Vec<_> = find(&circle).iter().map(|files| Cycle::new(files, &circle)).collect();
        assert!(check("x", &cycles, Some(3)).is_empty());
        assert_eq!(check("x", &cycles, Some(2)).len(), 1, "it grew");
        assert_eq!(check("x", &cycles, None).len(), 1, "it is new");
        let lower = "the largest cycle of x has 3 files: lower 4 in its `cycle` line";
        assert_eq!(check("x", &cycles, Some(4)), [lower]);
        let gone = "x has no cycle of more than 2 files: remove its `cycle` line";
        assert_eq!(check("x", &[], Some(4)), [gone]);
    }
}
