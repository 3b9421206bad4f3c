//! The `Cluster` resource: a tenant requests a Kubernetes API with one object in its namespace.

mod status;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::addons::AddonsSpec;
use crate::names::ClusterId;
use crate::sleep::SleepSpec;
use crate::time::parse_time;
use crate::workers::WorkersSpec;

pub use status::{
    CaGeneration, ClusterStatus, EndpointStatus, Phase, PkiStatus, SecretRef, StorageStatus, VersionHistory,
};

/// Desired state of a Cluster.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "yoke.drzzl.io",
    version = "v1alpha1",
    kind = "Cluster",
    namespaced,
    status = "ClusterStatus",
    shortname = "ykc",
    category = "yoke",
    doc = "A Kubernetes cluster that belongs to one Tenant. Its control plane runs in a control-plane namespace of the host. The operator writes an admin kubeconfig to the Secret <name>-kubeconfig in the namespace of the Cluster.",
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
        .message("the name of a Cluster must be a DNS label (RFC 1035): at most 63 lowercase letters, digits and '-', beginning with a letter and ending with a letter or digit")
)]
#[x_kube(
    validation = Rule::new("!has(oldSelf.id) || has(self.id)").message("id cannot be removed once it is set"),
    validation = Rule::new("!has(oldSelf.version) || has(self.version)").message("version cannot be removed once it is set"),
    validation = Rule::new("self.network == oldSelf.network").message("network cannot be changed after creation"),
    validation = Rule::new("!self.addons.metricsServer.enabled || self.konnectivity != 'Disabled'")
        .message("addons.metricsServer requires konnectivity, because the API server has no other path to it: set konnectivity to Automatic or Enabled, or disable addons.metricsServer")
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSpec {
    /// Identity of the Cluster: ten lowercase letters and digits, such as `bcdfghjk24`. The
    /// operator sets it once, and also as the label `yoke.drzzl.io/id`. The names of the
    /// control-plane namespace, the NATS streams, the issuer and the public name contain it. Keep
    /// it when you restore the object on another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 10), regex(pattern = r"^[a-z][a-z0-9]{9}$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("id cannot be changed once it is set"))]
    pub id: Option<String>,

    /// Kubernetes version, such as `v1.35.4`, from the versions that the host offers. If unset, the
    /// host's default version is used. The version can move up one minor version at a time, and up
    /// or down between patch versions of the same minor version. During upgrades, the API of each
    /// minor version must answer before the next minor version is rolled out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^v?[0-9]{1,2}\.[0-9]{1,3}\.[0-9]{1,3}$"))]
    #[x_kube(validation = Rule::new(
        "self.replace('v', '').split('.')[0] == oldSelf.replace('v', '').split('.')[0] && int(self.replace('v', '').split('.')[1]) - int(oldSelf.replace('v', '').split('.')[1]) in [0, 1]"
    ).message("version may move up at most one minor version at a time, and never down to an older minor version"))]
    pub version: Option<String>,

    /// Control-plane class, from the classes that the host offers and the Tenant's `allowedClasses`
    /// permits. A class sets placement, resources and the number of replicas of the store. If
    /// unset, the host's default class is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub class: Option<String>,

    /// Desired run state. `Running` (the default) runs a control plane; the fields under `sleep`
    /// and the annotation `yoke.drzzl.io/sleep` can still put it to sleep. `Asleep` stops the
    /// control plane until you set `Running` again, and keeps all state; connections do not wake
    /// it.
    #[serde(default)]
    pub state: DesiredState,

    /// When a Cluster with `state: Running` goes to sleep, and which connections wake it.
    #[serde(default)]
    pub sleep: SleepSpec,

    /// Time to live, counted from the creation of the Cluster, in minutes or hours: `1m` to
    /// `9999h`, such as `90m` or `8h`. When it has passed, the operator deletes the Cluster, with
    /// the same effect as `kubectl delete`. It can be changed or removed while the Cluster exists.
    /// If unset, the Cluster does not expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[1-9][0-9]{0,3}[mh]$"))]
    pub ttl: Option<String>,

    /// Pauses reconciliation. While true, the operator does not apply changes, does not repair the
    /// control plane, and does not delete the Cluster when its `ttl` has passed. Three things still
    /// work: renewed certificates reach a running control plane, hostnames that the Tenant may no
    /// longer use are withdrawn, and the Cluster can be deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,

    /// Hostnames of the API, and the addresses that may connect to it.
    #[serde(default)]
    pub endpoint: EndpointSpec,

    /// Service and Pod address ranges and DNS domain of the cluster. Immutable after creation.
    #[serde(default)]
    pub network: NetworkSpec,

    /// Whether the control plane reaches workers through konnectivity agents. The agents connect to
    /// the control plane from the workers, so workers can be behind NAT. The control plane has no
    /// other path to kubelets (`kubectl logs`, `exec`, `port-forward`) or to Pods that serve
    /// webhooks and aggregated APIs.
    ///
    /// - `Automatic` (the default): the agents are enabled with the first JoinToken or Node, and
    ///   stay enabled. That restarts the control plane once.
    /// - `Enabled`: a DaemonSet in `kube-system` runs an agent on each worker.
    /// - `Disabled`: there are no agents.
    #[serde(default)]
    pub konnectivity: Konnectivity,

    /// Add-ons of the cluster. The operator maintains the objects of each enabled add-on in
    /// `kube-system` of the cluster, and removes only those objects when the add-on is disabled. It
    /// does not touch an object of the same name that it did not create; the condition
    /// `AddonsReady` reports the conflict. `podNetwork` is set up by the workers and has no
    /// objects.
    #[serde(default)]
    pub addons: AddonsSpec,

    /// How the cluster's workers are upgraded.
    #[serde(default)]
    pub workers: WorkersSpec,

    /// Storage of the cluster's API objects.
    #[serde(default)]
    pub storage: StorageSpec,

    /// Lifetimes of the cluster's certificates and CAs.
    #[serde(default)]
    pub pki: PkiSpec,

    /// Additional command-line arguments of the control-plane components. Only arguments on the
    /// host's allow-list are accepted.
    #[serde(default)]
    pub extra_args: ExtraArgsSpec,

    /// Handling of the stored data when the Cluster is deleted.
    ///
    /// - `Delete` (the default): the streams are deleted, as the last step.
    /// - `Retain`: the streams remain and count toward the Tenant's storage quota. A new Cluster
    ///   with the same name and the same `spec.id` gets the data back. Deleting that Cluster with
    ///   `Delete`, or deleting the Tenant, deletes the data.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

