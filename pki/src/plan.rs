//! All Issuers and Certificates of one cluster, in [`PKI_NAMESPACE`], from facts about it.
//!
//! ```text
//!  yoke-root (R) ──▶ <id>-ca-g<N> (I) ──┬──▶ apiserver, apiserver-kubelet-client,
//!                                       │    kube-controller-manager, kube-scheduler,
//!                                       │    konnectivity-server if there is one,
//!                                       │    sleeper if there are extra names          → hosted namespace
//!                                       ├──▶ operator                                  → operator only
//!                                       └──▶ admin                                     → tenant's kubeconfig
//!  yoke-selfsigned ─┬▶ <id>-front-proxy-ca-g<N> (FP) ──▶ front-proxy-client            → hosted namespace
//!                   └▶ <id>-kubelet-ca-g<N> (K)          signed for by the operator
//! ```
//!
//! K and FP are not under R: whoever trusts R must not accept a kubelet's or an aggregator's certificate. A generation never
//! changes its key; all leaves move to a new one when [`Generations::signing`] does.
//!
//! # Name constraints
//! I is limited to the cluster's own names and to no IP address at all. Go, OpenSSL and webpki agree on what is used here: a DNS
//! constraint without a leading dot permits the name and everything under it; a leaf without a name of a type is not touched
//! by constraints on that type, so client certificates without alternative names pass. OpenSSL also holds a common name that
//! looks like a DNS name against the constraints; every common name under I has a colon in it, so none does.
//!
//! They are fixed when a generation is issued: cert-manager does not issue again for a change in them. So I permits the
//! tenant's domains, not single extra names, and [`crate::ParsedCertificate::permits_dns`] tells whether an issued I is wide
//! enough for a name before the leaf is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use yoke_api::cluster::PkiSpec;
use yoke_api::labels;
use yoke_api::names::PKI_NAMESPACE;
use yoke_api::{ClusterId, PublicName};

use crate::cert_manager::{Certificate, Issuer};
use crate::request::Use;

mod build;
mod names;

/// The Issuer, Certificate and Secret of the root R, made by the chart.
pub const ROOT: &str = "yoke-root";
/// The Certificate and Secret that the ingress shows to workloads, made by the chart.
///
/// Its CA, P, is under R and permits nothing but the base domain, what a pod calls its own API, and the first address of each
/// range of Services. The key of P stays where it is; this leaf is all that the ingress may read.
pub const INGRESS_LEAF: &str = "yoke-ingress";
/// Name of the Certificate and Secret of what answers for clusters that sleep, under their public names; in a hosted namespace
/// of the copy of [`LeafRole::Sleeper`].
pub const SLEEPER_LEAF: &str = "yoke-sleeper";
/// The Issuer that lets a CA sign itself, made by the chart.
pub const SELF_SIGNED_ISSUER: &str = "yoke-selfsigned";
/// User of the operator in tenant clusters.
pub const OPERATOR_USER: &str = "yoke:operator";
/// User of the kubeconfig that a tenant is given.
pub const ADMIN_USER: &str = "yoke:admin";
/// Group of that user, which the operator binds to cluster-admin.
pub const ADMIN_GROUP: &str = "yoke:cluster-admins";
/// User as which a kube-apiserver calls kubelets.
pub const KUBELET_CLIENT_USER: &str = "yoke:apiserver";
/// Group of that user, which the operator binds to the kubelet API.
pub const KUBELET_CLIENT_GROUP: &str = "yoke:kubelet-api-admins";
/// Common name that a kube-apiserver presents to aggregated API servers.
pub const FRONT_PROXY_USER: &str = "front-proxy-client";
/// Lifetime of the certificate in a tenant's kubeconfig, if the overlap is not shorter.
pub const KUBECONFIG_LIFETIME: Duration = Duration::from_hours(90 * 24);
/// User of the konnectivity-server, which asks the API server whose an agent's token is.
pub const KONNECTIVITY_USER: &str = "yoke:konnectivity-server";
/// The shortest lifetime that cert-manager issues.
pub const SHORTEST_LIFETIME: Duration = Duration::from_hours(1);
/// Longest lifetime of a CA, ten years. Go's durations end at 292 years, and of one Certificate with a longer one cert-manager reads
/// no Certificates any more.
pub const LONGEST_LIFETIME: Duration = Duration::from_hours(87_600);

/// What the plan of one cluster depends on.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Identity.
    pub id: ClusterId,
    /// The Tenant's name.
    pub tenant: String,
    /// The Cluster's name.
    pub cluster: String,
    /// The name under the base domain.
    pub public_name: PublicName,
    /// Further names of the API server; each must lie under one of `allowed_domains`.
    pub extra_sans: Vec<String>,
    /// The Tenant's own domains.
    pub allowed_domains: Vec<String>,
    /// Whether there is a konnectivity-server, which shows the API server's certificate by a name of its own.
    pub konnectivity: bool,
    /// Lifetimes.
    pub lifetimes: Lifetimes,
    /// Generations of the cluster's CAs.
    pub generations: Generations,
}

