//! Checks the imports between the files inside each crate.
//!
//! ```text
//!  a target's root file ──tree──▶ its modules and their files
//!                       ──imports──▶ edges from file to file
//!                       ──layers──▶ compared with the module lines of docs/layers.txt
//!                       ──cycles──▶ no cycle of more than two files
//! ```
//!
//! A crate whose cycles are not broken yet has its largest one in docs/layers.txt; that number may only fall.
//!
//! Test code is left out. An import through a re-export counts as an import of the file that
//! defines the name. The re-export itself does not count.

mod cycles;
mod imports;
mod layers;
mod tree;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::Complaints;
use crate::workspace::Workspace;

/// The import graph of one target: for each file, the files that it imports and the imported names.
type Graph = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Rejects import cycles of more than two files, and imports between modules that docs/layers.txt does not list.
pub(crate) fn check(workspace: &Workspace) -> Result<Complaints> {
    let mut complaints = Complaints::new();
    let mut found = layers::ModuleLayers::new();
    let mut cycles: BTreeMap<&str, Vec<cycles::Cycle>> = BTreeMap::new();
    for (package, root_file) in targets(workspace) {
        let crate_tree = tree::read(root_file, &workspace.root)?;
        let graph = imports::collect(&crate_tree);
        cycles.entry(package).or_default().extend(
            cycles::find(&graph)
                .iter()
                .map(|files| cycles::Cycle::new(files, &graph)),
        );
        layers::add(&mut found, package, &crate_tree, &graph);
    }
    let largest = layers::read_largest_cycles(&workspace.root)?;
    for (package, cycles) in &cycles {
        complaints.extend(cycles::check(package, cycles, largest.get(*package).copied()));
    }
    complaints.extend(layers::compare(&workspace.root, &found)?);
    Ok(complaints)
}

/// Writes the module lines of docs/layers.txt from the imports in the code.
pub(crate) fn write_layers(workspace: &Workspace) -> Result<()> {
    let mut found = layers::ModuleLayers::new();
    for (package, root_file) in targets(workspace) {
        let crate_tree = tree::read(root_file, &workspace.root)?;
        layers::add(&mut found, package, &crate_tree, &imports::collect(&crate_tree));
    }
    layers::write(&workspace.root, &found)
}

/// The library of each package, or the first binary if there is no library. Other binaries have
/// only a few files each.
fn targets(workspace: &Workspace) -> impl Iterator<Item = (&str, &Path)> {
    workspace.packages.iter().flat_map(|package| {
        let of_kind = |kind: &'static str| {
            package
                .targets
                .iter()
                .filter(move |target| target.kind.iter().any(|k| k == kind))
        };
        of_kind("lib")
            .chain(of_kind("bin"))
            .map(|target| (package.name.as_str(), target.src_path.as_path()))
    })
}
