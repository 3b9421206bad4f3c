//! Conditions of Clusters and Tenants: the contract that people and tools wait on.
//!
//! A condition's `type` is one of [`ConditionType`], its `reason` one of [`Reason`], its `message` a sentence for the
//! tenant. State is computed from what is observed, never read back from the phase.

use std::fmt;

/// The types of conditions, see <https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md>.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConditionType {
    /// The spec is one that can be carried out.
    Accepted,
    /// The cluster's API answers through the public endpoint.
    Ready,
    /// A change is being carried out.
    Progressing,
    /// Something needs attention though the cluster may still answer.
    Degraded,
    /// The NATS account, user and streams of the cluster exist.
    StoreReady,
    /// Every certificate that the control plane needs is issued and copied.
    CertificatesReady,
    /// The tenant's API server answers `/readyz` inside the host.
    APIServerAvailable,
    /// The ingress has been told of the cluster and the kubeconfig is in the tenant's namespace.
    EndpointPublished,
    /// No control plane runs, as asked for.
    Asleep,
    /// Nothing stands against that the cluster goes to sleep by itself. Its owner's word, and the annotation
    /// `yoke.drzzl.io/sleep=now`, do not ask.
    SleepPossible,
    /// The cluster's API has the objects of its add-ons as asked for, and of those that were turned off none. Whether their Pods
    /// run is up to its workers.
    AddonsReady,
    /// The kubelets of the cluster's workers are of its version. There is none of this type before there are Nodes.
    WorkersUpdated,
}

impl ConditionType {
    /// The text of the condition's `type` field.
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
        /// Why a condition has its state; also the reason of an event and the label of a metric.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, so that a metric's label values are a closed set.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The text of the condition's `reason` field.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

reasons! {
    /// All is as asked for.
    AsExpected,
    /// The spec was checked and can be carried out.
    Valid,
    /// `spec.version` is not in the host's catalogue.
    UnknownVersion,
    /// The change of `spec.version` is not one that Kubernetes supports.
    VersionChangeRefused,
    /// `spec.class` is not one that the host offers or the Tenant may use.
    UnknownClass,
    /// The Cluster's namespace is not that of a Tenant.
    TenantMissing,
    /// The Tenant's quota is used up.
    QuotaExceeded,
    /// A host name is claimed by another Cluster.
    HostnameConflict,
    /// A host name is not one that this Tenant may claim.
    HostnameNotAllowed,
    /// The network range or cluster domain is not one that the host offers.
    NetworkNotOffered,
    /// A range of `spec.endpoint.allowedCIDRs` is none.
    SourceRangeInvalid,
    /// An extra argument is not on the allow-list.
    ArgumentNotAllowed,
    /// The certificate lifetimes do not fit each other.
    LifetimeInvalid,
    /// The identity is held by another Cluster.
    IdentityConflict,
    /// The name is too long or not a DNS label.
    NameInvalid,
    /// The Tenant's name is one that Yoke or Kubernetes keeps for itself.
    NameReserved,
    /// A namespace of the Tenant's name exists and is not the Tenant's.
    NamespaceConflict,
    /// Another Tenant comes first: its subject, key or domain is claimed twice.
    SubjectConflict,
    /// Reconciliation is paused by `spec.paused`.
    Paused,
    /// The first control plane is being made.
    Provisioning,
    /// A change other than of the version is being carried out.
    Updating,
    /// The object is being deleted.
    Deleting,
    /// What belonged to a Cluster that went without the operator is being removed.
    Orphaned,
    /// Clusters of the Tenant still exist.
    ClustersRemain,
    /// The time of a JoinToken, or of a Cluster (`spec.ttl`), is over.
    Expired,
    /// As many workers have joined by a JoinToken as may.
    UsedUp,
    /// There is no Cluster of that name in the namespace.
    ClusterMissing,
    /// The Cluster that a JoinToken was for is gone, and another has its name.
    ClusterReplaced,
    /// The Cluster's API does not answer, or it sleeps.
    ClusterNotReady,
    /// The Tenant's Role does not name the Secret yet.
    RolePending,
    /// There is a Secret of the name that is needed, and it is not the operator's.
    SecretConflict,
    /// Other Clusters are made, or started, first.
    Queued,
    /// Waiting for certificates to be issued.
    CertificatesPending,
    /// Waiting for the control plane's pod.
    PodPending,
    /// The pod runs and its API server does not answer yet.
    APIServerNotReady,
    /// A container of the control plane ends again and again.
    ContainerFailing,
    /// The API server answers.
    APIServerReady,
    /// The API server answers, and not through the ingress yet.
    IngressPending,
    /// The API server answers, and the cluster's controllers are not at work yet.
    ControllersPending,
    /// The cluster's API does not take the objects of its add-ons yet.
    AddonsPending,
    /// An object of an add-on's name is somebody else's.
    AddonConflict,
    /// Workers that would be upgraded next wait for others that are not ready.
    WorkersPending,
    /// A worker did not come to the Cluster's version, and no other is begun with.
    WorkerUpgradeFailed,
    /// The Nodes that are left are none that the operator can bring to the Cluster's version.
    WorkersUnmanaged,
    /// NATS does not answer the operator.
    StoreUnavailable,
    /// NATS has no log of a Cluster whose control plane was started, be it before the Cluster was deleted or restored. No
    /// empty one is made in its place.
    StoreLost,
    /// A key of the cluster is lost, and there is no copy of it. A service-account key must be restored, and nothing is drawn
    /// in its place; a leaf of a CA that is lost must be issued again; a lost user of the store is replaced, which an event
    /// tells.
    KeyLost,
    /// The Tenant's namespace is not there yet.
    NamespacePending,
    /// NATS has no room for the streams.
    StoreQuotaExceeded,
    /// `spec.state` is `Asleep`.
    AsleepByOwner,
    /// `spec.state` is `Running`, and the annotation `yoke.drzzl.io/sleep=now` has sent it to sleep.
    AsleepOnRequest,
    /// `spec.state` is `Running`, and nobody has used it for as long as `spec.sleep.afterInactivity` says.
    AsleepOnInactivity,
    /// `spec.state` is `Running`, and it is time to sleep by `spec.sleep.schedules`.
    AsleepOnSchedule,
    /// A time of `spec.sleep.schedules` never comes, or its time zone is none.
    ScheduleInvalid,
    /// `spec.state` is `Running`.
    Awake,
    /// Somebody has connected to a Cluster that slept on request.
    WokenOnConnect,
    /// It is woken for its workers, whose certificates would be over before long.
    WokenForWorkers,
    /// It is being woken, and its API does not answer after the time that a wake takes.
    WakeDelayed,
    /// The host's machine that ran the control plane was lost; it is being started on another one.
    MachineLost,
    /// The pod that runs the control plane, or its machine of the host, is about to go; another one is to take it over.
    MachineLeaving,
    /// The host's machine that runs the control plane is about to go, and no other one has come to take it over in time.
    TakeoverFailed,
    /// A Node of the cluster is connected, and `spec.sleep.withWorkers` is `Prevent`.
    WorkersConnected,
    /// A webhook that workers serve and that fails closed would keep them from coming back to a cluster that wakes.
    WebhookBlocksWake,
    /// A worker may join by a JoinToken, which a cluster that sleeps cannot check.
    JoinTokenHolds,
    /// An unexpected failure; the message carries it and the operator tries again.
    ReconcileFailed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
