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

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use serde_json::Value;
use yoke_api::Reason;

use crate::complaints::Complaints;

const COMMAND: &str = "cargo xtask reference";
const FOLDER: &str = "docs/book/src/reference";
const CONDITIONS: &str = "api/src/condition.rs";
const LABELS: &str = "api/src/labels.rs";

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
        ("conditions.md", build_conditions(&read(CONDITIONS)?)?),
        ("labels.md", build_labels(&read(LABELS)?)?),
    ];
    Ok(pages
        .into_iter()
        .map(|(name, text)| (Path::new(FOLDER).join(name), text))
        .collect())
}

fn head(title: &str, source: &str) -> String {
    format!("<!-- Made from {source} by `{COMMAND}`; change that and run it again. -->\n\n# {title}\n\n")
}

/// The page of a kind: its printer columns, and a table of all fields.
fn build_kind(definition: &CustomResourceDefinition) -> Result<String> {
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
    let list = |columns: &[&k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition]| {
        columns.iter().map(|column| column.name.to_uppercase()).collect::<Vec<_>>().join(", ")
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

/// Escapes characters outside of code spans that Markdown or HTML would interpret.
fn escape(line: &str) -> String {
    let mut text = String::new();
    for (index, part) in line.split('`').enumerate() {
        if index > 0 {
            text.push('`');
        }
        let part = part.replace('|', "\\|");
        match index % 2 {
            0 => text.push_str(&part.replace('<', "&lt;").replace('>', "&gt;").replace("[`", "`")),
            _ => text.push_str(&part),
        }
    }
    text
}

/// The names of a list in a source file, each with the comment before it. `parse` finds the name in
/// a line.
fn documented<'a>(text: &'a str, parse: impl Fn(&'a str) -> Option<&'a str>) -> Vec<(&'a str, String)> {
    let mut comment = Vec::new();
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(part) = line.strip_prefix("///") {
            comment.push(part.trim());
        } else {
            if let Some(name) = parse(line) {
                found.push((name, to_comment(&comment)));
            }
            comment.clear();
        }
    }
    found
}

/// A doc comment as one line. Replaces links to items with their names.
fn to_comment(lines: &[&str]) -> String {
    let text = lines.join(" ").replace("[`", "`").replace("`]", "`");
    escape(&text.replace("crate::", ""))
        .replace("&lt;https", "<https")
        .replace("&gt;", ">")
}

fn variant(line: &str) -> Option<&str> {
    let name = line.strip_suffix(',')?;
    let is_name = name.chars().next().is_some_and(char::is_uppercase) && name.chars().all(char::is_alphanumeric);
    is_name.then_some(name)
}

/// The text between a line that begins with `begin` and the next line that is an unindented `}`.
fn section<'a>(text: &'a str, begin: &str) -> Result<&'a str> {
    let (_, behind) = text
        .split_once(begin)
        .with_context(|| format!("{begin:?} is not there"))?;
    Ok(behind.split_once("\n}").map_or(behind, |(inside, _)| inside))
}

fn build_conditions(source: &str) -> Result<String> {
    let types = documented(section(source, "pub enum ConditionType {")?, variant);
    let reasons = documented(section(source, "\nreasons! {")?, variant);
    let listed: Vec<_> = reasons.iter().map(|(name, _)| *name).collect();
    let known: Vec<_> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    ensure!(listed == known, "{CONDITIONS} lists other reasons than the crate has");
    let mut page = head("Conditions and reasons", "api/src/condition.rs");
    page.push_str(
        "Conditions are the contract that people and tools wait on. The phase is only a summary of them. A reason is also the reason of an event, and a label of \
         metrics.\n\n## Types\n\n| type | `True` means |\n|---|---|\n",
    );
    for (name, meaning) in types {
        let _ = writeln!(page, "| `{name}` | {meaning} |");
    }
    page.push_str("\n## Reasons\n\n| reason | meaning | remedy |\n|---|---|---|\n");
    for (name, meaning) in reasons {
        let remedy = REMEDIES.iter().find(|(reason, _)| reason.as_str() == name);
        let remedy = remedy.map(|(_, remedy)| *remedy).unwrap_or_default();
        let _ = writeln!(page, "| `{name}` | {meaning} | {remedy} |");
    }
    page.push_str("\nSee [Troubleshooting](../admin/troubleshooting/index.md) for symptoms.\n");
    Ok(page)
}

fn build_labels(source: &str) -> Result<String> {
    let values: Vec<_> = documented(source, |line| {
        let (_, value) = line.strip_prefix("pub const ")?.split_once(": &str = \"")?;
        value.strip_suffix("\";")
    });
    ensure!(values.len() > 10, "{LABELS} has too few labels: {}", values.len());
    let mut page = head("Labels and annotations", LABELS);
    page.push_str("Keys of labels, annotations and finalizers, and values of fixed sets. Those without a slash are values.\n\n| key or value | meaning |\n|---|---|\n");
    // The comments name constants, but readers only know the values.
    let constants: Vec<_> = source
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("pub const ")?
                .strip_suffix("\";")?
                .split_once(": &str = \"")
        })
        .collect();
    for (value, meaning) in values {
        let meaning = constants.iter().fold(meaning, |meaning, (name, value)| {
            meaning.replace(&format!("`{name}`"), &format!("`{value}`"))
        });
        let _ = writeln!(page, "| `{value}` | {meaning} |");
    }
    Ok(page)
}