/// Number of a generation of a cluster's CAs, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u32);

/// The generations that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations {
    signing: Generation,
    all: BTreeSet<Generation>,
}

/// Lifetimes of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of a CA generation.
    pub ca: Duration,
    /// How long two generations are both trusted. No leaf lives longer.
    pub overlap: Duration,
    /// Of leaves.
    pub leaf: Duration,
}

/// The facts do not make a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A duration is not a number of hours.
    #[error("lifetime {0:?} is not a number of hours such as 720h")]
    Duration(String),
    /// Lifetimes do not fit together, or are too long.
    #[error(
        "lifetimes do not fit: overlap and leaves need at least 1h, the overlap less than the CA's, and that at most 87600h"
    )]
    Lifetimes,
    /// A domain may not be the tenant's.
    #[error("domain {0:?} is not one that a tenant can have")]
    Domain(String),
    /// A name is not under any of the tenant's domains, or is no host name.
    #[error("name {0:?} is not a host name under one of the tenant's domains")]
    ExtraName(String),
    /// Generations are numbered from 1.
    #[error("generation 0 does not exist")]
    Generation,
}

/// A certificate authority of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthorityRole {
    /// I: signs serving and client certificates; under R.
    Cluster,
    /// K: signs the serving certificates of kubelets.
    KubeletServing,
    /// FP: signs the client certificate shown to aggregated API servers.
    FrontProxy,
}

/// A leaf certificate of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafRole {
    /// Serving certificate of the kube-apiserver.
    ApiServer,
    /// Client certificate of the kube-apiserver towards kubelets.
    ApiServerKubeletClient,
    /// Client certificate of the kube-apiserver towards aggregated API servers.
    FrontProxyClient,
    /// Client certificate of the kube-controller-manager.
    ControllerManager,
    /// Client certificate of the kube-scheduler.
    Scheduler,
    /// Client certificate of the konnectivity-server.
    Konnectivity,
    /// Serving certificate of the ingress by the cluster's extra names, while it sleeps.
    Sleeper,
    /// Client certificate of the operator.
    Operator,
    /// Client certificate in the tenant's kubeconfig.
    Admin,
}

/// Where a leaf's certificate and key are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// To the hosted namespace, for the control plane.
    Hosted,
    /// Nowhere: the operator reads it in [`PKI_NAMESPACE`].
    Operator,
    /// Into the kubeconfig in the tenant's namespace.
    TenantKubeconfig,
}

/// One CA of the plan. Its Certificate, Secret and Issuer share one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Which one.
    pub role: AuthorityRole,
    /// Its generation.
    pub generation: Generation,
    /// Name of the Certificate, Secret and Issuer in [`PKI_NAMESPACE`].
    pub name: String,
}

/// One leaf of the plan. Its Certificate and Secret share one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Which one.
    pub role: LeafRole,
    /// Name of the Certificate and Secret in [`PKI_NAMESPACE`].
    pub name: String,
    /// Where it goes.
    pub destination: Destination,
}

/// The plan of one cluster. Everything is in a fixed order: the same facts give the same bytes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Issuers, one for each CA.
    pub issuers: Vec<Issuer>,
    /// Certificates of the CAs, then of the leaves.
    pub certificates: Vec<Certificate>,
    /// What the CAs are for.
    pub authorities: Vec<Authority>,
    /// What the leaves are for.
    pub leaves: Vec<Leaf>,
}

impl Plan {
    /// Checks the facts and plans.
    pub fn new(facts: &ClusterFacts) -> Result<Self, PlanError> {
        facts.lifetimes.check()?;
        names::check(facts)?;
        Ok(build::build_plan(facts))
    }

    /// The CAs of `role`, oldest generation first: all are to be trusted.
    pub fn trusted(&self, role: AuthorityRole) -> impl Iterator<Item = &Authority> {
        self.authorities.iter().filter(move |authority| authority.role == role)
    }

    /// The leaves that go to `destination`.
    pub fn leaves_for(&self, destination: Destination) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().filter(move |leaf| leaf.destination == destination)
    }

    /// Names of all Secrets in [`PKI_NAMESPACE`], which outlive their Certificates and so are deleted by name.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let authorities = self.authorities.iter().map(|authority| authority.name.as_str());
        authorities.chain(self.leaves.iter().map(|leaf| leaf.name.as_str()))
    }
}

impl ClusterFacts {
    /// The labels of every object in the plan, and of the Secrets made from it.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            (labels::ID, self.id.as_str()),
            (labels::TENANT, &self.tenant),
            (labels::CLUSTER, &self.cluster),
            (labels::COMPONENT, labels::component::PKI),
            (labels::MANAGED_BY, labels::MANAGED_BY_OPERATOR),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
    }

    /// The name by which the ingress and the operator verify the API server.
    pub fn upstream_name(&self) -> String {
        self.id.hosted_namespace().upstream_name(&self.cluster)
    }
}

