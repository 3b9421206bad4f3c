//! The `JoinToken` resource: permission for workers to join a Cluster for a short time, requested
//! with one object in the Tenant's namespace.
//!
//! ```text
//!  JoinToken ─▶ operator ─┬─ Secret bootstrap-token-<id> in kube-system of the tenant cluster
//!                         └─ Secret <name>-join in its namespace ([`key`]) ─▶ join command (line.rs) ─▶ worker
//! ```

pub mod line;
pub mod node;
pub mod program;

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::time::parse_time;

pub use line::{JoinLine, LineError};
pub use node::{Taint, TaintEffect};
pub use program::Program;

/// Keys of the Secret with the data that a worker needs to join.
pub mod key {
    /// Name and port of the API server, as a worker reaches it.
    pub const SERVER: &str = "server";
    /// Address of the ingress for workers that cannot resolve [`SERVER`], if the operator knows
    /// one.
    pub const ADDRESS: &str = "address";
    /// CA certificates that verify the API server, PEM. The value contains nothing else.
    pub const CA: &str = "ca.crt";
    /// CA certificates that verify the API server as a client of the worker's kubelet, PEM. Never
    /// those of [`CA`], which also sign for other clusters' API servers.
    pub const CLIENT_CA: &str = "client-ca.crt";
    /// Bootstrap token, `<id>.<secret>`.
    pub const TOKEN: &str = "token";
    /// Kubernetes version of the cluster.
    pub const VERSION: &str = "version";
    /// Labels with which a worker registers its Node, if any: a JSON object.
    pub const NODE_LABELS: &str = "node-labels";
    /// Taints with which a worker registers its Node, if any: a JSON list.
    pub const TAINTS: &str = "taints";
    /// Whether a worker sets up the Pod network: `false`, or absent for true.
    pub const POD_NETWORK: &str = "pod-network";
    /// SHA-256 of `yoke-worker` by architecture, if the operator knows them: a JSON object.
    pub const DIGESTS: &str = "worker-digests";
    /// Host of the SSH server from which `yoke-worker` can be downloaded, if the operator knows it.
    pub const SSH: &str = "ssh";
}

/// Longest lifetime of a JoinToken.
pub const LONGEST: Duration = Duration::from_hours(24);
/// Shortest lifetime of a JoinToken.
pub const SHORTEST: Duration = Duration::from_mins(1);

/// Desired state of a JoinToken. Immutable.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "yoke.drzzl.io",
    version = "v1alpha1",
    kind = "JoinToken",
    namespaced,
    status = "JoinTokenStatus",
    shortname = "ykj",
    category = "yoke",
    doc = "Permission for workers to join a Cluster for a short time. The operator writes the data that a worker needs to the Secret <name>-join. Deleting the JoinToken revokes its remaining uses.",
    derive = "PartialEq",
    printcolumn(name = "Cluster", type_ = "string", json_path = ".spec.clusterName"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Max-Uses", type_ = "integer", json_path = ".spec.maxUses"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expirationTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,56}[a-z0-9])?$')")
        .message("the name of a JoinToken must be a DNS label of at most 58 characters that begins with a letter")
)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("the spec of a JoinToken is immutable; create another JoinToken")
)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenSpec {
    /// Name of the Cluster to join, in the same namespace.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub cluster_name: String,

    /// Number of workers that may join with this token, from 1 to 100. Default: 1.
    #[serde(default = "default_max_uses")]
    #[schemars(range(min = 1, max = 100))]
    pub max_uses: i32,

    /// Lifetime of the token from its creation, in minutes or hours: `1m` to `24h`, such as `2h`.
    /// Default: `15m`.
    #[serde(default = "default_ttl")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('24h')")
        .message("ttl must be from 1m to 24h"))]
    pub ttl: String,

    /// Time after which the Node of a silent worker is removed, together with its Pods, in minutes
    /// or hours: `1m` to `24h`. It applies to workers that joined with this token. If unset, silent
    /// Nodes are not removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('24h')")
        .message("reapAfter must be from 1m to 24h"))]
    pub reap_after: Option<String>,

    /// Labels with which a worker registers its Node, at most 32. The worker sets them itself, so
    /// anyone with access to the machine can change them. To keep workloads off untrusted workers,
    /// set a label under `node-restriction.kubernetes.io/` on their Nodes yourself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 63,
        "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"}))]
    #[x_kube(validation = Rule::new(node::KEYS_RULE)
        .message("the key of a label must be a name of at most 63 characters, optionally with a domain and a slash before it"))]
    #[x_kube(validation = Rule::new(node::DOMAINS_RULE)
        .message("under kubernetes.io and k8s.io, a worker may set only kubelet.kubernetes.io/*, node.kubernetes.io/*, topology.kubernetes.io/zone and /region, and the older names of these"))]
    pub node_labels: BTreeMap<String, String>,

    /// Taints with which a worker registers its Node, at most 16. Anyone with access to the machine
    /// can change them before it registers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]))]
    pub taints: Vec<Taint>,
}

/// Observed state of a JoinToken.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenStatus {
    /// Conditions: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Public part of the bootstrap token. A worker that joins with it authenticates as
    /// `system:bootstrap:<id>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 6))]
    pub token_id: Option<String>,
    /// Identity of the Cluster for which the token was first generated (its `spec.id`). The token
    /// cannot join another Cluster that later has the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cluster_id: Option<String>,
    /// Time at which the token expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<Time>,
    /// Secret with the data that a worker needs to join, in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// Workers that joined, oldest first, at most `spec.maxUses`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["request"]))]
    pub uses: Vec<Use>,
}

