//! Lists the Nodes of a Tenant's cluster. The request goes to the cluster's own API with the
//! Tenant's kubeconfig, through the same endpoint as any other client.
//!
//! The owner of a cluster can store any content there. Therefore the API server formats the table
//! itself, without the objects. The answers are limited in size, and only a limited number of
//! Tenants are served at once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::uri::Scheme;
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use yoke_api::Cluster;
use yoke_api::cluster::EndpointStatus;
use yoke_view::verdict::{is_asleep, stays_asleep};

use super::host::TenantHost;
use super::nodes_error::NodesError;
use super::request::REQUEST_LIMIT;
use crate::Error;

/// Media type of the table that `kubectl get` prints.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
/// Rows per page, and maximum number of pages.
const PAGE: usize = 50;
const PAGES: usize = 20;
/// Maximum size of an answer in bytes, and of a cell in characters.
const ANSWER_MAX: usize = 256 << 10;
const CELL_MAX: usize = 64;

/// Clusters that this process queries concurrently; parsing an answer needs several times its size
/// in memory.
static PERMITS: Semaphore = Semaphore::const_new(4);
/// Tenants with a query in progress. A Tenant has at most one, so that it cannot use all the
/// permits.
static QUERYING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Nodes of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nodes {
    /// The Nodes, at most a thousand.
    pub nodes: Vec<Node>,
    /// There are more Nodes than listed.
    pub more: bool,
}

/// A Node, as `kubectl get nodes` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Name of the Node.
    pub name: String,
    /// Status, such as `Ready,SchedulingDisabled`.
    pub status: String,
    /// Roles, derived from the labels.
    pub roles: String,
    /// Time since its creation.
    pub age: String,
    /// Version of its kubelet.
    pub version: String,
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
    cells: Vec<Cell>,
}

/// The start of a text. Other JSON values are dropped, except numbers.
struct Cell(String);

/// The permit of a Tenant for one query.
struct QueryPermit<'a>(&'a str);

impl<'a> QueryPermit<'a> {
    fn take(tenant: &'a str) -> Option<Self> {
        querying().insert(tenant.to_owned()).then(|| Self(tenant))
    }
}

impl Drop for QueryPermit<'_> {
    fn drop(&mut self) {
        querying().remove(self.0);
    }
}

fn querying() -> MutexGuard<'static, BTreeSet<String>> {
    QUERYING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TenantHost {
    /// Lists the Nodes of a cluster.
    pub async fn nodes(&self, name: &str) -> Result<Nodes, Error> {
        let cluster = self.get(name).await?;
        // A request would wake the cluster.
        if is_or_falls_asleep(&cluster) {
            return Err(Error::Asleep(name.to_owned()));
        }
        let kubeconfig = self.kubeconfig_of(name, &cluster).await?;
        let endpoint = cluster.status.and_then(|status| status.endpoint);
        let _permit = QueryPermit::take(&self.tenant).ok_or(Error::Busy)?;
        let slot = tokio::time::timeout(REQUEST_LIMIT, PERMITS.acquire()).await;
        let Ok(Ok(_slot)) = slot else {
            return Err(Error::Busy);
        };
        let asked = tokio::time::timeout(REQUEST_LIMIT, list(&kubeconfig, endpoint.as_ref())).await;
        let asked = asked.unwrap_or(Err(NodesError::Timeout(REQUEST_LIMIT)));
        asked.map_err(|source| Error::ClusterUnreachable {
            name: name.to_owned(),
            source: Box::new(source),
        })
    }
}

/// Returns whether the cluster is asleep or goes to sleep. A cluster that is waking counts too,
/// because it does not answer yet.
fn is_or_falls_asleep(cluster: &Cluster) -> bool {
    is_asleep(cluster) || stays_asleep(cluster)
}

async fn list(kubeconfig: &str, endpoint: Option<&EndpointStatus>) -> Result<Nodes, NodesError> {
    let kubeconfig = read(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    if !endpoint.is_some_and(|endpoint| is_endpoint(&config.cluster_url, endpoint)) {
        return Err(NodesError::WrongServer);
    }
    let client = Client::try_from(config).map_err(NodesError::Client)?;
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

/// Returns whether a URL is the Cluster's own endpoint, by its name or by the ingress's address.
fn is_endpoint(url: &Uri, endpoint: &EndpointStatus) -> bool {
    let own = [&endpoint.url, &endpoint.address].map(|own| own.parse::<Uri>().ok());
    let is_own = own.iter().flatten().any(|own| own.authority() == url.authority());
    is_own && url.scheme() == Some(&Scheme::HTTPS) && url.path() == "/"
}

/// Parses a kubeconfig and keeps only the fields that the operator writes. Commands, files of this
/// process, proxies and disabled verification are removed.
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
        cluster.insecure_skip_tls_verify = None;
    }
    Ok(kubeconfig)
}

async fn ask(client: &Client, next: &str) -> Result<Table, NodesError> {
    let token: String = next.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let uri = format!("/api/v1/nodes?includeObject=None&limit={PAGE}&continue={token}");
    let request = Request::get(uri).header(header::ACCEPT, TABLE).body(Body::empty())?;
    let answer = client.send(request).await.map_err(NodesError::Send)?;
    if !answer.status().is_success() {
        return Err(NodesError::Status(answer.status().as_u16()));
    }
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    let body = body.map_err(NodesError::Read)?;
    Ok(serde_json::from_slice(&body.to_bytes())?)
}