impl Generation {
    /// The first generation.
    pub const FIRST: Self = Self(1);

    /// The generation of this number.
    pub fn new(number: u32) -> Result<Self, PlanError> {
        if number == 0 {
            Err(PlanError::Generation)
        } else {
            Ok(Self(number))
        }
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl Generations {
    /// `signing` signs leaves; `others` exist and are trusted: the one that signed before, or the next one before it signs.
    pub fn new(signing: Generation, others: impl IntoIterator<Item = Generation>) -> Self {
        let mut all: BTreeSet<_> = others.into_iter().collect();
        all.insert(signing);
        Self { signing, all }
    }

    /// The first generation only.
    pub fn first() -> Self {
        Self::new(Generation::FIRST, [])
    }

    /// The generation that signs leaves.
    pub fn signing(&self) -> Generation {
        self.signing
    }

    /// All generations, oldest first.
    pub fn all(&self) -> impl Iterator<Item = Generation> {
        self.all.iter().copied()
    }
}

impl Lifetimes {
    /// The lifetimes that a Cluster asks for.
    pub fn from_spec(spec: &PkiSpec) -> Result<Self, PlanError> {
        let hours = |text: &str| {
            text.strip_suffix('h')
                .and_then(|number| number.parse::<u32>().ok())
                .map(|number| Duration::from_hours(number.into()))
                .ok_or_else(|| PlanError::Duration(text.to_owned()))
        };
        Ok(Self {
            ca: hours(&spec.ca_duration)?,
            overlap: hours(&spec.ca_overlap)?,
            leaf: hours(&spec.leaf_duration)?,
        })
    }

    /// How long a leaf of `role` lives.
    pub fn of(&self, role: LeafRole) -> Duration {
        let asked = match role {
            LeafRole::Admin => KUBECONFIG_LIFETIME,
            _ => self.leaf,
        };
        asked.min(self.overlap)
    }

    /// How long a kubelet's certificate lives: its client certificate as long as a kubeconfig's, its serving certificate as the
    /// leaves of the control plane.
    pub fn of_kubelet(&self, purpose: Use) -> Duration {
        match purpose {
            Use::Client => KUBECONFIG_LIFETIME.min(self.overlap),
            Use::Server => self.leaf.min(self.overlap),
        }
    }

    /// Whether they fit together.
    pub fn check(&self) -> Result<(), PlanError> {
        let are_long = self.overlap >= SHORTEST_LIFETIME && self.leaf >= SHORTEST_LIFETIME;
        let fits = are_long && self.overlap < self.ca && self.ca <= LONGEST_LIFETIME;
        if fits { Ok(()) } else { Err(PlanError::Lifetimes) }
    }
}

impl AuthorityRole {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Cluster, Self::KubeletServing, Self::FrontProxy];

    /// Name of the Certificate, Secret and Issuer of this CA in [`PKI_NAMESPACE`].
    pub fn object_name(self, id: &ClusterId, generation: Generation) -> String {
        let role = match self {
            Self::Cluster => "ca",
            Self::KubeletServing => "kubelet-ca",
            Self::FrontProxy => "front-proxy-ca",
        };
        format!("{id}-{role}-{generation}")
    }
}

impl Leaf {
    /// A cluster's leaf of this role.
    pub fn new(role: LeafRole, id: &ClusterId) -> Self {
        Self {
            role,
            name: role.object_name(id),
            destination: role.destination(),
        }
    }
}

impl LeafRole {
    /// All roles.
    pub const ALL: [Self; 9] = [
        Self::ApiServer,
        Self::ApiServerKubeletClient,
        Self::FrontProxyClient,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Konnectivity,
        Self::Sleeper,
        Self::Operator,
        Self::Admin,
    ];

    /// The role in words that fit into an object's name; also the name of its copy.
    pub fn name(self) -> &'static str {
        match self {
            Self::ApiServer => "apiserver",
            Self::ApiServerKubeletClient => "apiserver-kubelet-client",
            Self::FrontProxyClient => "front-proxy-client",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Konnectivity => "konnectivity-server",
            Self::Sleeper => "sleeper",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// Name of the Certificate and Secret of this leaf in [`PKI_NAMESPACE`].
    pub fn object_name(self, id: &ClusterId) -> String {
        format!("{id}-{}", self.name())
    }

    /// Where the leaf goes.
    pub fn destination(self) -> Destination {
        match self {
            Self::ApiServer
            | Self::ApiServerKubeletClient
            | Self::FrontProxyClient
            | Self::ControllerManager
            | Self::Scheduler
            | Self::Konnectivity
            | Self::Sleeper => Destination::Hosted,
            Self::Operator => Destination::Operator,
            Self::Admin => Destination::TenantKubeconfig,
        }
    }

    /// The CA that signs it.
    pub fn authority(self) -> AuthorityRole {
        match self {
            Self::FrontProxyClient => AuthorityRole::FrontProxy,
            _ => AuthorityRole::Cluster,
        }
    }
}

#[cfg(test)]
mod tests;
