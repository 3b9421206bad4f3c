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

use crate::complaints::Complaints;
use crate::layers_file::{self, Edges, FILE, LayersFile};
use crate::workspace::Workspace;

/// Rejects import cycles of more than two files, and imports between modules that docs/layers.txt does not list.
pub(crate) fn check(workspace: &Workspace, file: &LayersFile) -> Result<Complaints> {
    let mut complaints = Complaints::new();
    let mut found = Edges::new();
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
    for (package, cycles) in &cycles {
        complaints.extend(cycles::check(package, cycles, file.cycles.get(*package).copied()));
    }
    let unknown = file
        .cycles
        .keys()
        .filter(|package| !cycles.contains_key(package.as_str()));
    complaints.extend(
        unknown.map(|package| format!("{package} is in {FILE} and not in the workspace: remove its `cycle` line")),
    );
    complaints.extend(layers::compare(&file.modules, &found));
    Ok(complaints)
}

/// Writes the module lines of docs/layers.txt from the imports in the code.
pub(crate) fn write_layers(workspace: &Workspace) -> Result<()> {
    let mut found = Edges::new();
    for (package, root_file) in targets(workspace) {
        let crate_tree = tree::read(root_file, &workspace.root)?;
        layers::add(&mut found, package, &crate_tree, &imports::collect(&crate_tree));
    }
    layers_file::write_modules(&workspace.root, &found)
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