fn to_nodes(table: &Table) -> impl Iterator<Item = Node> {
    let column = |name: &str| table.column_definitions.iter().position(|column| column.name == name);
    let columns = ["Name", "Status", "Roles", "Age", "Version"].map(column);
    table.rows.iter().take(PAGE).map(move |row| {
        let [name, status, roles, age, version] = columns.map(|at| {
            let cell = at.and_then(|at| row.cells.get(at));
            cell.map(|cell| cell.0.clone()).unwrap_or_default()
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

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

/// The owner of the cluster could store a cell that is small as text and large as a parsed value.
struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = Cell;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a cell")
    }

    fn visit_str<E>(self, text: &str) -> Result<Cell, E> {
        Ok(Cell(text.chars().take(CELL_MAX).collect()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Cell, E> {
        Ok(Cell(String::new()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Cell, E> {
        Ok(Cell(number.to_string()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Cell, E> {
        Ok(Cell(number.to_string()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Cell, E> {
        Ok(Cell(number.to_string().chars().take(CELL_MAX).collect()))
    }

    fn visit_unit<E>(self) -> Result<Cell, E> {
        Ok(Cell(String::new()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Cell, A::Error> {
        while parts.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Cell(String::new()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Cell, A::Error> {
        while parts.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Cell(String::new()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
        assert_eq!(shown(2), ["2", "1", "", "5"]);
    }

    #[test]
    fn nested_cells_are_dropped() {
        let nested = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count));
        let text = |cell: &str| {
            format!(r#"{{"columnDefinitions": [{{"name": "Name"}}], "rows": [{{"cells": [{cell}, "x"]}}]}}"#)
        };
        let flat = vec![r#"{"a": [{}, 1.5, null, true]}"#; 10_000].join(",");
        for (rule, cell, expected) in [
            ("a list", format!("[{flat}]"), ""),
            ("an object", format!(r#"{{"a": {{"b": [{flat}]}}}}"#), ""),
            ("deeper than a stack is", nested(100_000), ""),
            ("nothing", "null".to_owned(), ""),
            ("yes", "true".to_owned(), ""),
            ("a number", "-1".to_owned(), "-1"),
            ("a fraction", "1.5".to_owned(), "1.5"),
        ] {
            let table: Table = serde_json::from_str(&text(&cell)).unwrap();
            assert_eq!(
                (table.rows[0].cells.len(), table.rows[0].cells[0].0.as_str()),
                (2, expected),
                "{rule}"
            );
            assert_eq!(to_nodes(&table).next().unwrap().name, expected, "{rule}");
        }
    }

    #[test]
    fn asleep_clusters_are_not_queried() {
        let cluster = |spec: &str, annotations: Value, status: Value| -> Cluster {
            serde_json::from_value(json!({"apiVersion": "yoke.drzzl.io/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "a", "annotations": annotations}, "spec": {"state": spec}, "status": status}))
            .unwrap()
        };
        let asleep = |status: &str| {
            json!({"conditions": [{"type": "Asleep", "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        };
        let activity =
            |sleep: &str, wake: &str| json!({"activity": {"sleepRequestedTime": sleep, "wakeRequestedTime": wake}});
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
        let word = |word: &str| json!({"yoke.drzzl.io/sleep": word});
        for (rule, cluster, expected) in [
            ("it runs", cluster("Running", json!({}), json!({})), false),
            ("its owner's word", cluster("Asleep", json!({}), json!({})), true),
            ("it sleeps", cluster("Running", json!({}), asleep("True")), true),
            ("it slept", cluster("Running", json!({}), asleep("False")), false),
            ("asked to", cluster("Running", json!({}), activity(late, early)), true),
            ("woken", cluster("Running", json!({}), activity(early, late)), false),
            ("not taken up yet", cluster("Running", word("now"), json!({})), true),
            ("ended", cluster("Running", word("end"), json!({})), false),
        ] {
            assert_eq!(is_or_falls_asleep(&cluster), expected, "{rule}");
        }
    }

    #[test]
    fn a_tenant_has_one_query_at_a_time() {
        let first = QueryPermit::take("one").unwrap();
        assert!(QueryPermit::take("one").is_none());
        assert!(QueryPermit::take("two").is_some());
        drop(first);
        assert!(QueryPermit::take("one").is_some());
    }

    #[test]
    fn only_the_clusters_own_endpoint_is_queried() {
        let endpoint: EndpointStatus = serde_json::from_value(
            json!({"url": "https://a.example.org:8443", "serverName": "a.example.org",
            "address": "https://192.0.2.1:8443", "audience": "x", "issuer": "x"}),
        )
        .unwrap();
        for (url, expected) in [
            ("https://a.example.org:8443", true),
            ("https://192.0.2.1:8443", true),
            ("https://192.0.2.1:8443/", true),
            ("http://192.0.2.1:8443", false),
            ("https://192.0.2.1", false),
            ("https://192.0.2.2:8443", false),
            ("https://192.0.2.1:8443/x", false),
            ("https://x@192.0.2.1:8443", false),
        ] {
            assert_eq!(is_endpoint(&url.parse().unwrap(), &endpoint), expected, "{url}");
        }
    }

    #[test]
    fn kubeconfig_commands_and_files_are_removed() {
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "a", "user": "u"}}],
            "clusters": [{"name": "a", "cluster": {"server": "https://192.0.2.1", "certificate-authority": "/etc/passwd",
                "certificate-authority-data": "eA==", "tls-server-name": "n", "proxy-url": "http://192.0.2.9",
                "insecure-skip-tls-verify": true}}],
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