/// Reference to a Secret in the same namespace.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    /// Name of the Secret.
    #[schemars(length(max = 63))]
    pub name: String,
}

/// One worker that joined with the token.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// UID of the CertificateSigningRequest with which the worker joined.
    #[schemars(length(max = 64))]
    pub request: String,
    /// Name of the worker's Node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Time at which the worker joined.
    pub time: Time,
}

impl JoinTokenSpec {
    /// Lifetime of the token, clamped to [`SHORTEST`] and [`LONGEST`].
    pub fn lifetime(&self) -> Duration {
        parse_short_time(&self.ttl).unwrap_or(SHORTEST)
    }
}

/// Parses a duration in minutes or hours, and clamps it to [`SHORTEST`] and [`LONGEST`].
pub fn parse_short_time(text: &str) -> Option<Duration> {
    parse_time(text).map(|asked| asked.clamp(SHORTEST, LONGEST))
}

impl JoinLine {
    /// Reads the data that a worker needs from the Secret of a JoinToken. `None` if any part is
    /// missing or malformed.
    pub fn from_secret(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| String::from_utf8(data.get(key)?.0.clone()).ok();
        Some(Self {
            server: text(key::SERVER)?,
            address: match data.get(key::ADDRESS) {
                Some(_) => Some(text(key::ADDRESS)?.parse().ok()?),
                None => None,
            },
            ca: text(key::CA)?,
            client_ca: text(key::CLIENT_CA)?,
            token: text(key::TOKEN)?,
            version: text(key::VERSION)?,
            node_labels: read_json(secret, key::NODE_LABELS)?,
            taints: read_json(secret, key::TAINTS)?,
            pod_network: match data.get(key::POD_NETWORK) {
                Some(_) => text(key::POD_NETWORK)?.parse().ok()?,
                None => true,
            },
            program: Program::from_secret(secret)?,
        })
    }
}

/// Parses the JSON under a key of a Secret. An absent key gives the default value.
fn read_json<T: Default + DeserializeOwned>(secret: &Secret, key: &str) -> Option<T> {
    match secret.data.as_ref()?.get(key) {
        Some(bytes) => serde_json::from_slice(&bytes.0).ok(),
        None => Some(T::default()),
    }
}

/// Name of the Secret with the data that a worker needs to join.
pub fn secret_name(join_token: &str) -> String {
    format!("{join_token}-join")
}

fn default_max_uses() -> i32 {
    1
}

fn default_ttl() -> String {
    "15m".to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn lifetimes_are_read_and_bounded() {
        for (ttl, minutes) in [
            ("15m", 15),
            ("1h", 60),
            ("24h", 24 * 60),
            ("9999h", 24 * 60),
            ("99999999999999999999h", 1),
            ("0m", 1),
            ("", 1),
            ("h", 1),
            ("5s", 1),
            ("\u{e9}", 1),
        ] {
            let spec = JoinTokenSpec {
                ttl: ttl.into(),
                ..JoinTokenSpec::default()
            };
            assert_eq!(spec.lifetime(), Duration::from_mins(minutes), "{ttl:?}");
        }
        for (text, minutes) in [
            ("5m", Some(5)),
            ("0m", Some(1)),
            ("25h", Some(24 * 60)),
            ("5s", None),
            ("m", None),
        ] {
            assert_eq!(parse_short_time(text), minutes.map(Duration::from_mins), "{text:?}");
        }
    }

    #[test]
    fn join_line_is_read_from_a_secret() {
        let mut data = BTreeMap::from(
            [
                (key::SERVER, "a.yoke.test:443"),
                (key::CA, "a"),
                (key::CLIENT_CA, "b"),
                (key::TOKEN, "c"),
                (key::VERSION, "v1.35.4"),
            ]
            .map(|(key, text)| (key.to_owned(), ByteString(text.into()))),
        );
        let read = |data: &BTreeMap<String, ByteString>| {
            JoinLine::from_secret(&Secret {
                data: Some(data.clone()),
                ..Secret::default()
            })
        };
        // No address: the ingress has a DNS name, or the operator predates this key.
        assert_eq!(read(&data).unwrap().address, None);
        data.insert(key::ADDRESS.into(), ByteString("203.0.113.7".into()));
        assert_eq!(read(&data).unwrap().address, Some([203, 0, 113, 7].into()));
        data.insert(key::ADDRESS.into(), ByteString("in.yoke.test".into()));
        assert_eq!(read(&data), None);
        data.remove(key::ADDRESS);
        // No value: the workers set up the Pod network, or the operator predates this key.
        assert!(read(&data).unwrap().pod_network);
        for (text, expected) in [("false", Some(false)), ("true", Some(true)), ("no", None)] {
            data.insert(key::POD_NETWORK.into(), ByteString(text.into()));
            assert_eq!(read(&data).map(|line| line.pod_network), expected, "{text}");
        }
        data.remove(key::POD_NETWORK);
        data.remove(key::CA);
        assert_eq!(read(&data), None);
    }

    #[test]
    fn default_is_one_use_within_15_minutes() {
        let spec: JoinTokenSpec = serde_json::from_str(r#"{"clusterName": "a"}"#).unwrap();
        assert_eq!((spec.max_uses, spec.ttl.as_str(), spec.reap_after), (1, "15m", None));
    }
}
