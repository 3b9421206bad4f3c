//! Formats Clusters, Nodes and identities as text and as JSON. Pure.

use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;
use yoke_api::cluster::{DesiredState, Phase};
use yoke_api::{Cluster, ConditionType};
use yoke_view::render::{Columns, cluster_row, cluster_table, find};
use yoke_view::table::Table;

use crate::identity::key_registry::Identity;
use crate::tenant::{Node, Nodes};

/// A Cluster as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    name: String,
    state: DesiredState,
    ready: bool,
    phase: Option<Phase>,
    version: Option<String>,
    url: Option<String>,
    address: Option<String>,
    nodes: Option<i32>,
    created: Option<String>,
    awake_seconds: Option<u64>,
    cost: Option<String>,
    message: Option<String>,
}

/// A list of Clusters as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClusterReports {
    /// One report per Cluster.
    pub clusters: Vec<ClusterReport>,
}

/// The Tenant and the key of a client, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PersonReport<'a> {
    /// Name of the Tenant.
    pub tenant: &'a str,
    /// Name of the key in the Tenant's spec.
    pub key: &'a str,
    /// Fingerprint of the key.
    pub fingerprint: &'a str,
}

/// Builds the report of a Cluster.
pub fn build_report(cluster: &Cluster, now: Timestamp) -> ClusterReport {
    let status = cluster.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, ConditionType::Ready);
    let (url, address) = status.endpoint.map(|endpoint| (endpoint.url, endpoint.address)).unzip();
    ClusterReport {
        name: cluster.name_any(),
        state: cluster.spec.state,
        ready: ready.is_some_and(|ready| ready.status == "True"),
        phase: status.phase,
        version: status.version,
        url,
        address,
        nodes: status.nodes,
        created: cluster.creation_timestamp().map(|time| time.0.to_string()),
        awake_seconds: status.usage.as_ref().map(|usage| usage.awake(now)),
        cost: status
            .usage
            .and_then(|usage| usage.cost(now))
            .map(|cost| cost.to_string()),
        message: ready.map(|ready| ready.message.clone()),
    }
}

/// Formats Clusters as a table.
pub fn build_table(clusters: &[Cluster], wide: bool, now: Timestamp) -> String {
    let columns = Columns { namespace: false, wide };
    let mut table = cluster_table(columns);
    for cluster in clusters {
        table.push(cluster_row(cluster, columns, now));
    }
    table.to_text()
}

/// Formats Nodes as a table.
pub fn build_node_table(nodes: &Nodes) -> String {
    if nodes.nodes.is_empty() {
        return "No worker has joined.\n".to_owned();
    }
    let mut table = Table::new(["NAME", "STATUS", "ROLES", "AGE", "VERSION"]);
    for node in &nodes.nodes {
        let Node {
            name,
            status,
            roles,
            age,
            version,
        } = node.clone();
        table.push(vec![name, status, roles, age, version]);
    }
    let more = if nodes.more { "There are more.\n" } else { "" };
    table.to_text() + more
}

/// Formats the Tenant and the key of a client as text.
pub fn build_person(identity: &Identity) -> String {
    format!(
        "Tenant: {}\nKey:    {} ({})\n",
        identity.tenant, identity.key, identity.fingerprint
    )
}

/// Formats a value as indented JSON.
pub fn to_json<T: Serialize>(value: &T) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNNING: &str = "{apiVersion: yoke.drzzl.io/v1alpha1, kind: Cluster, metadata: {name: demo, namespace: t, creationTimestamp: \
         '2026-02-28T23:58:30Z'}, spec: {}, status: {version: v1.35.4, phase: Running, nodes: 2, usage: {awakeSeconds: 3540, awakeSince: \
         '2026-02-28T23:59:00Z', pricePerHour: 0.50 EUR}, endpoint: {url: 'https://d:8443', \
         serverName: d, address: 'https://a:8443', audience: x, issuer: x}, conditions: [{type: Ready, status: 'True', reason: \
         AsExpected, message: The API answers., lastTransitionTime: '2026-02-28T23:59:00Z'}]}}";

    #[test]
    fn clusters_are_text_and_data() {
        let cluster: Cluster = serde_saphyr::from_str(RUNNING).unwrap();
        let now = "2026-03-01T00:00:00Z".parse().unwrap();
        assert_eq!(
            build_table(std::slice::from_ref(&cluster), false, now),
            "NAME   VERSION   PHASE     READY   ENDPOINT         NODES   AGE\n\
             demo   v1.35.4   Running   True    https://d:8443   2       90s\n"
        );
        let expected = serde_json::json!({
            "name": "demo", "state": "Running", "ready": true, "phase": "Running", "version": "v1.35.4", "url": "https://d:8443",
            "address": "https://a:8443", "nodes": 2, "created": "2026-02-28T23:58:30Z", "awakeSeconds": 3600, "cost": "0.50 EUR", "message": "The API answers.",
        });
        assert_eq!(serde_json::to_value(build_report(&cluster, now)).unwrap(), expected);
        let nothing = build_report(&Cluster::new("a", Default::default()), now);
        assert!(!nothing.ready && nothing.url.is_none() && nothing.message.is_none());
    }
}
