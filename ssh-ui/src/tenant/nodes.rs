//! The Nodes of a Tenant's cluster, as its own API shows them to the Tenant's kubeconfig, by the way that every client goes.
//!
//! Who has the cluster may write anything there: the API prints the table itself, without the objects, and of what it prints no
//! more is read than a bounded number of bytes.

use http::{Request, header};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use yoke_api::cluster::DesiredState;

use super::{REQUEST_LIMIT, TenantHost};
use crate::Error;

/// How an API server is asked for what `kubectl get` prints.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// Rows of an answer, and how many answers are asked for.
const PAGE: usize = 100;
const PAGES: usize = 10;
/// Bytes of an answer, and characters of a cell.
const ANSWER_MAX: usize = 2 << 20;
const CELL_MAX: usize = 64;

/// Nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nodes {
    /// One for each, at most a thousand.
    pub nodes: Vec<Node>,
    /// There are more.
    pub more: bool,
}

/// A Node, as `kubectl get nodes` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Such as `Ready,SchedulingDisabled`.
    pub status: String,
    /// By its labels.
    pub roles: String,
    /// Since when it is there.
    pub age: String,
    /// The version of its kubelet.
    pub version: String,
}

/// Why a cluster's API did not tell.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// What the host says of the way is wrong.
    #[error("using the kubeconfig")]
    Kubeconfig(#[from] KubeconfigError),
    /// There is no client.
    #[error("making a client")]
    Client(#[source] kube::Error),
    /// It is not reached.
    #[error("asking")]
    Send(#[source] kube::Error),
    /// It says no.
    #[error("it answered with status {0}")]
    Status(u16),
    /// The answer breaks off, or is too long.
    #[error("reading the answer: {0}")]
    Read(String),
    /// The answer is something else.
    #[error("reading the answer")]
    Parse(#[from] serde_json::Error),
    /// The request cannot be made.
    #[error("making the request")]
    Request(#[from] http::Error),
    /// It takes too long.
    #[error("no answer within {REQUEST_LIMIT:?}")]
    Timeout,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    #[serde(default)]
    metadata: Metadata,
    column_definitions: Vec<Column>,
    #[serde(default)]
    rows: Vec<Row>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default, rename = "continue")]
    next: String,
}

#[derive(Deserialize)]
struct Column {
    name: String,
}

#[derive(Deserialize)]
struct Row {
    cells: Vec<Value>,
}

impl TenantHost {
    /// The Nodes of a cluster.
    pub async fn nodes(&self, name: &str) -> Result<Nodes, Error> {
        // To be asked would wake it.
        if self.get(name).await?.spec.state == DesiredState::Asleep {
            return Err(Error::Asleep(name.to_owned()));
        }
        let kubeconfig = self.kubeconfig(name).await?;
        let asked = tokio::time::timeout(REQUEST_LIMIT, list(&kubeconfig)).await;
        let asked = asked.unwrap_or(Err(AskError::Timeout));
        asked.map_err(|source| Error::ClusterSilent {
            name: name.to_owned(),
            source: Box::new(source),
        })
    }
}

async fn list(kubeconfig: &str) -> Result<Nodes, AskError> {
    let config = Config::from_custom_kubeconfig(read(kubeconfig)?, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config).map_err(AskError::Client)?;
    let mut nodes = Nodes::default();
    let mut next = String::new();
    for _ in 0..PAGES {
        let table = ask(&client, &next).await?;
        nodes.nodes.extend(to_nodes(&table));
        next = table.metadata.next;
        if next.is_empty() {
            return Ok(nodes);
        }
    }
    nodes.more = true;
    Ok(nodes)
}

/// The kubeconfig with nothing in it but what the operator writes: no programs, no files of this machine, no other way.
fn read(text: &str) -> Result<Kubeconfig, KubeconfigError> {
    let mut kubeconfig = Kubeconfig::from_yaml(text)?;
    for auth in &mut kubeconfig.auth_infos {
        auth.auth_info = auth.auth_info.take().map(|given| AuthInfo {
            token: given.token,
            client_certificate_data: given.client_certificate_data,
            client_key_data: given.client_key_data,
            ..AuthInfo::default()
        });
    }
    for cluster in kubeconfig
        .clusters
        .iter_mut()
        .filter_map(|named| named.cluster.as_mut())
    {
        (cluster.certificate_authority, cluster.proxy_url) = (None, None);
    }
    Ok(kubeconfig)
}

async fn ask(client: &Client, next: &str) -> Result<Table, AskError> {
    let token: String = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let uri = format!("/api/v1/nodes?includeObject=None&limit={PAGE}&continue={token}");
    let request = Request::get(uri).header(header::ACCEPT, TABLE).body(Body::empty())?;
    let answer = client.send(request).await.map_err(AskError::Send)?;
    if !answer.status().is_success() {
        return Err(AskError::Status(answer.status().as_u16()));
    }
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(|error| AskError::Read(error.to_string()))?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}

fn to_nodes(table: &Table) -> impl Iterator<Item = Node> {
    let place = |name: &str| table.column_definitions.iter().position(|column| column.name == name);
    let places = ["Name", "Status", "Roles", "Age", "Version"].map(place);
    table.rows.iter().take(PAGE).map(move |row| {
        let [name, status, roles, age, version] = places.map(|place| {
            let cell = place.and_then(|place| row.cells.get(place)).and_then(Value::as_str);
            cell.unwrap_or_default().chars().take(CELL_MAX).collect()
        });
        Node {
            name,
            status,
            roles,
            age,
            version,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_are_read_by_the_names_of_columns() {
        let columns = ["Status", "Name", "More", "Version", "Age"].map(|name| json!({"name": name, "type": "string"}));
        let long = "v".repeat(1000);
        let table: Table = serde_json::from_value(
            json!({"metadata": {"continue": "x"}, "columnDefinitions": columns, "rows": [
            {"cells": ["Ready", "a", {"deep": 1}, long, "5m"]}, {"cells": ["NotReady"]}, {"cells": [1, 2, 3, 4, 5]}]}),
        )
        .unwrap();
        let nodes: Vec<_> = to_nodes(&table).collect();
        let shown = |at: usize| [&nodes[at].name, &nodes[at].status, &nodes[at].roles, &nodes[at].age];
        assert_eq!(shown(0), ["a", "Ready", "", "5m"]);
        assert_eq!(nodes[0].version.len(), CELL_MAX);
        assert_eq!(shown(1), ["", "NotReady", "", ""]);
        assert_eq!(shown(2), [""; 4]);
    }

    #[test]
    fn a_kubeconfig_runs_and_reads_nothing_here() {
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "a", "user": "u"}}],
            "clusters": [{"name": "a", "cluster": {"server": "https://192.0.2.1", "certificate-authority": "/etc/passwd",
                "certificate-authority-data": "eA==", "tls-server-name": "n", "proxy-url": "http://192.0.2.9"}}],
            "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"},
                "tokenFile": "/etc/shadow", "client-certificate": "/c", "client-key": "/k", "client-certificate-data": "eA==",
                "as": "root", "client-key-data": "eQ=="}}]});
        let read = serde_json::to_value(read(&text.to_string()).unwrap()).unwrap();
        let cluster =
            json!({"server": "https://192.0.2.1", "certificate-authority-data": "eA==", "tls-server-name": "n"});
        assert_eq!(read["clusters"][0]["cluster"], cluster);
        let user = read["users"][0]["user"].as_object().unwrap();
        let fields: Vec<_> = user.keys().map(String::as_str).collect();
        assert_eq!(fields, ["client-certificate-data", "client-key-data"]);
    }
}