/// Instructions for the reasons that require an action of the user.
const REMEDIES: [(Reason, &str); 40] = [
    (Reason::UnknownVersion, "Choose a version that the message names."),
    (
        Reason::VersionChangeRefused,
        "Go one minor version up at a time; upgrade or remove Nodes that are too old.",
    ),
    (
        Reason::UnknownClass,
        "Choose another class, or ask the host administrator for it.",
    ),
    (
        Reason::TenantMissing,
        "Use the namespace of a Tenant; the host administrator creates one.",
    ),
    (
        Reason::QuotaExceeded,
        "Delete a Cluster, request less storage, or ask for a higher quota.",
    ),
    (
        Reason::HostnameConflict,
        "Remove the name from `spec.endpoint.extraSANs`, or from the older Cluster.",
    ),
    (
        Reason::HostnameNotAllowed,
        "Ask the host administrator for the domain (`allowedDomains`).",
    ),
    (
        Reason::NetworkNotOffered,
        "Delete the Cluster and create it with an offered range or domain.",
    ),
    (Reason::SourceRangeInvalid, "Correct `spec.endpoint.allowedCIDRs`."),
    (
        Reason::ArgumentNotAllowed,
        "Remove the argument; the message lists the allowed ones.",
    ),
    (Reason::LifetimeInvalid, "Correct `spec.pki`."),
    (
        Reason::IdentityConflict,
        "Remove `spec.id` of the younger Cluster: create it again.",
    ),
    (
        Reason::NameInvalid,
        "Create the Cluster with a name of at most 40 characters.",
    ),
    (Reason::NameReserved, "Choose another name for the Tenant."),
    (
        Reason::NamespaceConflict,
        "Choose another name for the Tenant, or remove the namespace.",
    ),
    (
        Reason::SubjectConflict,
        "Remove the subject, key or domain from one of the two Tenants.",
    ),
    (Reason::Paused, "Set `spec.paused` to false."),
    (Reason::ClustersRemain, "Delete the Clusters of the Tenant."),
    (Reason::UsedUp, "Create another JoinToken."),
    (
        Reason::ClusterMissing,
        "Create the Cluster, or correct `spec.clusterName`.",
    ),
    (Reason::ClusterReplaced, "Create another JoinToken."),
    (Reason::ClusterNotReady, "Wake the Cluster; a JoinToken wakes none."),
    (
        Reason::SecretConflict,
        "Remove the Secret, or create a JoinToken with another name.",
    ),
    (
        Reason::CertificatesPending,
        "If it lasts, check that cert-manager runs.",
    ),
    (
        Reason::PodPending,
        "If it lasts, check that a node has room and images can be pulled.",
    ),
    (
        Reason::ContainerFailing,
        "Revert `spec.extraArgs`; read the log of the container.",
    ),
    (Reason::AddonsPending, "Check webhooks and policies of the cluster."),
    (
        Reason::AddonConflict,
        "Delete the object that the message names, or turn the add-on off.",
    ),
    (
        Reason::WorkersPending,
        "Repair or delete Nodes that are not ready, or raise `maxUnavailable`.",
    ),
    (
        Reason::WorkerUpgradeFailed,
        "Read the log of the worker; then remove the annotation `yoke.drzzl.io/kubelet-version` from its Node.",
    ),
    (Reason::WorkersUnmanaged, "Upgrade these kubelets yourself."),
    (
        Reason::StoreUnavailable,
        "If it lasts, check NATS and the operator's route to it.",
    ),
    (
        Reason::StoreLost,
        "Restore the streams of NATS from a backup, or delete the Cluster.",
    ),
    (
        Reason::KeyLost,
        "Restore the Secret in `yoke-pki` from a backup, or delete the Cluster.",
    ),
    (
        Reason::StoreQuotaExceeded,
        "Raise `max_file_store` of NATS, or delete Clusters.",
    ),
    (Reason::ScheduleInvalid, "Correct `spec.sleep.schedules`."),
    (
        Reason::WakeDelayed,
        "Read the condition `Ready`: it says why the control plane does not start.",
    ),
    (
        Reason::TakeoverFailed,
        "Make room on other nodes; it is tried again after 10 minutes.",
    ),
    (
        Reason::WebhookBlocksWake,
        "Let the webhook ignore failures, or exclude Nodes, Leases and tokens.",
    ),
    (Reason::JoinTokenHolds, "Revoke the JoinToken, or wait for its end."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_pages_are_what_the_types_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let complaints = check(&root).unwrap();
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    }

    #[test]
    fn comments_belong_to_the_name_behind_them() {
        let text = "/// One [`A`],\n/// and more.\nFirst,\n\n/// Lost.\nfn x() {}\n/// Two `a|b` <c>.\nSecond,\n";
        assert_eq!(
            documented(text, variant),
            [
                ("First", "One `A`, and more.".to_owned()),
                ("Second", "Two `a\\|b` &lt;c>.".to_owned())
            ]
        );
    }

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
