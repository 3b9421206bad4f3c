//! The `Cluster`: a Kubernetes API of a tenant's own, asked for by one object in the Tenant's namespace.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::addons::AddonsSpec;
use crate::names::ClusterId;
use crate::sleep::{ActivityStatus, SleepSpec};
use crate::time::parse_time;
use crate::usage::UsageStatus;
use crate::workers::{WorkersSpec, WorkersStatus};

/// What a Cluster should be.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "yoke.drzzl.io",
    version = "v1alpha1",
    kind = "Cluster",
    namespaced,
    status = "ClusterStatus",
    shortname = "ykc",
    category = "yoke",
    doc = "A Kubernetes cluster of a tenant's own. Its control plane runs in a hosted namespace; the kubeconfig comes back as the Secret <name>-kubeconfig.",
    derive = "PartialEq",
    selectable = ".status.phase",
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint.url"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Kubeconfig", type_ = "string", json_path = ".status.kubeconfigRef.name", priority = 1),
    printcolumn(name = "CA-Expires", type_ = "string", json_path = ".status.pki.current.notAfter", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("a Cluster's name is a DNS label (RFC 1035): at most 63 lower-case letters, digits and '-', beginning with a letter")
)]
#[x_kube(
    validation = Rule::new("!has(oldSelf.id) || has(self.id)").message("id cannot be removed"),
    validation = Rule::new("!has(oldSelf.version) || has(self.version)").message("version cannot be removed once it is set"),
    validation = Rule::new("self.network == oldSelf.network").message("network cannot be changed after creation"),
    validation = Rule::new("!self.addons.metricsServer.enabled || self.konnectivity != 'Disabled'")
        .message("addons.metricsServer needs konnectivity; the API server reaches it in no other way")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Identity, set once by the operator; also the label `yoke.drzzl.io/id`. It names the hosted namespace, the streams,
    /// the issuer and the public name, and comes along when the object is restored on another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10), regex(pattern = r"^[a-z][a-z0-9]{9}$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("id is set once and never changes"))]
    pub id: Option<String>,

    /// Version of Kubernetes, such as `v1.35.4`, out of the host's catalogue; the host's default if not given. It may go up
    /// one minor version at a time, and up or down within a minor version. Once one has answered, each minor version does so
    /// before the next one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^v?[0-9]{1,2}\.[0-9]{1,3}\.[0-9]{1,3}$"))]
    #[x_kube(validation = Rule::new(
        "self.replace('v', '').split('.')[0] == oldSelf.replace('v', '').split('.')[0] && int(self.replace('v', '').split('.')[1]) - int(oldSelf.replace('v', '').split('.')[1]) in [0, 1]"
    ).message("version may go up one minor version at a time and never down a minor version"))]
    pub version: Option<String>,

    /// Class of control plane, out of those the host offers: placement, resources and replicas of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub class: Option<String>,

    /// Whether a control plane runs.
    #[serde(default)]
    pub state: DesiredState,

    /// What the Cluster does that sleeps though its `state` is `Running`.
    #[serde(default)]
    pub sleep: SleepSpec,

    /// How long the Cluster lives from its creation, in minutes or hours, such as `90m` or `8h`, up to `9999h`; then it is deleted,
    /// as somebody who deletes it would do. May be changed and removed while it lives. Without this, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    pub ttl: Option<String>,

    /// While true, the operator carries out and mends nothing of this Cluster, nor deletes it when its `ttl` is over. Renewed certificates still reach a control plane
    /// that runs, host names that the Tenant may not have any more are withdrawn, and deletion works.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,

    /// How the API is reached.
    #[serde(default)]
    pub endpoint: EndpointSpec,

    /// Address ranges and DNS domain inside the cluster; immutable.
    #[serde(default)]
    pub network: NetworkSpec,

    /// Whether the control plane reaches kubelets (`kubectl logs`, `exec`, `port-forward`), and Pods that serve webhooks and
    /// aggregated APIs, through agents that connect to it from the workers, which may be behind NAT. It reaches them in no
    /// other way.
    #[serde(default)]
    pub konnectivity: Konnectivity,

    /// What the operator keeps in `kube-system` of the cluster beside its API, unless it is turned off: then it is removed, and
    /// nothing else is. An object that somebody else made under a name of an add-on is not touched (condition `AddonsReady`).
    /// `podNetwork` is the workers' own, and no object.
    #[serde(default)]
    pub addons: AddonsSpec,

    /// The cluster's workers.
    #[serde(default)]
    pub workers: WorkersSpec,

    /// The store.
    #[serde(default)]
    pub storage: StorageSpec,

    /// Lifetimes of certificates.
    #[serde(default)]
    pub pki: PkiSpec,

    /// Additional arguments of the control plane's components; only those on the host's allow-list are accepted.
    #[serde(default)]
    pub extra_args: ExtraArgsSpec,

    /// What becomes of the stored data when the Cluster is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

