//! Generates reference pages of the book from the types in yoke-api and from the comments in their
//! sources.
//!
//! ```text
//!  CRD types ──▶ cluster.md, tenant.md, join-token.md
//!  yoke-api's conditions, reasons and labels, with their comments ──▶ conditions.md, labels.md
//! ```
//!
//! Tests of other crates generate `cli.md` and `metrics.md`, because those crates define the
//! commands and metrics. This crate does not depend on them.

mod comments;
mod conditions;
mod kind;
mod labels;
mod markdown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;

use crate::complaints::Complaints;

use conditions::build_conditions;
use kind::build_kind;
use labels::build_labels;
use markdown::COMMAND;

const FOLDER: &str = "docs/book/src/reference";

/// Writes every page that has changed.
pub(crate) fn write(root: &Path) -> Result<()> {
    for (file, text) in build(root)? {
        let path = root.join(&file);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == text) {
            continue;
        }
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote {}", file.display());
    }
    Ok(())
}

/// Compares the pages with what [`write`] would write.
pub(crate) fn check(root: &Path) -> Result<Complaints> {
    let mut complaints = Complaints::new();
    for (file, text) in build(root)? {
        match std::fs::read_to_string(root.join(&file)) {
            Ok(present) if present == text => {}
            Ok(_) => complaints.push(format!("{} is stale: run `{COMMAND}`", file.display())),
            Err(_) => complaints.push(format!("{} is missing: run `{COMMAND}`", file.display())),
        }
    }
    Ok(complaints)
}

fn build(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let read = |file: &str| std::fs::read_to_string(root.join(file)).with_context(|| format!("cannot read {file}"));
    let pages = [
        ("cluster.md", build_kind(&yoke_api::Cluster::crd())?),
        ("tenant.md", build_kind(&yoke_api::Tenant::crd())?),
        ("join-token.md", build_kind(&yoke_api::JoinToken::crd())?),
        ("conditions.md", build_conditions(&read(conditions::SOURCE)?)?),
        ("labels.md", build_labels(&read(labels::SOURCE)?)?),
    ];
    Ok(pages
        .into_iter()
        .map(|(name, text)| (Path::new(FOLDER).join(name), text))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_pages_are_what_the_types_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let complaints = check(&root).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }
}
