//! All label, annotation, finalizer and field-manager names that Yoke writes. No other place spells
//! them out.

/// Label: identity of a Cluster ([`crate::ClusterId`]), on all objects that belong to it.
pub const ID: &str = "yoke.drzzl.io/id";
/// Label: name of the Cluster, on all objects that belong to it.
pub const CLUSTER: &str = "yoke.drzzl.io/cluster";
/// Label: name of the Tenant, on all objects that belong to it.
pub const TENANT: &str = "yoke.drzzl.io/tenant";
/// Label: part of the control-plane namespace that an object belongs to. The values are in
/// [`component`].
pub const COMPONENT: &str = "yoke.drzzl.io/component";
/// Label: add-on that an object in a tenant's cluster is part of. The operator changes no such
/// object without it.
pub const ADDON: &str = "yoke.drzzl.io/addon";
/// Label on the Lease of a Node in a tenant's cluster: the Node is removed if the Lease was not
/// renewed for this time.
pub const REAP_AFTER: &str = "yoke.drzzl.io/reap-after";
/// Label on a Node that is about to be removed: time of the last step of the removal, in seconds
/// since 1970.
pub const REAPING: &str = "yoke.drzzl.io/reaping";
/// Annotation on a Node in a tenant's cluster: the taints from its JoinToken, which its kubelet may
/// remove.
pub const JOINED_TAINTS: &str = "yoke.drzzl.io/joined-taints";
/// Annotation on a Node in a tenant's cluster, written by the operator: the kubelet version that
/// the worker must install.
pub const KUBELET_VERSION: &str = "yoke.drzzl.io/kubelet-version";
/// Annotation beside [`KUBELET_VERSION`]: how long the drain respects PodDisruptionBudgets.
pub const DRAIN_TIMEOUT: &str = "yoke.drzzl.io/drain-timeout";
/// Annotation on a Node, written by its worker: progress of the kubelet upgrade
/// ([`crate::workers::KubeletUpgrade`]).
pub const KUBELET_UPGRADE: &str = "yoke.drzzl.io/kubelet-upgrade";
/// The well-known label that names the writer of an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on all objects that the operator writes.
pub const MANAGED_BY_OPERATOR: &str = "yoke-operator";

/// Annotation: number of this start of a control plane. The store fences off lower numbers.
pub const INCARNATION: &str = "yoke.drzzl.io/incarnation";
/// Annotation on the replacement of a lost control-plane Pod: UID of the Pod that was lost with its
/// host Node.
pub const LOST_POD: &str = "yoke.drzzl.io/lost-pod";
/// Annotation: digest of the configuration whose change requires a restart of the Pod.
pub const CONFIG_DIGEST: &str = "yoke.drzzl.io/config-digest";
/// Annotation: digest of the object as the operator last applied it.
pub const APPLIED_DIGEST: &str = "yoke.drzzl.io/applied-digest";
/// Annotation: Kubernetes version that a control-plane Pod runs.
pub const VERSION: &str = "yoke.drzzl.io/version";
/// Annotation on a control-plane namespace or tenant namespace: UID of the object that owns it.
pub const OWNER_UID: &str = "yoke.drzzl.io/owner-uid";
/// Annotation on a control-plane namespace: `namespace/name` of the Cluster that owns it.
pub const OWNER: &str = "yoke.drzzl.io/owner";

/// Annotation on a Node, written by its worker: public key of its WireGuard endpoint in the Pod
/// network, in base64.
pub const WIREGUARD_PUBLIC_KEY: &str = "yoke.drzzl.io/wireguard-public-key";
/// Annotation on a Node, written by its worker: address and port at which others reach its
/// WireGuard endpoint.
pub const WIREGUARD_ENDPOINT: &str = "yoke.drzzl.io/wireguard-endpoint";

/// Annotation on a control-plane namespace: what happens to the stored data if the Cluster is
/// deleted without the operator.
pub const DELETION_POLICY: &str = "yoke.drzzl.io/deletion-policy";
/// Value of [`DELETION_POLICY`] that deletes the data.
pub const DELETION_POLICY_DELETE: &str = "Delete";
/// Value of [`DELETION_POLICY`] that retains the data. Any value other than
/// [`DELETION_POLICY_DELETE`] does so.
pub const DELETION_POLICY_RETAIN: &str = "Retain";

/// Annotation on a Cluster: puts it to sleep, or ends such a sleep. The operator records it in the
/// status and removes it.
pub const SLEEP: &str = "yoke.drzzl.io/sleep";
/// Value of [`SLEEP`] that puts the Cluster to sleep until a client connects.
pub const SLEEP_NOW: &str = "now";
/// Value of [`SLEEP`] that wakes the Cluster.
pub const SLEEP_END: &str = "end";

/// Finalizer on Clusters: the operator first removes the objects outside the Cluster's namespace.
pub const FINALIZER: &str = "yoke.drzzl.io/operator";

/// Values of the label [`COMPONENT`].
pub mod component {
    /// The control-plane StatefulSet, its Pod and its Service.
    pub const CONTROL_PLANE: &str = "control-plane";
    /// The ConfigMap with the cluster's routes and verification data for the ingress.
    pub const INGRESS: &str = "ingress";
    /// Certificates, Issuers and the Secrets made from them.
    pub const PKI: &str = "pki";
    /// Requests to cert-manager for kubelet certificates.
    pub const KUBELET: &str = "kubelet";
    /// Requests to cert-manager for certificates of users of a tenant's cluster.
    pub const USER: &str = "user";
    /// Data that a worker needs to join.
    pub const JOIN: &str = "join";
    /// Credentials of the store.
    pub const STORE: &str = "store";
}
