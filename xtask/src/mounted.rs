//! Checks that every `.rs` file of a crate is reachable through `mod` from one of its targets. An
//! unreachable file is not compiled, so neither the file nor its tests can fail.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::complaints::Complaints;
use crate::sources::list;
use crate::workspace::Workspace;

/// Compares the existing files with those that the module trees reach.
pub(crate) fn check(workspace: &Workspace) -> Result<Complaints> {
    let mut complaints = Complaints::new();
    for package in &workspace.packages {
        let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
        let mut mounted = BTreeSet::new();
        for target in &package.targets {
            mount(&target.src_path, true, &mut mounted)?;
        }
        let mut files = Vec::new();
        list(folder, &mut files)?;
        for file in mounted.iter().filter(|file| !file.starts_with(folder)) {
            let shown = file.strip_prefix(&workspace.root).unwrap_or(file).display();
            complaints.push(format!(
                "{} includes {shown} of another crate with `#[path]`: make it a dependency",
                package.name
            ));
        }
        for file in files.iter().filter(|file| !mounted.contains(*file)) {
            let shown = file.strip_prefix(&workspace.root).unwrap_or(file).display();
            complaints.push(format!(
                "{shown} is in no module tree: mount it with `mod`, or remove it"
            ));
        }
    }
    complaints.sort();
    Ok(complaints)
}

/// A `mod` item: its name, and its file if `#[path]` is set.
#[derive(Debug, PartialEq)]
struct Mount {
    name: String,
    path: Option<String>,
}

/// Adds `file` and all files that it reaches. The modules of a target's root file are beside it.
/// The modules of any other file are in the folder with its name.
fn mount(file: &Path, root: bool, mounted: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !mounted.insert(file.to_owned()) {
        return Ok(());
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let beside = file.parent().context("a source file is in a folder")?;
    let within = if root {
        beside.to_owned()
    } else {
        file.with_extension("")
    };
    for Mount { name, path } in find_mounts(&text) {
        let candidates = match path {
            Some(path) => vec![beside.join(path)],
            None => vec![within.join(format!("{name}.rs")), within.join(&name).join("mod.rs")],
        };
        for candidate in candidates.iter().filter(|candidate| candidate.is_file()) {
            // A path in `#[path]` may contain `..`, but each file must have only one name here.
            let file = candidate
                .canonicalize()
                .with_context(|| format!("cannot find {}", candidate.display()))?;
            mount(&file, root && file.ends_with("mod.rs"), mounted)?;
        }
    }
    Ok(())
}

/// Finds the `mod name;` items of a source text, at any depth. A `#[path = "…"]` counts only
/// directly before an item.
fn find_mounts(text: &str) -> Vec<Mount> {
    let mut mounts = Vec::new();
    let mut path = None;
    for line in text.lines().map(str::trim) {
        if let Some(given) = line
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.strip_suffix("\"]"))
        {
            path = Some(given.to_owned());
            continue;
        }
        if line.starts_with("#[") || line.starts_with("//") {
            continue;
        }
        let item = line
            .strip_prefix("pub")
            .map_or(line, |rest| match rest.split_once(')') {
                Some((scope, item)) if scope.starts_with('(') => item,
                _ => rest,
            });
        let name = item
            .trim_start()
            .strip_prefix("mod ")
            .and_then(|rest| rest.split_once(';'))
            .map(|(name, _)| name.trim());
        if let Some(name) = name {
            mounts.push(Mount {
                name: name.trim_start_matches("r#").to_owned(),
                path: path.take(),
            });
        }
        path = None;
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_in_every_form() {
        let text = "mod a;\npub mod b;\npub(crate) mod c;\n#[cfg(test)]\nmod tests;\n#[path = \"x/y.rs\"]\nmod d;\n\
                    mod inline {\n    mod e;\n}\n// mod f;\nlet g = \"mod g;\";\npub(in crate::z) mod r#h;\n";
        let found: Vec<_> = find_mounts(text)
            .into_iter()
            .map(|mount| (mount.name, mount.path))
            .collect();
        let expected: Vec<_> = [
            ("a", None),
            ("b", None),
            ("c", None),
            ("tests", None),
            ("d", Some("x/y.rs")),
            ("e", None),
            ("h", None),
        ]
        .map(|(name, path)| (name.to_owned(), path.map(str::to_owned)))
        .into();
        assert_eq!(found, expected);
    }
}
