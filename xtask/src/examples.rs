//! Checks the manifests in `examples/` against the types and the schema of the API. Needs no
//! cluster.
//!
//! A server-side dry run on the development stack checks the same files against CEL rules (`e2e`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kube::CustomResourceExt as _;
use serde_json::Value;
use yoke_api::{Cluster, JoinToken, Tenant};

use crate::complaints::Complaints;

const FOLDER: &str = "examples";
const GROUP: &str = "yoke.drzzl.io/";
/// Files without Kubernetes objects.
const OTHERS: [&str; 3] = ["host-values.yaml", "nats-values.yaml", "github-workflow.yaml"];

/// Checks every document of every manifest.
pub(crate) fn check(root: &Path) -> Result<Complaints> {
    let mut files = Vec::new();
    find_manifests(&root.join(FOLDER), &mut files)?;
    files.sort();
    let mut complaints = Complaints::new();
    if files.is_empty() {
        complaints.push(format!("{FOLDER} has no manifests"));
    }
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {name}"))?;
        let documents: Result<Vec<Value>, _> = serde_saphyr::from_multiple(&text);
        match documents {
            Err(error) => complaints.push(format!("{name} is not YAML: {error}")),
            Ok(_) if OTHERS.iter().any(|other| name.ends_with(other)) => {}
            Ok(documents) => {
                for document in documents {
                    let found = inspect(&document);
                    complaints.extend(found.into_iter().map(|complaint| format!("{name}: {complaint}")));
                }
            }
        }
    }
    Ok(complaints)
}

fn inspect(document: &Value) -> Complaints {
    let version = document["apiVersion"].as_str().unwrap_or_default();
    let kind = document["kind"].as_str().unwrap_or_default();
    if version.is_empty() || kind.is_empty() {
        return vec!["a document has no apiVersion or kind".into()];
    }
    if !version.starts_with(GROUP) {
        return Complaints::new();
    }
    let (definition, parsed) = match kind {
        "Cluster" => (Cluster::crd(), parse::<Cluster>(document)),
        "Tenant" => (Tenant::crd(), parse::<Tenant>(document)),
        "JoinToken" => (JoinToken::crd(), parse::<JoinToken>(document)),
        _ => return vec![format!("the API has no kind {kind}")],
    };
    let schema = serde_json::to_value(&definition.spec.versions[0].schema).unwrap_or_default();
    let mut complaints: Complaints = parsed.err().into_iter().collect();
    let what = format!(
        "{kind} {}",
        document["metadata"]["name"].as_str().unwrap_or("without a name")
    );
    let spec = &schema["openAPIV3Schema"]["properties"]["spec"];
    find_unknown(&document["spec"], spec, "spec", &mut complaints);
    complaints
        .into_iter()
        .map(|complaint| format!("{what}: {complaint}"))
        .collect()
}

fn parse<T: serde::de::DeserializeOwned>(document: &Value) -> Result<(), String> {
    serde_json::from_value::<T>(document.clone())
        .map(drop)
        .map_err(|error| error.to_string())
}

/// Finds fields that are not in the schema. A typed object would drop them silently.
fn find_unknown(value: &Value, schema: &Value, path: &str, complaints: &mut Complaints) {
    if let Some(items) = value.as_array() {
        for item in items {
            find_unknown(item, &schema["items"], path, complaints);
        }
    }
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    for (name, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        match properties.get(name) {
            Some(schema) => find_unknown(value, schema, &path, complaints),
            None => complaints.push(format!("there is no field {path}")),
        }
    }
}

fn find_manifests(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            find_manifests(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn manifests_fit_the_api() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let complaints = check(&root).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    #[test]
    fn wrong_manifests_are_named() {
        let cluster = |spec: Value| json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "a"}, "spec": spec});
        for (document, complaint) in [
            (json!({"spec": {}}), "no apiVersion or kind"),
            (
                json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Pet"}),
                "no kind Pet",
            ),
            (
                cluster(json!({"sleep": {"after": "1h"}})),
                "Cluster a: there is no field spec.sleep.after",
            ),
            (
                cluster(json!({"sleep": {"schedules": [{"sleeps": "0 20 * * *"}]}})),
                "there is no field spec.sleep.schedules.sleeps",
            ),
            (cluster(json!({"paused": "yes"})), "invalid type"),
        ] {
            let found = inspect(&document).join("\n");
            assert!(found.contains(complaint), "{document}: {found}");
        }
        assert!(inspect(&cluster(json!({}))).is_empty());
    }
}