impl ClusterSpec {
    /// Lifetime of the Cluster, counted from its creation. `None`: it does not expire.
    pub fn lifetime(&self) -> Option<Duration> {
        parse_time(self.ttl.as_deref()?)
    }
}

/// Desired run state of a Cluster.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DesiredState {
    /// A control plane runs. The annotation `yoke.drzzl.io/sleep=now` and `spec.sleep` can put it
    /// to sleep until a client connects.
    #[default]
    Running,
    /// No control plane runs and no connection wakes it. All state persists.
    Asleep,
}

/// Whether the control plane reaches workers through konnectivity agents.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Konnectivity {
    /// Agents are enabled with the first JoinToken or Node, and stay enabled. That restarts the
    /// control plane once.
    #[default]
    Automatic,
    /// No agents.
    Disabled,
    /// The control plane has a konnectivity-server, and a DaemonSet in `kube-system` runs an agent
    /// on each worker.
    Enabled,
}

impl Konnectivity {
    /// Whether agents are enabled explicitly. For `Automatic`, the operator decides.
    pub fn is_enabled(self) -> bool {
        self == Self::Enabled
    }
}

/// Handling of the stored data when the Cluster is deleted.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeletionPolicy {
    /// The streams are deleted, as the last step.
    #[default]
    Delete,
    /// The streams remain and count toward the Tenant's storage quota. A new Cluster with the same
    /// name and `spec.id` uses them again. They are deleted with that Cluster or with the Tenant.
    Retain,
}

