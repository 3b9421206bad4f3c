//! `make status`: shows the current state of every component.

use anyhow::Result;
use serde::Deserialize;

use crate::host_cluster::node::Node;
use crate::kubectl::Kubectl;
use crate::layout::Layout;
use crate::network::Network;
use crate::steps::print_line;
use crate::supervisor::{ServiceStatus, client};
use crate::workers;

/// Text for a Cluster that is asleep.
const ASLEEP: &str = "asleep";

/// One line of the table.
struct Line {
    name: String,
    problem: Option<String>,
    detail: String,
}

#[derive(Deserialize)]
struct List {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize, Default)]
struct Status {
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    #[serde(default)]
    message: String,
}

/// Prints the state of every component. Returns true if all are healthy.
pub async fn status(layout: &Layout) -> Result<bool> {
    let Some(services) = client::status(layout).await else {
        print_line("the stack is not running (its supervisor does not answer): `make up` starts it");
        return Ok(false);
    };
    let mut lines: Vec<Line> = services.into_iter().map(to_line).collect();
    lines.extend(added_nodes(layout).await?);
    lines.extend(objects(layout, "nodes", "Ready").await);
    lines.extend(objects(layout, "deployments", "Available").await);
    let clusters = objects(layout, "clusters.yoke.drzzl.io", "Ready").await;
    let asleep = clusters
        .iter()
        .any(|line| line.name == "cluster demo/demo" && line.detail == ASLEEP);
    lines.extend(clusters);
    if layout.demo_kubeconfig().exists() && !asleep {
        lines.push(ingress(layout).await);
    }
    let workers = workers::status(layout).await;
    lines.extend(workers.into_iter().map(|(name, problem)| Line {
        name,
        problem,
        detail: String::new(),
    }));
    let width = lines.iter().map(|line| line.name.len()).max().unwrap_or_default();
    for line in &lines {
        let (mark, problem) = match &line.problem {
            None => ("ok  ", String::new()),
            Some(problem) => ("DOWN", format!("  {problem}")),
        };
        print_line(format!("{mark}  {:width$}  {}{problem}", line.name, line.detail).trim_end());
    }
    Ok(lines.iter().all(|line| line.problem.is_none()))
}

fn to_line(service: ServiceStatus) -> Line {
    let pid = service.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
    let log = service
        .problem
        .as_ref()
        .map_or_else(String::new, |_| format!(", log {}", service.log.display()));
    let detail = format!("pid {pid}, {} restarts{log}", service.restarts);
    Line {
        name: service.name,
        problem: service.problem,
        detail,
    }
}

/// Processes of added nodes.
async fn added_nodes(layout: &Layout) -> Result<Vec<Line>> {
    let network = Network::read(layout)?;
    let nodes = network
        .map(|network| Node::added(layout, &network.plan))
        .unwrap_or_default();
    let mut lines = Vec::new();
    for node in nodes {
        let Some(services) = client::status(&node.layout).await else {
            lines.push(Line {
                name: format!("{} supervisor", node.name),
                problem: Some("not running: `make up` starts it".to_owned()),
                detail: String::new(),
            });
            continue;
        };
        for mut service in services {
            service.name = format!("{} {}", node.name, service.name);
            lines.push(to_line(service));
        }
    }
    Ok(lines)
}

/// Objects of one kind, each judged by one condition.
async fn objects(layout: &Layout, kind: &str, condition: &str) -> Vec<Line> {
    let kubectl = Kubectl::new(layout);
    let args = [
        "get",
        kind,
        "--all-namespaces",
        "--output=json",
        "--request-timeout=5s",
        "--ignore-not-found",
    ];
    let list = match kubectl.command(&args).output().await {
        Ok(output) if output.trim().is_empty() => return Vec::new(),
        Ok(output) => serde_json::from_str::<List>(&output).map_err(|error| error.to_string()),
        // The kind does not exist before the chart is installed.
        Err(error) if error.to_string().contains("the server doesn't have a resource type") => return Vec::new(),
        Err(error) => Err(error.to_line()),
    };
    match list {
        Ok(list) => list
            .items
            .into_iter()
            .map(|item| to_object_line(kind, item, condition))
            .collect(),
        Err(problem) => {
            vec![Line {
                name: kind.to_owned(),
                problem: Some(problem),
                detail: String::new(),
            }]
        }
    }
}

/// Judges one object by a condition. A Cluster that is asleep counts as healthy.
fn to_object_line(kind: &str, item: Item, condition: &str) -> Line {
    let singular = kind.split('.').next().unwrap_or(kind).trim_end_matches('s');
    let name = [item.metadata.namespace.as_str(), &item.metadata.name]
        .iter()
        .filter(|part| !part.is_empty())
        .copied()
        .collect::<Vec<_>>();
    let holds = |kind: &str| item.status.conditions.iter().find(|found| found.kind == kind);
    let asleep = holds("Asleep").is_some_and(|found| found.status == "True");
    let problem = match holds(condition) {
        Some(found) if found.status == "True" || asleep => None,
        Some(found) => Some(format!("{condition}={}: {}", found.status, found.message)),
        None => Some(format!("condition {condition} is missing")),
    };
    let detail = if asleep { ASLEEP.to_owned() } else { String::new() };
    Line {
        name: format!("{singular} {}", name.join("/")),
        problem,
        detail,
    }
}

async fn ingress(layout: &Layout) -> Line {
    let args = ["--request-timeout=5s", "get", "--raw", "/readyz"];
    let answer = Kubectl::new(layout)
        .with(&layout.demo_kubeconfig(), &args)
        .output()
        .await;
    let problem = answer.err().map(|error| error.to_line());
    Line {
        name: "demo through the ingress".to_owned(),
        problem,
        detail: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(conditions: &str) -> Item {
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"a","namespace":"n"}},"status":{{"conditions":{conditions}}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn a_condition_that_holds_is_health() {
        let table = [
            ("holds", r#"[{"type":"Ready","status":"True"}]"#, None),
            (
                "does not",
                r#"[{"type":"Ready","status":"False","message":"m"}]"#,
                Some("Ready=False: m"),
            ),
            ("unreported", "[]", Some("condition Ready is missing")),
            (
                "asleep",
                r#"[{"type":"Ready","status":"False"},{"type":"Asleep","status":"True"}]"#,
                None,
            ),
        ];
        for (rule, conditions, expected) in table {
            let line = to_object_line("clusters.yoke.drzzl.io", item(conditions), "Ready");
            assert_eq!(line.problem.as_deref(), expected, "{rule}");
            assert_eq!(line.name, "cluster n/a");
        }
    }
}
