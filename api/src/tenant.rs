//! The `Tenant` resource: a user of the host, with a namespace of the same name.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Desired state of a Tenant: its users, quota and allowed names.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "yoke.drzzl.io",
    version = "v1alpha1",
    kind = "Tenant",
    status = "TenantStatus",
    shortname = "ykt",
    category = "yoke",
    doc = "A tenant of this host. The operator creates a namespace with the Tenant's name, in which its subjects create Clusters within the quota.",
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
        .message("the name of a Tenant must be a DNS label of at most 40 characters that begins with a letter"),
    validation = Rule::new(
        "!(self.metadata.name in ['default', 'cert-manager']) && !self.metadata.name.startsWith('kube-') && !self.metadata.name.startsWith('yoke-')"
    )
    .message("this name is reserved: a Tenant cannot be named default, cert-manager, kube-* or yoke-*")
)]
#[serde(rename_all = "camelCase")]
pub struct TenantSpec {
    /// Users and groups of the host cluster that act for this Tenant, at most 64. They may manage
    /// Clusters and JoinTokens in the Tenant's namespace, and read its events and the Secrets that
    /// the operator creates for these objects. They get no other rights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["kind", "name"]))]
    pub subjects: Vec<TenantSubject>,

    /// SSH keys, at most 64, whose holders act for this Tenant through the host's SSH server, with
    /// the rights of `subjects`. A key belongs to one Tenant: if two Tenants claim the same key,
    /// the older Tenant has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub ssh_keys: Vec<SshKey>,

    /// Limits over all Clusters of this Tenant.
    #[serde(default)]
    pub quota: TenantQuota,

    /// DNS domains, at most 32, such as `example.org`. Clusters of this Tenant may use hostnames
    /// under them in `spec.endpoint.extraSANs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "set"), inner(length(max = 253), regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?$")))]
    pub allowed_domains: Vec<String>,

    /// Control-plane classes, at most 32, that Clusters of this Tenant may set in `spec.class`. If
    /// empty, only the host's default class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "set"), inner(length(max = 63)))]
    pub allowed_classes: Vec<String>,
}

/// A user or a group of the host cluster.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantSubject {
    /// Kind of the subject: `User` or `Group`.
    pub kind: SubjectKind,
    /// Name of the user or group, as the host's API server sees it after authentication. Names that
    /// begin with `system:` are refused.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("!self.startsWith('system:')").message("names that begin with system: are reserved for Kubernetes"))]
    pub name: String,
}

/// A public SSH key.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SshKey {
    /// Name of the key in logs and in the output of `whoami`, such as a person or a computer. A DNS
    /// label of at most 63 characters.
    #[schemars(length(max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Content of the key's `.pub` file: type, key, and an optional comment, which is ignored.
    /// Allowed types: Ed25519, ECDSA and security keys.
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new(
        "self.matches('^(ssh-ed25519|ecdsa-sha2-nistp(256|384|521)|sk-ssh-ed25519@openssh[.]com|sk-ecdsa-sha2-nistp256@openssh[.]com) AAAA[0-9A-Za-z+/]+={0,2}( .*)?$')"
    ).message("publicKey must be the line of a .pub file of the type ssh-ed25519, ecdsa-sha2-nistp… or sk-…; other types, such as ssh-rsa, are not accepted: ssh-keygen -t ed25519 creates a key"))]
    pub public_key: String,
}

impl SshKey {
    /// The key without its comment. Two keys are the same if this text is.
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
    /// A single user.
    User,
    /// All members of a group.
    Group,
}

/// Limits over all Clusters of a Tenant.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuota {
    /// Maximum number of Clusters, including sleeping ones. Default: 10.
    #[serde(default = "default_clusters")]
    #[schemars(range(min = 0, max = 100000))]
    pub clusters: i32,
    /// Maximum sum of `spec.storage.quota` over all Clusters, in bytes, such as `8Gi` (the
    /// default). Retained data of deleted Clusters counts until it is deleted.
    #[serde(default = "default_storage")]
    #[schemars(extend("nullable" = false))]
    pub storage: Quantity,
    /// Maximum number of JoinTokens. JoinTokens count until one hour after they have ended.
    /// Default: 256.
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

/// Observed state of a Tenant.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantStatus {
    /// `metadata.generation` of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Part of `quota.storage` that retained data of deleted Clusters uses, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retained_storage: Option<i64>,
    /// Number of Clusters in the Tenant's namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clusters: Option<i32>,
    /// Conditions: `Ready` and `Accepted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_of_a_key_is_ignored() {
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
