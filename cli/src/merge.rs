//! Merges one kubeconfig into another. Pure.
//!
//! The existing file is handled as a tree of values, not as a type, so that unknown fields survive.
//! From the added kubeconfig only the current context is used, with its cluster and user; all three
//! get the new name. An existing entry of that name is replaced only if it belongs to the same
//! cluster, so that no entry of the user's own is lost.

use serde_json::{Map, Value};

/// The two kubeconfigs cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// The existing file is not YAML.
    #[error("it is not YAML")]
    Unreadable(#[source] Box<serde_saphyr::Error>),
    /// The existing file is not a kubeconfig.
    #[error("it is not a kubeconfig: {0}")]
    NotKubeconfig(&'static str),
    /// The added kubeconfig is not YAML.
    #[error("the Cluster's kubeconfig is not YAML")]
    AddedUnreadable(#[source] Box<serde_saphyr::Error>),
    /// The added kubeconfig lacks a required part.
    #[error("the Cluster's kubeconfig has no {0}")]
    AddedLacks(&'static str),
    /// The name belongs to another cluster.
    #[error("it has a {kind} {name:?} of another cluster")]
    Taken {
        /// Kind of the entry: cluster, user or context.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The result cannot be written as YAML.
    #[error("cannot write YAML")]
    Unwritable(#[source] Box<serde_saphyr::SerializeError>),
}

/// Result of a merge.
#[derive(Debug)]
pub(crate) struct Merged {
    /// New text of the file.
    pub(crate) text: String,
    /// The context that was the current one before.
    pub(crate) previous_context: Option<String>,
}

/// Adds the current context of `added` to `existing` under `name` and makes it the current one.
pub(crate) fn merge(existing: &str, added: &str, name: &str) -> Result<Merged, MergeError> {
    let mut tree = read_existing(existing)?;
    let [cluster, user, context] = read_added(added, name)?;
    let previous_context = tree
        .get("current-context")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty());
    let previous_context = previous_context.map(str::to_owned);
    // A user and a context of that name are ours only if the cluster of that name is; without such
    // a cluster they belong to another program or user.
    let ours = entry(&tree, "clusters", name).map(|present| same_cluster(present, &cluster));
    for (list, kind, field, value) in [
        ("clusters", "cluster", "cluster", cluster),
        ("users", "user", "user", user),
        ("contexts", "context", "context", context),
    ] {
        if entry(&tree, list, name).is_some() && ours != Some(true) {
            return Err(MergeError::Taken {
                kind,
                name: name.to_owned(),
            });
        }
        put(&mut tree, list, name, field, value)?;
    }
    tree.insert("current-context".into(), name.into());
    tree.entry("apiVersion").or_insert_with(|| "v1".into());
    tree.entry("kind").or_insert_with(|| "Config".into());
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    let text = serde_saphyr::to_string_with_options(&tree, options)
        .map_err(|error| MergeError::Unwritable(Box::new(error)))?;
    Ok(Merged { text, previous_context })
}

fn read_existing(text: &str) -> Result<Map<String, Value>, MergeError> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let tree: Value = serde_saphyr::from_str(text).map_err(|error| MergeError::Unreadable(Box::new(error)))?;
    let tree = match tree {
        Value::Object(tree) => tree,
        Value::Null => Map::new(),
        _ => return Err(MergeError::NotKubeconfig("it is not a mapping")),
    };
    match tree.get("kind").and_then(Value::as_str) {
        None | Some("" | "Config") => Ok(tree),
        Some(_) => Err(MergeError::NotKubeconfig("its kind is not Config")),
    }
}

/// Returns the cluster, the user and the context; the context refers to `name`.
fn read_added(text: &str, name: &str) -> Result<[Value; 3], MergeError> {
    let tree: Map<String, Value> =
        serde_saphyr::from_str(text).map_err(|error| MergeError::AddedUnreadable(Box::new(error)))?;
    let missing = MergeError::AddedLacks;
    let current = tree
        .get("current-context")
        .and_then(Value::as_str)
        .ok_or_else(|| missing("current context"))?;
    let part = |list: &str, field: &'static str, name: &str| {
        entry(&tree, list, name)
            .and_then(|entry| entry.get(field))
            .cloned()
            .ok_or_else(|| missing(field))
    };
    let mut context = part("contexts", "context", current)?;
    let target = |field: &'static str| context.get(field).and_then(Value::as_str).ok_or_else(|| missing(field));
    let (cluster, user) = (
        part("clusters", "cluster", target("cluster")?)?,
        part("users", "user", target("user")?)?,
    );
    let fields = context.as_object_mut().ok_or_else(|| missing("context"))?;
    fields.insert("cluster".into(), name.into());
    fields.insert("user".into(), name.into());
    Ok([cluster, user, context])
}

fn entry<'a>(tree: &'a Map<String, Value>, list: &str, name: &str) -> Option<&'a Value> {
    tree.get(list)?
        .as_array()?
        .iter()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))
}

/// Returns whether an entry describes the same cluster. Compares the TLS server name first, because
/// the address may change.
fn same_cluster(entry: &Value, cluster: &Value) -> bool {
    let present = entry.get("cluster");
    let field = |name: &str| (present.and_then(|present| present.get(name)), cluster.get(name));
    match field("tls-server-name") {
        (None, None) => {
            let (present, added) = field("server");
            present == added
        }
        (present, added) => present == added,
    }
}

fn put(
    tree: &mut Map<String, Value>,
    list: &'static str,
    name: &str,
    field: &str,
    value: Value,
) -> Result<(), MergeError> {
    let entries = tree.entry(list).or_insert_with(|| Value::Array(Vec::new()));
    if entries.is_null() {
        *entries = Value::Array(Vec::new());
    }
    let entries = entries
        .as_array_mut()
        .ok_or(MergeError::NotKubeconfig("a list in it is something else"))?;
    match entries
        .iter_mut()
        .find(|entry| entry.get("name").and_then(Value::as_str) == Some(name))
    {
        Some(Value::Object(entry)) => {
            entry.insert(field.to_owned(), value);
        }
        _ => {
            let fields = [("name".to_owned(), Value::from(name)), (field.to_owned(), value)];
            entries.push(Value::Object(fields.into_iter().collect()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