impl ClusterSpec {
    /// How long the Cluster lives from its creation; `None`: for ever.
    pub fn lifetime(&self) -> Option<Duration> {
        parse_time(self.ttl.as_deref()?)
    }
}

/// Whether a control plane runs.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DesiredState {
    /// A control plane runs, unless the annotation `yoke.drzzl.io/sleep=now` has sent it to sleep until somebody needs it.
    #[default]
    Running,
    /// No control plane runs, whoever needs it; all state is kept.
    Asleep,
}

/// Whether the control plane reaches workers through agents.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Konnectivity {
    /// There are agents from the first JoinToken or Node on, for good: the control plane is started again once by that.
    #[default]
    Automatic,
    /// There are no agents.
    Disabled,
    /// The control plane has a konnectivity-server, and a DaemonSet in `kube-system` brings an agent to each worker.
    Enabled,
}

impl Konnectivity {
    /// Whether there are agents. Of `Automatic` the operator decides.
    pub fn is_enabled(self) -> bool {
        self == Self::Enabled
    }
}

/// What becomes of the stored data when the Cluster is deleted.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// The streams are deleted, last of all.
    #[default]
    Delete,
    /// The streams stay, and count against the Tenant's quota of storage. A Cluster that is made again under the same name with
    /// the same `spec.id` has them again; they go with it, or with the Tenant.
    Retain,
}

/// How the API is reached.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSpec {
    /// Additional host names in the serving certificate and in the ingress, only under the Tenant's `allowedDomains`.
    #[serde(default, rename = "extraSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(max = 253), regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?$")))]
    pub extra_sans: Vec<String>,

    /// Address ranges, such as `192.0.2.0/24`, from which the API may be reached; from everywhere if there are none. Those of the
    /// cluster's own workers and Pods are wanted, as the ingress sees them. A change holds for new connections, and for
    /// new requests of Pods; a connection that is open goes on. While the Cluster is refused (`Accepted`), what a change
    /// takes away is taken away, and what it adds is not added yet.
    #[serde(default, rename = "allowedCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"), inner(length(max = 43), regex(pattern = r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")))]
    #[x_kube(validation = Rule::new("self.all(range, isCIDR(range) && cidr(range).masked() == cidr(range))")
        .message("allowedCIDRs are address ranges such as 192.0.2.0/24, with no bits set after the prefix"))]
    pub allowed_cidrs: Vec<String>,
}

/// Address ranges and DNS domain inside the cluster.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// Range of Service addresses; one of those that the host offers.
    #[serde(default = "default_service_cidr", rename = "serviceCIDR")]
    #[schemars(length(max = 43))]
    pub service_cidr: String,
    /// Range of Pod addresses.
    #[serde(default = "default_pod_cidr", rename = "podCIDR")]
    #[schemars(length(max = 43))]
    pub pod_cidr: String,
    /// DNS domain of the cluster; one of those that the host offers.
    #[serde(default = "default_cluster_domain")]
    #[schemars(length(max = 253))]
    pub cluster_domain: String,
}

fn default_service_cidr() -> String {
    "10.96.0.0/16".into()
}

fn default_pod_cidr() -> String {
    "10.244.0.0/16".into()
}

fn default_cluster_domain() -> String {
    "cluster.local".into()
}

impl Default for NetworkSpec {
    fn default() -> Self {
        Self {
            service_cidr: default_service_cidr(),
            pod_cidr: default_pod_cidr(),
            cluster_domain: default_cluster_domain(),
        }
    }
}

/// The store.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Bytes that live objects and their history may take; beyond it writes are refused as etcd does (NOSPACE).
    #[serde(default = "default_storage_quota")]
    #[schemars(extend("nullable" = false))]
    pub quota: Quantity,
}

fn default_storage_quota() -> Quantity {
    Quantity("256Mi".into())
}

impl Default for StorageSpec {
    fn default() -> Self {
        Self {
            quota: default_storage_quota(),
        }
    }
}

