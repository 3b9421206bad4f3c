//! Conditions of Clusters, Tenants and JoinTokens: the contract that people and tools wait on.
//!
//! A condition's `type` is a [`ConditionType`], its `reason` a [`Reason`], and its `message` a
//! sentence for the tenant. The operator computes conditions from observed state and never reads
//! them back from the phase.

use std::fmt;

/// Types of conditions. See
/// <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    /// The spec is valid and can be reconciled.
    Accepted,
    /// The cluster's API answers through the public endpoint.
    Ready,
    /// A change is in progress.
    Progressing,
    /// Something needs attention, though the cluster may still answer.
    Degraded,
    /// The NATS account, user and streams of the cluster exist.
    StoreReady,
    /// All certificates that the control plane needs are issued and copied.
    CertificatesReady,
    /// The tenant's API server answers `/readyz` inside the host.
    APIServerAvailable,
    /// The ingress has the cluster's configuration, and the kubeconfig is in the tenant's
    /// namespace.
    EndpointPublished,
    /// No control plane runs, as requested.
    Asleep,
    /// Nothing prevents the cluster from going to sleep by itself. `spec.state: Asleep` and the
    /// annotation `yoke.drzzl.io/sleep=now` ignore this condition.
    SleepPossible,
    /// The cluster has the objects of all enabled add-ons, and none of disabled ones. Whether the
    /// add-ons' Pods run depends on the workers and is not covered.
    AddonsReady,
    /// The kubelets of all workers have the cluster's version. Absent until the cluster has a Node.
    WorkersUpdated,
}

