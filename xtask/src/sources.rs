//! Lists the source files of the workspace.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::workspace::Workspace;

/// The `.rs` files of production code: files below `src`, without test modules and generated code. Sorted.
pub(crate) fn production_files(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for package in &workspace.packages {
        let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
        let source = folder.join("src");
        if source.is_dir() {
            list(&source, &mut files)?;
        }
    }
    files.retain(|file| {
        let is = |name: &str| file.iter().any(|part| part == name);
        let stem = file.file_stem().unwrap_or_default();
        !is("tests") && !is("gen") && stem != "tests" && stem != "fixtures"
    });
    files.sort();
    Ok(files)
}

/// Adds every `.rs` file below a folder.
pub(crate) fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if kind.is_dir() && !hidden && entry.file_name() != "target" {
            list(&path, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}
