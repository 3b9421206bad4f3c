//! The `Tenant`: a user of the host, with a namespace of its name.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a tenant may do on this host.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "yoke.drzzl.io",
    version = "v1alpha1",
    kind = "Tenant",
    status = "TenantStatus",
    shortname = "ykt",
    category = "yoke",
    doc = "A tenant of this host: a namespace of its name in which its subjects make Clusters, and a quota.",
    derive = "PartialEq",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Clusters", type_ = "integer", json_path = ".status.clusters"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')")
        .message("a Tenant's name is a DNS label of at most 40 characters that begins with a letter"),
    validation = Rule::new(
        "!(self.metadata.name in ['default', 'cert-manager']) && !self.metadata.name.startsWith('kube-') && !self.metadata.name.startsWith('yoke-')"
    )
    .message("this name is reserved: default, cert-manager, kube-* and yoke-* cannot be Tenants")
)]
#[serde(rename_all = "camelCase")]
pub struct TenantSpec {
    /// Users and groups of the host cluster who act for this Tenant: they may manage Clusters and JoinTokens in its namespace
    /// and read the Secrets that come of them, and nothing more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    pub subjects: Vec<TenantSubject>,

    /// SSH keys whose holders act for this Tenant at the host's SSH server, as its subjects do at the host's API. A key is one
    /// Tenant's: of two Tenants that claim it, the older has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub ssh_keys: Vec<SshKey>,

    /// What the Tenant's Clusters may use in all.
    #[serde(default)]
    pub quota: TenantQuota,

    /// DNS domains under which Clusters of this Tenant may claim additional host names (`spec.endpoint.extraSANs`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "set"), inner(length(max = 253), regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?$")))]
    pub allowed_domains: Vec<String>,

    /// Classes that Clusters of this Tenant may name; empty means the host's default class only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "set"), inner(length(max = 63)))]
    pub allowed_classes: Vec<String>,
}

/// A user or a group of the host cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantSubject {
    /// What `name` names.
    pub kind: SubjectKind,
    /// The name as the host's API server sees it after authentication. A name that begins with `system:` is refused.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("!self.startsWith('system:')").message("names that begin with system: belong to Kubernetes"))]
    pub name: String,
}

/// A public key of SSH.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SshKey {
    /// What the key is called in logs and by `whoami`, such as a person or a machine.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// The line of the key's `.pub` file: kind, key, and a comment that means nothing. Ed25519, ECDSA and security keys.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new(
        "self.matches('^(ssh-ed25519|ecdsa-sha2-nistp(256|384|521)|sk-ssh-ed25519@openssh[.]com|sk-ecdsa-sha2-nistp256@openssh[.]com) AAAA[0-9A-Za-z+/]+={0,2}( .*)?$')"
    ).message("an SSH key is the line of a .pub file of the kind ssh-ed25519, ecdsa-sha2-nistp… or sk-…; of other kinds, such as ssh-rsa, none are taken: ssh-keygen -t ed25519 makes one"))]
    pub public_key: String,
}

impl SshKey {
    /// The key without its comment: what tells two keys apart.
    pub fn material(&self) -> &str {
        let line = self.public_key.trim();
        let second = line.find(' ').map_or(line.len(), |space| space + 1);
        let end = line[second..].find(' ').map_or(line.len(), |space| second + space);
        &line[..end]
    }
}

/// Kinds of subjects.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SubjectKind {
    /// One user.
    User,
    /// All members of a group.
    Group,
}

/// Upper bounds over all Clusters of a Tenant.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuota {
    /// Number of Clusters, asleep ones included.
    #[serde(default = "default_clusters")]
    #[schemars(range(min = 0, max = 100000))]
    pub clusters: i32,
    /// Sum of the storage quotas of all Clusters, in bytes; of those that are gone too, as long as their data stays.
    #[serde(default = "default_storage")]
    #[schemars(extend("nullable" = false))]
    pub storage: Quantity,
    /// Number of JoinTokens, those included that have ended less than an hour ago.
    #[serde(default = "default_join_tokens")]
    #[schemars(range(min = 1, max = 10000))]
    pub join_tokens: i32,
}

fn default_clusters() -> i32 {
    10
}

fn default_storage() -> Quantity {
    Quantity("8Gi".into())
}

fn default_join_tokens() -> i32 {
    256
}

impl Default for TenantQuota {
    fn default() -> Self {
        Self {
            clusters: default_clusters(),
            storage: default_storage(),
            join_tokens: default_join_tokens(),
        }
    }
}

/// What the operator observed of a Tenant.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Bytes of `quota.storage` that are taken by Clusters that are gone and whose data is still there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_storage: Option<i64>,
    /// Number of Clusters in the Tenant's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<i32>,
    /// `Ready` and `Accepted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_of_a_key_means_nothing() {
        for (line, material) in [
            ("ssh-ed25519 AAAA", "ssh-ed25519 AAAA"),
            ("ssh-ed25519 AAAA me@home", "ssh-ed25519 AAAA"),
            ("ssh-ed25519 AAAA me at home\n", "ssh-ed25519 AAAA"),
            ("ssh-ed25519", "ssh-ed25519"),
            ("", ""),
        ] {
            let key = SshKey {
                name: "k".into(),
                public_key: line.into(),
            };
            assert_eq!(key.material(), material, "{line:?}");
        }
    }
}