impl ConditionType {
    /// Text of the condition's `type` field.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Ready => "Ready",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::StoreReady => "StoreReady",
            Self::CertificatesReady => "CertificatesReady",
            Self::APIServerAvailable => "APIServerAvailable",
            Self::EndpointPublished => "EndpointPublished",
            Self::Asleep => "Asleep",
            Self::SleepPossible => "SleepPossible",
            Self::AddonsReady => "AddonsReady",
            Self::WorkersUpdated => "WorkersUpdated",
        }
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a condition has its status. Events use it as their reason, and metrics as a label
        /// value.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All reasons, so that the label values of a metric are a closed set.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Text of the condition's `reason` field.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// The observed state is as requested.
    AsExpected,
    /// The spec is valid.
    Valid,
    /// `spec.version` is not a version that the host offers.
    UnknownVersion,
    /// Kubernetes does not support this change of `spec.version`.
    VersionChangeRefused,
    /// The host does not offer `spec.class`, or the Tenant may not use it.
    UnknownClass,
    /// The Cluster's namespace does not belong to a Tenant.
    TenantMissing,
    /// The Tenant's quota is used up.
    QuotaExceeded,
    /// Another Cluster already uses a hostname.
    HostnameConflict,
    /// The Tenant may not use a hostname.
    HostnameNotAllowed,
    /// The host does not offer the network range or the cluster domain.
    NetworkNotOffered,
    /// An entry of `spec.endpoint.allowedCIDRs` is not an address range.
    SourceRangeInvalid,
    /// An extra argument is not on the allow-list.
    ArgumentNotAllowed,
    /// The certificate lifetimes do not fit together.
    LifetimeInvalid,
    /// Another Cluster has the same identity.
    IdentityConflict,
    /// The name is too long or is not a DNS label.
    NameInvalid,
    /// The Tenant's name is reserved by Yoke or Kubernetes.
    NameReserved,
    /// A namespace with the Tenant's name exists and does not belong to the Tenant.
    NamespaceConflict,
    /// Another Tenant has precedence: both claim the same subject, key or domain.
    SubjectConflict,
    /// `spec.paused` has paused reconciliation.
    Paused,
    /// The first control plane is being created.
    Provisioning,
    /// A change other than a version change is in progress.
    Updating,
    /// The object is being deleted.
    Deleting,
    /// A Cluster was deleted without the operator, and its remains are being removed.
    Orphaned,
    /// The Tenant still has Clusters.
    ClustersRemain,
    /// A JoinToken has expired, or the `spec.ttl` of a Cluster has passed.
    Expired,
    /// The maximum number of workers has joined with the JoinToken.
    UsedUp,
    /// The namespace has no Cluster of that name.
    ClusterMissing,
    /// The Tenant's Role does not grant access to the Secret yet.
    ClusterReplaced,
    /// The Cluster's API does not answer, or the Cluster is asleep.
    ClusterNotReady,
    /// The Tenant's Role does not name the Secret yet.
    RolePending,
    /// A Secret with the required name exists and does not belong to the operator.
    SecretConflict,
    /// Other Clusters are created or started first.
    Queued,
    /// Waiting for certificates to be issued.
    CertificatesPending,
    /// Waiting for the control plane's Pod.
    PodPending,
    /// The Pod runs, but its API server does not answer yet.
    APIServerNotReady,
    /// A container of the control plane keeps exiting.
    ContainerFailing,
    /// The API server answers.
    APIServerReady,
    /// The API server answers, but not through the ingress yet.
    IngressPending,
    /// The API server answers, but the cluster's controllers are not working yet.
    ControllersPending,
    /// The cluster's API does not accept the objects of the add-ons yet.
    AddonsPending,
    /// An object with the name of an add-on's object was created by another client.
    AddonConflict,
    /// The next workers to upgrade wait for workers that are not ready.
    WorkersPending,
    /// A worker failed to reach the Cluster's version. No other upgrade is started.
    WorkerUpgradeFailed,
    /// The operator cannot upgrade the remaining Nodes, because no `yoke-worker` manages them.
    WorkersUnmanaged,
    /// NATS does not answer the operator.
    StoreUnavailable,
    /// NATS has no log for a Cluster whose control plane was started before, possibly before the
    /// Cluster was deleted or restored. The operator does not create an empty log in its place.
    StoreLost,
    /// A key of the cluster is lost and has no copy. The handling depends on the key:
    ///
    /// - A service-account key must be restored; the operator does not generate a new one.
    /// - A certificate of a lost CA must be issued again.
    /// - A lost NATS user of the store is replaced, and an event reports it.
    KeyLost,
    /// The Tenant's namespace does not exist yet.
    NamespacePending,
    /// NATS has no room for the streams.
    StoreQuotaExceeded,
    /// `spec.state` is `Asleep`.
    AsleepByOwner,
    /// `spec.state` is `Running`, and the annotation `yoke.drzzl.io/sleep=now` put the Cluster to
    /// sleep.
    AsleepOnRequest,
    /// `spec.state` is `Running`, and the Cluster was idle for `spec.sleep.afterInactivity`.
    AsleepOnInactivity,
    /// `spec.state` is `Running`, and `spec.sleep.schedules` put the Cluster to sleep.
    AsleepOnSchedule,
    /// A time in `spec.sleep.schedules` never occurs, or its time zone does not exist.
    ScheduleInvalid,
    /// `spec.state` is `Running`.
    Awake,
    /// A client connected to a sleeping Cluster.
    WokenOnConnect,
    /// The operator woke the Cluster because its workers' certificates would expire soon.
    WokenForWorkers,
    /// The Cluster is waking, and its API does not answer after the usual time.
    WakeDelayed,
    /// The host Node that ran the control plane was lost. The control plane is starting on another
    /// Node.
    MachineLost,
    /// The control plane's Pod or its host Node is about to be removed. Another Pod will take over.
    MachineLeaving,
    /// The control plane's host Node is about to be removed, and no other Pod took over in time.
    TakeoverFailed,
    /// A Node of the cluster is connected, and `spec.sleep.withWorkers` is `Prevent`.
    WorkersConnected,
    /// A webhook that workers serve, and that fails closed, would prevent workers from reconnecting
    /// after a wake.
    WebhookBlocksWake,
    /// A JoinToken is valid, so a worker may join. A sleeping cluster cannot verify its token.
    JoinTokenHolds,
    /// Reconciliation failed unexpectedly. The message has the error, and the operator retries.
    ReconcileFailed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
