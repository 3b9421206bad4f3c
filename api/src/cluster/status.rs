//! Observed state of a Cluster: `Cluster.status`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sleep::ActivityStatus;
use crate::usage::UsageStatus;
use crate::workers::WorkersStatus;

/// Observed state of a Cluster.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// `metadata.generation` of the spec that this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary of the conditions, for display. Tools should wait for conditions instead.
    ///
    /// - `Refused`: the spec is not accepted; see the condition `Accepted`.
    /// - `Provisioning`: the control plane is being created or is starting.
    /// - `Running`: the API answers.
    /// - `Updating`: the API answers and a change is in progress.
    /// - `Unavailable`: the API should answer but does not.
    /// - `Asleep`: no control plane runs, as requested.
    /// - `Deleting`: the Cluster is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Kubernetes version of the running control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Versions that ran, newest first, at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub history: Vec<VersionHistory>,
    /// Addresses and names under which clients reach the API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointStatus>,
    /// Secret in this namespace that holds the kubeconfig, under the key `value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig_ref: Option<SecretRef>,
    /// NATS account and streams that hold the cluster's data, and their size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageStatus>,
    /// Current generation of the cluster's CAs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pki: Option<PkiStatus>,
    /// Last requests to put the Cluster to sleep or to wake it, and the time of its last use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activity: Option<ActivityStatus>,
    /// How long the control plane has run, and the price per hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageStatus>,
    /// Number of Nodes in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<i32>,
    /// Versions of the workers' kubelets, and progress of their upgrade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    /// Conditions: `Accepted`, `Ready`, `Progressing`, `Degraded`, `StoreReady`,
    /// `CertificatesReady`, `APIServerAvailable`, `EndpointPublished`, `Asleep`, `SleepPossible`,
    /// `AddonsReady` and `WorkersUpdated`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Summary of the conditions, for display.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The spec is not accepted; the condition `Accepted` has the reason.
    Refused,
    /// The control plane is being created for the first time, or is starting.
    Provisioning,
    /// The API answers.
    Running,
    /// The API answers and a change is in progress.
    Updating,
    /// The API should answer but does not.
    Unavailable,
    /// No control plane runs, as requested.
    Asleep,
    /// The Cluster is being deleted.
    Deleting,
}

/// One version that ran.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionHistory {
    /// Kubernetes version, such as `v1.35.4`.
    pub version: String,
    /// Time at which the rollout of this version started.
    pub started: Time,
    /// Time at which the API of this version first answered. Absent until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<Time>,
}

/// Addresses and names under which clients reach the API.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStatus {
    /// URL of the API: `https://<public name>[:port]`.
    pub url: String,
    /// Public name of the cluster: the ingress routes connections by this TLS server name (SNI).
    pub server_name: String,
    /// Address of the ingress, `https://<address>:<port>`. The kubeconfig connects to it.
    pub address: String,
    /// Audience (`aud`) of service-account tokens that only this cluster accepts.
    pub audience: String,
    /// Issuer (`iss`) of the cluster's service-account tokens.
    pub issuer: String,
}

/// Reference to a Secret in the same namespace.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret.
    pub name: String,
}

/// NATS account and streams that hold the cluster's data, and their size.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageStatus {
    /// Public key of the NATS account. The account belongs to this Cluster alone.
    pub account: String,
    /// Name of the JetStream stream with the write log.
    pub stream: String,
    /// Size of the log and the snapshots in JetStream, in bytes. Updated when the size differs by
    /// more than 1 MiB and more than 10 %.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<i64>,
}

/// Generations of the cluster's CAs.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PkiStatus {
    /// Generation that signs new certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<CaGeneration>,
}

/// One generation of the cluster's CAs.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CaGeneration {
    /// Number of the generation, starting at 1.
    pub generation: i32,
    /// Time at which the CAs of this generation expire.
    pub not_after: Time,
}