/// Hostnames of the API, and the addresses that may connect to it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSpec {
    /// Additional hostnames of the API, at most 16, such as `api.example.org`. They are added to
    /// the serving certificate and to the ingress. Each must be under one of the Tenant's
    /// `allowedDomains`.
    #[serde(default, rename = "extraSANs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "set"), inner(length(max = 253), regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]([-a-z0-9]*[a-z0-9])?$")))]
    pub extra_sans: Vec<String>,

    /// Address ranges from which clients may reach the API, at most 64, such as `192.0.2.0/24`. If
    /// empty, all addresses may. Include the addresses of the cluster's own workers and Pods, as
    /// the ingress sees them. A change applies to new connections and to new requests from Pods;
    /// open connections continue. While the spec is refused (condition `Accepted` is `False`),
    /// removed ranges take effect and added ranges do not.
    #[serde(default, rename = "allowedCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "set"), inner(length(max = 43), regex(pattern = r"^[0-9a-fA-F:.]+/[0-9]{1,3}$")))]
    #[x_kube(validation = Rule::new("self.all(range, isCIDR(range) && cidr(range).masked() == cidr(range))")
        .message("each entry of allowedCIDRs must be an address range such as 192.0.2.0/24, with no bits set after the prefix"))]
    pub allowed_cidrs: Vec<String>,
}

/// Service and Pod address ranges and DNS domain of the cluster.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkSpec {
    /// Address range of Services, in CIDR notation. Must be one of the ranges that the host offers.
    /// Default: `10.96.0.0/16`.
    #[serde(default = "default_service_cidr", rename = "serviceCIDR")]
    #[schemars(length(max = 43))]
    pub service_cidr: String,
    /// Address range of Pods, in CIDR notation. Default: `10.244.0.0/16`.
    #[serde(default = "default_pod_cidr", rename = "podCIDR")]
    #[schemars(length(max = 43))]
    pub pod_cidr: String,
    /// DNS domain of the cluster. Must be one of the domains that the host offers. Default:
    /// `cluster.local`.
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

/// Storage of the cluster's API objects.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageSpec {
    /// Maximum size of all objects and their history, in bytes, such as `256Mi` (the default).
    /// Above it, writes fail as in etcd (`NOSPACE`).
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

/// Lifetimes of the cluster's certificates and CAs, in hours, such as `8760h`.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PkiSpec {
    /// Lifetime of each generation of the cluster's CAs, in hours: longer than `caOverlap`, and at
    /// most `87600h` (ten years). Default: `8760h`.
    #[serde(default = "default_ca_duration")]
    #[schemars(length(max = 16), regex(pattern = r"^[0-9]+h$"))]
    pub ca_duration: String,
    /// How long a CA generation and its successor are both trusted, in hours: at least `1h`. No
    /// certificate lives longer than this. Default: `2880h`.
    #[serde(default = "default_ca_overlap")]
    #[schemars(length(max = 16), regex(pattern = r"^[0-9]+h$"))]
    pub ca_overlap: String,
    /// Lifetime of certificates, in hours: at least `1h`, and limited by `caOverlap`. Client
    /// certificates in kubeconfigs and of kubelets live 90 days instead, also limited by
    /// `caOverlap`. Default: `720h`.
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

/// Additional command-line arguments of the control-plane components.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraArgsSpec {
    /// Arguments of kube-apiserver, at most 32.
    #[serde(default, rename = "apiServer", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub api_server: Vec<ExtraArg>,
    /// Arguments of kube-controller-manager, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub controller_manager: Vec<ExtraArg>,
    /// Arguments of kube-scheduler, at most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub scheduler: Vec<ExtraArg>,
}

/// One argument, passed as `--name=value`. A name can appear more than once.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtraArg {
    /// Name of the argument without leading dashes, such as `oidc-issuer-url`.
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z][-a-z0-9]*$"))]
    pub name: String,
    /// Value of the argument, at most 1024 characters.
    #[schemars(length(max = 1024))]
    pub value: String,
}

impl Cluster {
    /// Identity of the Cluster, if it is set and valid.
    pub fn id(&self) -> Option<ClusterId> {
        self.spec.id.as_deref().and_then(|id| id.parse().ok())
    }
}
