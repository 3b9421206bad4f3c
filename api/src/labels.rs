//! Every label, annotation, finalizer and field-manager name that Yoke writes. No other place spells one.

/// Identity of a Cluster ([`crate::ClusterId`]), on everything that belongs to it.
pub const ID: &str = "yoke.drzzl.io/id";
/// Name of the Cluster object, on everything that belongs to it.
pub const CLUSTER: &str = "yoke.drzzl.io/cluster";
/// Name of the Tenant, on everything that belongs to it.
pub const TENANT: &str = "yoke.drzzl.io/tenant";
/// Which part of a hosted namespace an object is; the value is one of [`component`].
pub const COMPONENT: &str = "yoke.drzzl.io/component";
/// Which add-on an object in a tenant's cluster is part of. The operator touches no object there that lacks it.
pub const ADDON: &str = "yoke.drzzl.io/addon";
/// Label on the Lease of a Node in a tenant's cluster: the Node is removed when the Lease was not renewed for this time.
pub const REAP_AFTER: &str = "yoke.drzzl.io/reap-after";
/// Label on a Node that is about to be removed: when the last step was taken, in seconds since 1970.
pub const REAPING: &str = "yoke.drzzl.io/reaping";
/// Annotation on a Node in a tenant's cluster: the taints that its JoinToken gave it, which its kubelet may shed.
pub const JOINED_TAINTS: &str = "yoke.drzzl.io/joined-taints";
/// Annotation on a Node in a tenant's cluster, by the operator: the version that its worker is to bring its kubelet to.
pub const KUBELET_VERSION: &str = "yoke.drzzl.io/kubelet-version";
/// Annotation beside [`KUBELET_VERSION`]: how long budgets may keep Pods there meanwhile.
pub const DRAIN_TIMEOUT: &str = "yoke.drzzl.io/drain-timeout";
/// Annotation on a Node, by its worker: how far it is with that ([`crate::workers::KubeletUpgrade`]).
pub const KUBELET_UPGRADE: &str = "yoke.drzzl.io/kubelet-upgrade";
/// The well-known label that names the writer of an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] on everything that the operator writes.
pub const MANAGED_BY_OPERATOR: &str = "yoke-operator";

/// Annotation: the number of this start of a control plane; a higher one fences a lower one in the store.
pub const INCARNATION: &str = "yoke.drzzl.io/incarnation";
/// Annotation: UID of a control plane's pod that was lost with its machine, on what came in its place.
pub const LOST_POD: &str = "yoke.drzzl.io/lost-pod";
/// Annotation: digest of the configuration that a pod must be restarted for.
pub const CONFIG_DIGEST: &str = "yoke.drzzl.io/config-digest";
/// Annotation: digest of what the operator last applied of an object.
pub const APPLIED_DIGEST: &str = "yoke.drzzl.io/applied-digest";
/// Annotation: version of Kubernetes that a control plane's pod runs.
pub const VERSION: &str = "yoke.drzzl.io/version";
/// Annotation on a hosted namespace or tenant namespace: UID of the object that owns it.
pub const OWNER_UID: &str = "yoke.drzzl.io/owner-uid";
/// Annotation on a hosted namespace: `namespace/name` of the Cluster that owns it.
pub const OWNER: &str = "yoke.drzzl.io/owner";

/// Annotation on a Node, by its worker: the public key of its end of the network of Pods, in base64.
pub const WIREGUARD_PUBLIC_KEY: &str = "yoke.drzzl.io/wireguard-public-key";
/// Annotation on a Node, by its worker: address and port where others reach that end.
pub const WIREGUARD_ENDPOINT: &str = "yoke.drzzl.io/wireguard-endpoint";

/// Annotation on a hosted namespace: what becomes of the stored data if the Cluster goes without the operator.
pub const DELETION_POLICY: &str = "yoke.drzzl.io/deletion-policy";
/// The value of [`DELETION_POLICY`] by which the data goes too.
pub const DELETION_POLICY_DELETE: &str = "Delete";
/// The value of [`DELETION_POLICY`] by which the data stays; so it does by any other than [`DELETION_POLICY_DELETE`].
pub const DELETION_POLICY_RETAIN: &str = "Retain";

/// Annotation on a Cluster: sends it to sleep, or ends such a sleep. The operator notes it in the status and removes it.
pub const SLEEP: &str = "yoke.drzzl.io/sleep";
/// The value of [`SLEEP`] by which it goes to sleep until somebody needs it.
pub const SLEEP_NOW: &str = "now";
/// The value of [`SLEEP`] by which it wakes.
pub const SLEEP_END: &str = "end";

/// Finalizer on Clusters: the operator removes what lies outside the Cluster's namespace first.
pub const FINALIZER: &str = "yoke.drzzl.io/operator";

/// Values of the label [`COMPONENT`].
pub mod component {
    /// The control-plane StatefulSet, its pod and Service.
    pub const CONTROL_PLANE: &str = "control-plane";
    /// The ConfigMap that tells the ingress how to route and verify.
    pub const INGRESS: &str = "ingress";
    /// Certificates, Issuers and the Secrets made from them.
    pub const PKI: &str = "pki";
    /// What is asked of cert-manager for kubelets.
    pub const KUBELET: &str = "kubelet";
    /// What is asked of cert-manager for users of a tenant's cluster.
    pub const USER: &str = "user";
    /// What a worker needs to join.
    pub const JOIN: &str = "join";
    /// Credentials of the store.
    pub const STORE: &str = "store";
}