/// Lifetimes of certificates, as Go durations such as `8760h`.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PkiSpec {
    /// Lifetime of each generation of the cluster's certificate authorities, `87600h` at most.
    #[serde(default = "default_ca_duration")]
    #[schemars(length(max = 16), regex(pattern = r"^[0-9]+h$"))]
    pub ca_duration: String,
    /// How long an old generation and its successor are both trusted; no leaf lives longer.
    #[serde(default = "default_ca_overlap")]
    #[schemars(length(max = 16), regex(pattern = r"^[0-9]+h$"))]
    pub ca_overlap: String,
    /// Lifetime of leaf certificates other than those in kubeconfigs.
    #[serde(default = "default_leaf_duration")]
    #[schemars(length(max = 16), regex(pattern = r"^[0-9]+h$"))]
    pub leaf_duration: String,
}

fn default_ca_duration() -> String {
    "8760h".into()
}

fn default_ca_overlap() -> String {
    "2880h".into()
}

fn default_leaf_duration() -> String {
    "720h".into()
}

impl Default for PkiSpec {
    fn default() -> Self {
        Self {
            ca_duration: default_ca_duration(),
            ca_overlap: default_ca_overlap(),
            leaf_duration: default_leaf_duration(),
        }
    }
}

/// Additional arguments of the control plane's components.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraArgsSpec {
    /// Arguments of kube-apiserver.
    #[serde(default, rename = "apiServer", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub api_server: Vec<ExtraArg>,
    /// Arguments of kube-controller-manager.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub controller_manager: Vec<ExtraArg>,
    /// Arguments of kube-scheduler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub scheduler: Vec<ExtraArg>,
}

/// One argument, `--name=value`; an argument may be repeated.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraArg {
    /// Name without dashes.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z][-a-z0-9]*$"))]
    pub name: String,
    /// Value.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// What the operator observed of a Cluster.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// The generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// A summary of the conditions for people; tools wait on the conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The version of Kubernetes that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The versions that ran, newest first, at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<VersionHistory>,
    /// How the API is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointStatus>,
    /// The Secret in this namespace that holds the kubeconfig, under the key `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig_ref: Option<SecretRef>,
    /// The store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// Certificate authorities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pki: Option<PkiStatus>,
    /// Who asked it to sleep or to wake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<ActivityStatus>,
    /// What it used, and what that costs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,
    /// Number of Nodes that the cluster's API knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,
    /// How far its workers are with the version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    /// The state in parts; see [`crate::ConditionType`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A summary of the conditions.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The spec cannot be carried out; the condition `Accepted` says why.
    Refused,
    /// The control plane is being made for the first time or is starting.
    Provisioning,
    /// The API answers.
    Running,
    /// The API answers and a change is being carried out.
    Updating,
    /// The API should answer and does not.
    Unavailable,
    /// No control plane runs, as asked for.
    Asleep,
    /// The Cluster is being deleted.
    Deleting,
}

/// One version that ran.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionHistory {
    /// The version of Kubernetes.
    pub version: String,
    /// When its rollout began.
    pub started: Time,
    /// When its API first answered; absent while it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<Time>,
}

/// How the API is reached.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStatus {
    /// URL by the public name, `https://<public name>[:port]`.
    pub url: String,
    /// The public name: the TLS server name that the ingress routes by.
    pub server_name: String,
    /// Address of the ingress, `https://<address>:<port>`; what the kubeconfig dials.
    pub address: String,
    /// The audience that only this cluster accepts.
    pub audience: String,
    /// Issuer of the cluster's service-account tokens.
    pub issuer: String,
}

/// A Secret in the same namespace.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: String,
}

/// The store.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Public key of the NATS account, which holds this store alone.
    pub account: String,
    /// JetStream stream of the log.
    pub stream: String,
    /// Bytes that the log and the snapshots take in JetStream, to within a MiB or a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
}

/// Certificate authorities.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PkiStatus {
    /// The generation that signs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<CaGeneration>,
}

/// One generation of a cluster's certificate authorities.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaGeneration {
    /// Number of the generation, from 1.
    pub generation: i32,
    /// End of its validity.
    pub not_after: Time,
}

impl Cluster {
    /// The identity, if it has been set to a valid one.
    pub fn id(&self) -> Option<ClusterId> {
        self.spec.id.as_deref().and_then(|id| id.parse().ok())
    }
}
