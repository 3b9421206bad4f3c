//! Checks the Grafana dashboards in docs/dashboards against the exported metrics.

use std::collections::BTreeSet;

use serde_json::Value;

/// Name of the data source variable, which appears in place of a query.
const DATA_SOURCE: &str = "prometheus";

/// A dashboard.
#[derive(Debug)]
pub struct Dashboard(Value);

impl Dashboard {
    /// Reads the dashboard with this file name.
    pub fn read(name: &str) -> Self {
        let file = format!("{}/../docs/dashboards/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
        Self(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}")))
    }

    /// Returns the metrics that the dashboard shows, and panics if one is not in `exported`.
    /// `words` are the functions and labels in its expressions.
    pub fn shown(&self, exported: &BTreeSet<String>, words: &[&str]) -> BTreeSet<String> {
        let mut expressions = Vec::new();
        collect(&self.0, &mut expressions);
        assert!(expressions.len() > 15, "{expressions:?}");
        let mut shown = BTreeSet::new();
        for expression in expressions.iter().filter(|expression| *expression != DATA_SOURCE) {
            let unquoted: String = expression.split('"').step_by(2).collect();
            let found = unquoted.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let found = found.filter(|word| !word.is_empty() && word.parse::<f64>().is_err());
            for word in found.filter(|word| !words.contains(word)) {
                assert!(
                    exported.contains(word),
                    "{word} of {expression:?} is none of {exported:?}"
                );
                shown.insert(word.to_owned());
            }
        }
        shown
    }

    /// Panics if panels overlap, share an id, or have no description.
    pub fn check_panels(&self) {
        let panels = self.0["panels"].as_array().map_or(&[][..], Vec::as_slice);
        assert!(!panels.is_empty(), "no panels");
        let mut taken = BTreeSet::new();
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number"));
        for panel in panels {
            let field = |name: &str| number(&panel["gridPos"][name]);
            for x in field("x")..field("x") + field("w") {
                for y in field("y")..field("y") + field("h") {
                    assert!(x < 24 && taken.insert((x, y)), "{}", panel["title"]);
                }
            }
            assert!(panel["description"].as_str().is_some_and(|text| text.len() > 20));
        }
        let ids: BTreeSet<_> = panels.iter().map(|panel| number(&panel["id"])).collect();
        assert_eq!(ids.len(), panels.len());
    }
}

/// Collects all expressions and queries.
fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "expr" || name == "query" => into.push(text.clone()),
                    _ => collect(value, into),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}
