//! Generates `crds/*.yaml` and the chart's copy of them from the types in yoke-api.
//!
//! The output depends only on the types: keys are sorted, and it contains no time or host name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use serde_json::Value;

use crate::complaints::Complaints;

const COMMAND: &str = "cargo xtask crds";
const FOLDERS: [&str; 2] = ["crds", "charts/yoke/files/crds"];

/// Writes every file, and removes files that no longer belong to a type.
pub(crate) fn write(root: &Path) -> Result<()> {
    let wanted = wanted_files()?;
    for stray in strays(root, &wanted)? {
        std::fs::remove_file(root.join(&stray)).with_context(|| format!("cannot remove {}", stray.display()))?;
        println!("removed {}", stray.display());
    }
    for (file, text) in &wanted {
        let path = root.join(file);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == *text) {
            continue;
        }
        let folder = path.parent().context("a CRD's file is in a folder")?;
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("wrote {}", file.display());
    }
    Ok(())
}

/// Compares the files with what [`write`] would write.
pub(crate) fn check(root: &Path) -> Result<Complaints> {
    let wanted = wanted_files()?;
    let mut complaints = Complaints::new();
    for (file, text) in &wanted {
        match std::fs::read_to_string(root.join(file)) {
            Ok(present) if present == *text => {}
            Ok(_) => complaints.push(format!("{} is stale: run `{COMMAND}`", file.display())),
            Err(_) => complaints.push(format!("{} is missing: run `{COMMAND}`", file.display())),
        }
    }
    for stray in strays(root, &wanted)? {
        complaints.push(format!("{} belongs to no type: run `{COMMAND}`", stray.display()));
    }
    Ok(complaints)
}

/// Plural names of the custom resources, for the checks of RBAC rules.
pub(crate) fn plurals() -> Vec<String> {
    definitions()
        .into_iter()
        .map(|definition| definition.spec.names.plural)
        .collect()
}

fn definitions() -> Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition> {
    vec![
        yoke_api::Cluster::crd(),
        yoke_api::JoinToken::crd(),
        yoke_api::Tenant::crd(),
    ]
}

fn wanted_files() -> Result<BTreeMap<PathBuf, String>> {
    let mut files = BTreeMap::new();
    for definition in definitions() {
        let name = format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let text = to_yaml(serde_json::to_value(&definition).context("cannot serialize a CRD")?)?;
        for folder in FOLDERS {
            files.insert(Path::new(folder).join(&name), text.clone());
        }
    }
    Ok(files)
}

fn to_yaml(definition: Value) -> Result<String> {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: 100 };
    let body = serde_saphyr::to_string_with_options(&sorted(definition), options).context("cannot write YAML")?;
    Ok(format!(
        "# Made from the types in api/ by `{COMMAND}`; change those and run it again.\n{body}"
    ))
}

/// Sorts the keys of every object, so that the output does not depend on the features of
/// serde_json.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let ordered: BTreeMap<_, _> = map.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            Value::Object(ordered.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}

fn strays(root: &Path, wanted: &BTreeMap<PathBuf, String>) -> Result<Vec<PathBuf>> {
    let mut strays = Vec::new();
    for folder in FOLDERS {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else {
            continue;
        };
        for entry in entries {
            let file = Path::new(folder).join(entry?.file_name());
            if !wanted.contains_key(&file) {
                strays.push(file);
            }
        }
    }
    strays.sort();
    Ok(strays)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_files_are_what_the_types_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let complaints = check(&root).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    #[test]
    fn text_means_what_the_type_says() {
        for definition in definitions() {
            let value = serde_json::to_value(&definition).unwrap();
            let text = to_yaml(value.clone()).unwrap();
            let parsed: Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(parsed, value);
        }
    }

    #[test]
    fn every_field_has_a_description() {
        for definition in definitions() {
            let value = serde_json::to_value(&definition.spec.versions[0].schema).unwrap();
            for part in ["spec", "status"] {
                let schema = &value["openAPIV3Schema"]["properties"][part];
                let mut missing = Vec::new();
                undescribed(schema, part, &mut missing);
                assert!(missing.is_empty(), "{}: {missing:?}", definition.spec.names.kind);
            }
        }
    }

    fn undescribed(schema: &Value, path: &str, missing: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if field["description"].as_str().is_none_or(str::is_empty) {
                missing.push(path.clone());
            }
            undescribed(field, &path, missing);
        }
        if schema["items"].is_object() {
            undescribed(&schema["items"], path, missing);
        }
    }
}
