//! The page of a kind.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition,
};
use serde_json::Value;

use super::markdown::{escape, head};

/// The page of a kind: its printer columns, and a table of all fields.
pub(super) fn build_kind(definition: &CustomResourceDefinition) -> Result<String> {
    let names = &definition.spec.names;
    let version = definition.spec.versions.first().context("a CRD has a version")?;
    let schema = serde_json::to_value(&version.schema).context("cannot serialize a schema")?;
    let schema = &schema["openAPIV3Schema"];
    let mut page = head(&names.kind, "the types in api");
    let _ = writeln!(page, "{}\n", to_text(&schema["description"]));
    let _ = writeln!(page, "| | |\n|---|---|");
    let _ = writeln!(page, "| API version | `{}/{}` |", definition.spec.group, version.name);
    let _ = writeln!(page, "| full name | `{}.{}` |", names.plural, definition.spec.group);
    if let Some(short) = &names.short_names {
        let _ = writeln!(page, "| short name | `{}` |", short.join("`, `"));
    }
    let scope = if definition.spec.scope == "Namespaced" {
        "in a namespace"
    } else {
        "cluster-wide"
    };
    let _ = writeln!(page, "| scope | {scope} |");
    let columns = version.additional_printer_columns.iter().flatten();
    let (wide, normal): (Vec<_>, Vec<_>) =
        columns.partition(|column| column.priority.is_some_and(|priority| priority > 0));
    let list = |columns: &[&CustomResourceColumnDefinition]| {
        columns
            .iter()
            .map(|column| column.name.to_uppercase())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let _ = writeln!(page, "| columns | {} |", list(&normal));
    if !wide.is_empty() {
        let _ = writeln!(page, "| columns of `-o wide` | {} |", list(&wide));
    }
    for part in ["spec", "status"] {
        let _ = writeln!(
            page,
            "\n## {part}\n\n| field | type | default | meaning |\n|---|---|---|---|"
        );
        add_fields(&schema["properties"][part], part, &mut page);
        let rules = to_rules(&schema["properties"][part]);
        if !rules.is_empty() {
            let _ = writeln!(page, "\nRules: {rules}");
        }
    }
    let rules = to_rules(schema);
    if !rules.is_empty() {
        let _ = writeln!(page, "\n## Rules of the object\n\n{rules}");
    }
    Ok(page)
}

fn add_fields(schema: &Value, path: &str, page: &mut String) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let _ = writeln!(
            page,
            "| `{path}` | {} | {} | {} |",
            to_type(field),
            to_default(field),
            to_meaning(field)
        );
        // Conditions have the same fields in every kind. The page of conditions describes them.
        if name == "conditions" {
            continue;
        }
        add_fields(field, &path, page);
        add_fields(&field["items"], &format!("{path}[]"), page);
    }
}

fn to_type(field: &Value) -> String {
    let plain = field["type"].as_str().unwrap_or("integer or string");
    match plain {
        "array" => format!("list of {}", field["items"]["type"].as_str().unwrap_or("values")),
        "object" if field["additionalProperties"].is_object() => "map of strings".to_owned(),
        "string" if field["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

fn to_default(field: &Value) -> String {
    match &field["default"] {
        Value::Null | Value::Object(_) | Value::Array(_) => String::new(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

fn to_meaning(field: &Value) -> String {
    let mut parts = vec![to_text(&field["description"])];
    if let Some(values) = field["enum"].as_array() {
        let values: Vec<_> = values
            .iter()
            .filter_map(Value::as_str)
            .map(|value| format!("`{value}`"))
            .collect();
        parts.push(format!("One of {}.", values.join(", ")));
    }
    let bound = |name: &str| field[name].as_f64();
    match (bound("minimum"), bound("maximum")) {
        (Some(from), Some(to)) => parts.push(format!("From {from} to {to}.")),
        (Some(from), None) => parts.push(format!("At least {from}.")),
        (None, Some(to)) => parts.push(format!("At most {to}.")),
        (None, None) => {}
    }
    if let Some(most) = field["maxItems"].as_u64() {
        parts.push(format!("At most {most} entries."));
    }
    let rules = to_rules(field);
    if !rules.is_empty() {
        parts.push(format!("Rules: {rules}"));
    }
    parts.join(" ").trim().to_owned()
}

fn to_rules(schema: &Value) -> String {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let messages: Vec<_> = rules.map(|rule| to_text(&rule["message"])).collect();
    match messages.is_empty() {
        true => String::new(),
        false => format!("{}.", messages.join("; ")),
    }
}

/// A description as one line for a table cell.
fn to_text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    escape(&line)
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;

    use super::*;

    #[test]
    fn every_field_is_in_its_page() {
        let page = build_kind(&yoke_api::Cluster::crd()).unwrap();
        for field in [
            "`spec.sleep.afterInactivity`",
            "`spec.sleep.schedules[].sleep`",
            "`status.endpoint.url`",
        ] {
            assert!(page.contains(field), "{field}");
        }
        assert!(page.contains("One of `Running`, `Asleep`."));
    }
}
