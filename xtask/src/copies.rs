//! Copies files of another folder into the chart, because helm cannot read files outside the chart.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::complaints::Complaints;

const COMMAND: &str = "cargo xtask chart-files";
const SOURCE: &str = "ingress-xds/envoy";
const COPY: &str = "charts/yoke/files/envoy";

/// Makes the copy equal to its source.
pub(crate) fn write(root: &Path) -> Result<()> {
    let (source, copy) = (read(&root.join(SOURCE))?, root.join(COPY));
    std::fs::create_dir_all(&copy).with_context(|| format!("cannot make {COPY}"))?;
    for name in read(&copy)?.keys().filter(|name| !source.contains_key(*name)) {
        std::fs::remove_file(copy.join(name)).with_context(|| format!("cannot remove {COPY}/{}", name.display()))?;
    }
    for (name, text) in source {
        std::fs::write(copy.join(&name), text).with_context(|| format!("cannot write {COPY}/{}", name.display()))?;
    }
    Ok(())
}

/// Compares the copy with its source.
pub(crate) fn check(root: &Path) -> Result<Complaints> {
    let same = read(&root.join(SOURCE))? == read(&root.join(COPY))?;
    Ok(if same {
        vec![]
    } else {
        vec![format!("{COPY} differs from {SOURCE}: run `{COMMAND}`")]
    })
}

fn read(folder: &Path) -> Result<BTreeMap<OsString, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "yaml") {
            files.insert(entry.file_name(), std::fs::read(entry.path())?);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chart_carries_what_the_ingress_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let complaints = check(&root).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }
}
