//! The `JoinToken`: leave for workers to join a Cluster, for a short time, asked for by one object in the Tenant's namespace.
//!
//! ```text
//!  JoinToken ─▶ operator ─┬─ Secret bootstrap-token-<id> in kube-system of the tenant cluster
//!                         └─ Secret <name>-join beside it ([`key`]) ─▶ one line (line.rs) ─▶ worker
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

/// Keys of the Secret with what a worker needs to join.
pub mod key {
    /// Name and port of the API server, as a worker reaches it.
    pub const SERVER: &str = "server";
    /// The ingress's address, if the operator knows one that leads there from elsewhere.
    pub const ADDRESS: &str = "address";
    /// The certificates by which a worker knows the API server, PEM, and nothing but them.
    pub const CA: &str = "ca.crt";
    /// The certificates by which a worker's kubelet knows the API server when that calls it, PEM. Never those of [`CA`], under
    /// which other clusters' API servers are, too.
    pub const CLIENT_CA: &str = "client-ca.crt";
    /// The bootstrap token, `<id>.<secret>`.
    pub const TOKEN: &str = "token";
    /// Version of the cluster.
    pub const VERSION: &str = "version";
    /// Labels with which a worker registers its Node, if there are any: a JSON object.
    pub const NODE_LABELS: &str = "node-labels";
    /// Taints with which a worker registers its Node, if there are any: a JSON list.
    pub const TAINTS: &str = "taints";
    /// Whether a worker makes the network of its Pods: `false`, or not there.
    pub const POD_NETWORK: &str = "pod-network";
    /// SHA-256 of `yoke-worker` by architecture, if the operator knows them: a JSON object.
    pub const DIGESTS: &str = "worker-digests";
    /// Where the SSH server is that gives `yoke-worker` out, if the operator knows it.
    pub const SSH: &str = "ssh";
}

/// The longest that a JoinToken holds.
pub const LONGEST: Duration = Duration::from_hours(24);
/// The shortest that a JoinToken holds.
pub const SHORTEST: Duration = Duration::from_mins(1);

/// What a JoinToken allows.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "yoke.drzzl.io",
    version = "v1alpha1",
    kind = "JoinToken",
    namespaced,
    status = "JoinTokenStatus",
    shortname = "ykj",
    category = "yoke",
    doc = "Leave for workers to join a Cluster, for a short time. What a worker needs comes back as the Secret <name>-join. Deleting it revokes what was not used.",
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
        .message("a JoinToken's name is a DNS label of at most 58 characters that begins with a letter")
)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("a JoinToken does not change; make another one")
)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenSpec {
    /// The Cluster to join, in the same namespace.
    #[schemars(length(min = 1, max = 40), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub cluster_name: String,

    /// How many workers may join by it.
    #[serde(default = "default_max_uses")]
    #[schemars(range(min = 1, max = 100))]
    pub max_uses: i32,

    /// How long it holds, from when it is made, in minutes or hours: from `1m` to `24h`.
    #[serde(default = "default_ttl")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('24h')")
        .message("ttl is from 1m to 24h"))]
    pub ttl: String,

    /// How long a worker that joined by it may be silent, in minutes or hours: from `1m` to `24h`. Then its Node is removed, and
    /// with it its Pods. Without this, never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1m') && duration(self) <= duration('24h')")
        .message("reapAfter is from 1m to 24h"))]
    pub reap_after: Option<String>,

    /// Labels with which a worker registers its Node. The worker sets them itself, and whoever has the machine may change them: to
    /// keep workloads from a worker that is not trusted, label its Node under `node-restriction.kubernetes.io/` yourself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = {"type": "string", "maxLength": 63,
        "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"}))]
    #[x_kube(validation = Rule::new(node::KEYS_RULE)
        .message("a label's key is a name of at most 63 characters, with a domain and a slash before it if wanted"))]
    #[x_kube(validation = Rule::new(node::DOMAINS_RULE)
        .message("of kubernetes.io and k8s.io a worker may set kubelet.kubernetes.io/*, node.kubernetes.io/*, topology.kubernetes.io/zone and /region, and the older names of these"))]
    pub node_labels: BTreeMap<String, String>,

    /// Taints with which a worker registers its Node. Whoever has the machine may change them before it does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["key", "effect"]))]
    pub taints: Vec<Taint>,
}

/// What the operator reports of a JoinToken.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinTokenStatus {
    /// Conditions: `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The public part of the bootstrap token: who joins by it is `system:bootstrap:<id>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 6))]
    pub token_id: Option<String>,
    /// The identity of the Cluster that it is for: `spec.id` of the one that had the name when a token was first drawn. It lets
    /// nobody into another one of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub cluster_id: Option<String>,
    /// When it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_time: Option<Time>,
    /// The Secret with what a worker needs, in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// Who joined, the first one first. As many as `spec.maxUses` at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["request"]))]
    pub uses: Vec<Use>,
}

/// A Secret in the same namespace.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRef {
    /// Its name.
    #[schemars(length(max = 63))]
    pub name: String,
}

/// One worker that was let join.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Use {
    /// UID of the CertificateSigningRequest by which it joined.
    #[schemars(length(max = 64))]
    pub request: String,
    /// The Node's name.
    #[schemars(length(max = 253))]
    pub node: String,
    /// When.
    pub time: Time,
}

impl JoinTokenSpec {
    /// How long it holds, within [`SHORTEST`] and [`LONGEST`].
    pub fn lifetime(&self) -> Duration {
        parse_short_time(&self.ttl).unwrap_or(SHORTEST)
    }
}

/// A time in minutes or hours, within [`SHORTEST`] and [`LONGEST`].
pub fn parse_short_time(text: &str) -> Option<Duration> {
    parse_time(text).map(|asked| asked.clamp(SHORTEST, LONGEST))
}

impl JoinLine {
    /// What a worker needs, out of the Secret of a JoinToken.
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

/// What is under a key of a Secret; empty if there is no such key.
fn read_json<T: Default + DeserializeOwned>(secret: &Secret, key: &str) -> Option<T> {
    match secret.data.as_ref()?.get(key) {
        Some(bytes) => serde_json::from_slice(&bytes.0).ok(),
        None => Some(T::default()),
    }
}

/// Name of the Secret with what a worker needs.
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
    fn a_line_is_read_from_a_secret() {
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
        // An operator whose ingress has a name, and one of before there were addresses.
        assert_eq!(read(&data).unwrap().address, None);
        data.insert(key::ADDRESS.into(), ByteString("203.0.113.7".into()));
        assert_eq!(read(&data).unwrap().address, Some([203, 0, 113, 7].into()));
        data.insert(key::ADDRESS.into(), ByteString("in.yoke.test".into()));
        assert_eq!(read(&data), None);
        data.remove(key::ADDRESS);
        // A Cluster with the workers' network, and an operator of before there was another.
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
    fn one_use_for_a_quarter_of_an_hour_is_the_default() {
        let spec: JoinTokenSpec = serde_json::from_str(r#"{"clusterName": "a"}"#).unwrap();
        assert_eq!((spec.max_uses, spec.ttl.as_str(), spec.reap_after), (1, "15m", None));
    }
}
