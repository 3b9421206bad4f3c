//! All Issuers and Certificates of one cluster, in [`PKI_NAMESPACE`], computed from facts about the
//! cluster.
//!
//! ```text
//!  yoke-root (R) ──▶ <id>-ca-g<N> (I) ──┬──▶ apiserver, apiserver-kubelet-client,
//!                                       │    kube-controller-manager, kube-scheduler,
//!                                       │    konnectivity-server if enabled,
//!                                       │    sleeper if there are extra names  → control-plane namespace
//!                                       ├──▶ operator                          → operator only
//!                                       └──▶ admin                             → tenant's kubeconfig
//!  yoke-selfsigned ─┬▶ <id>-front-proxy-ca-g<N> (FP) ──▶ front-proxy-client    → control-plane namespace
//!                   └▶ <id>-kubelet-ca-g<N> (K)          the operator signs with it
//! ```
//!
//! K and FP are not under R: a client that trusts R must not accept a kubelet's or an aggregator's
//! certificate. A generation never changes its key. When [`Generations::signing`] changes, the new
//! generation reissues all certificates.
//!
//! # Name constraints
//! I is limited to the cluster's own names, and permits no IP address at all. Go, OpenSSL and
//! webpki agree on the features used here:
//!
//! - A DNS constraint without a leading dot permits the name and all names under it.
//! - Constraints on a type of name do not apply to a certificate without names of that type. So
//!   client certificates without alternative names pass.
//! - OpenSSL also applies the constraints to a common name that looks like a DNS name. All common
//!   names under I contain a colon, so none does.
//!
//! The constraints are fixed when a generation is issued: cert-manager does not reissue a
//! certificate when they change. So I permits the tenant's domains instead of single extra names.
//! [`crate::ParsedCertificate::permits_dns`] tells whether an issued I permits a name, before a
//! certificate for the name is requested.

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

/// Name of the Issuer, Certificate and Secret of the root R. The chart creates them.
pub const ROOT: &str = "yoke-root";
/// Name of the Certificate and Secret of the certificate that the ingress presents to workloads.
/// The chart creates them.
///
/// The CA that signs it, P, is under R. P permits only the base domain, the names that Pods use for
/// their own API, and the first address of each Service range. The ingress can read this
/// certificate's Secret, but not the key of P.
pub const INGRESS_LEAF: &str = "yoke-ingress";
/// Name of the Certificate and Secret for answering under the public names of sleeping clusters. In
/// a control-plane namespace, name of the copy of [`LeafRole::Sleeper`].
pub const SLEEPER_LEAF: &str = "yoke-sleeper";
/// Name of the Issuer with which a CA signs itself. The chart creates it.
pub const SELF_SIGNED_ISSUER: &str = "yoke-selfsigned";
/// User of the operator in tenant clusters.
pub const OPERATOR_USER: &str = "yoke:operator";
/// User of the kubeconfig that a tenant receives.
pub const ADMIN_USER: &str = "yoke:admin";
/// Group of [`ADMIN_USER`]. The operator binds it to cluster-admin.
pub const ADMIN_GROUP: &str = "yoke:cluster-admins";
/// User as which a kube-apiserver calls kubelets.
pub const KUBELET_CLIENT_USER: &str = "yoke:apiserver";
/// Group of [`KUBELET_CLIENT_USER`]. The operator binds it to the kubelet API.
pub const KUBELET_CLIENT_GROUP: &str = "yoke:kubelet-api-admins";
/// Common name that a kube-apiserver presents to aggregated API servers.
pub const FRONT_PROXY_USER: &str = "front-proxy-client";
/// Lifetime of the certificate in a tenant's kubeconfig, unless the overlap is shorter.
pub const KUBECONFIG_LIFETIME: Duration = Duration::from_hours(90 * 24);
/// User of the konnectivity-server, which has the API server review the tokens of agents.
pub const KONNECTIVITY_USER: &str = "yoke:konnectivity-server";
/// Shortest lifetime that cert-manager issues.
pub const SHORTEST_LIFETIME: Duration = Duration::from_hours(1);
/// Longest lifetime of a CA, ten years. Go's durations end at 292 years: a single Certificate with
/// a longer one would prevent cert-manager from reading any Certificate.
pub const LONGEST_LIFETIME: Duration = Duration::from_hours(87_600);

/// Input of the plan of one cluster.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// Identity of the cluster.
    pub id: ClusterId,
    /// Name of the Tenant.
    pub tenant: String,
    /// Name of the Cluster.
    pub cluster: String,
    /// Public name of the cluster, under the base domain.
    pub public_name: PublicName,
    /// Additional names of the API server. Each must be under one of `allowed_domains`.
    pub extra_sans: Vec<String>,
    /// DNS domains of the Tenant.
    pub allowed_domains: Vec<String>,
    /// Whether there is a konnectivity-server. It presents the API server's certificate under a
    /// name of its own.
    pub konnectivity: bool,
    /// Lifetimes of the certificates.
    pub lifetimes: Lifetimes,
    /// Generations of the cluster's CAs.
    pub generations: Generations,
}

/// Number of a generation of a cluster's CAs, starting at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(u32);

/// The generations that exist, and the one that signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generations {
    signing: Generation,
    all: BTreeSet<Generation>,
}

/// Lifetimes of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Lifetime of a CA generation.
    pub ca: Duration,
    /// How long two generations are both trusted. No other certificate lives longer.
    pub overlap: Duration,
    /// Lifetime of certificates that are not CAs.
    pub leaf: Duration,
}

/// The facts do not make a valid plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A duration is not a number of hours.
    #[error("lifetime {0:?} is not a number of hours such as 720h")]
    Duration(String),
    /// The lifetimes do not fit together, or one is too long.
    #[error(
        "lifetimes do not fit together: caOverlap and leafDuration must be at least 1h, caOverlap less than caDuration, \
         and caDuration at most 87600h"
    )]
    Lifetimes,
    /// The Tenant may not have this domain.
    #[error("a tenant may not have the domain {0:?}: use a domain outside the base domain and outside svc and local")]
    Domain(String),
    /// The name is not a hostname, or is not under any of the Tenant's domains.
    #[error("name {0:?} is not a host name under one of the tenant's domains")]
    ExtraName(String),
    /// Generations are numbered from 1.
    #[error("generation 0 is invalid: generations are numbered from 1")]
    Generation,
}

/// A CA of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthorityRole {
    /// I: signs serving and client certificates; under R.
    Cluster,
    /// K: signs the serving certificates of kubelets.
    KubeletServing,
    /// FP: signs the client certificate that is presented to aggregated API servers.
    FrontProxy,
}

/// A certificate of a cluster that is not a CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafRole {
    /// Serving certificate of the kube-apiserver.
    ApiServer,
    /// Client certificate of the kube-apiserver for kubelets.
    ApiServerKubeletClient,
    /// Client certificate of the kube-apiserver for aggregated API servers.
    FrontProxyClient,
    /// Client certificate of the kube-controller-manager.
    ControllerManager,
    /// Client certificate of the kube-scheduler.
    Scheduler,
    /// Client certificate of the konnectivity-server.
    Konnectivity,
    /// Serving certificate with which the ingress answers for the cluster's extra names while the
    /// cluster sleeps.
    Sleeper,
    /// Client certificate of the operator.
    Operator,
    /// Client certificate in the tenant's kubeconfig.
    Admin,
}

/// Where a certificate and its key are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// The control-plane namespace, for the control plane.
    Hosted,
    /// Not copied: the operator reads it in [`PKI_NAMESPACE`].
    Operator,
    /// The kubeconfig in the tenant's namespace.
    TenantKubeconfig,
}

/// One CA of the plan. Its Certificate, Secret and Issuer have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Role of the CA.
    pub role: AuthorityRole,
    /// Generation of the CA.
    pub generation: Generation,
    /// Name of the Certificate, Secret and Issuer in [`PKI_NAMESPACE`].
    pub name: String,
}

/// One certificate of the plan that is not a CA. Its Certificate and Secret have the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Role of the certificate.
    pub role: LeafRole,
    /// Name of the Certificate and Secret in [`PKI_NAMESPACE`].
    pub name: String,
    /// Where the certificate and key are copied to.
    pub destination: Destination,
}

/// The plan of one cluster. Everything has a fixed order: the same facts give the same bytes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Issuers, one for each CA.
    pub issuers: Vec<Issuer>,
    /// Certificates of the CAs, followed by all other Certificates.
    pub certificates: Vec<Certificate>,
    /// Roles of the CAs.
    pub authorities: Vec<Authority>,
    /// Roles and destinations of the other certificates.
    pub leaves: Vec<Leaf>,
}

impl Plan {
    /// Checks the facts and builds the plan.
    pub fn new(facts: &ClusterFacts) -> Result<Self, PlanError> {
        facts.lifetimes.check()?;
        names::check(facts)?;
        Ok(build::build_plan(facts))
    }

    /// The CAs of `role`, oldest generation first. Verifiers must trust all of them.
    pub fn trusted(&self, role: AuthorityRole) -> impl Iterator<Item = &Authority> {
        self.authorities.iter().filter(move |authority| authority.role == role)
    }

    /// The certificates that are copied to `destination`.
    pub fn leaves_for(&self, destination: Destination) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().filter(move |leaf| leaf.destination == destination)
    }

    /// Names of all Secrets in [`PKI_NAMESPACE`]. They outlive their Certificates, so they must be
    /// deleted by name.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let authorities = self.authorities.iter().map(|authority| authority.name.as_str());
        authorities.chain(self.leaves.iter().map(|leaf| leaf.name.as_str()))
    }
}

impl ClusterFacts {
    /// Labels of all objects in the plan, and of the Secrets made from them.
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

    /// Name in the API server's certificate that the ingress and the operator verify.
    pub fn upstream_name(&self) -> String {
        self.id.hosted_namespace().upstream_name(&self.cluster)
    }
}

impl Generation {
    /// The first generation.
    pub const FIRST: Self = Self(1);

    /// The generation with this number.
    pub fn new(number: u32) -> Result<Self, PlanError> {
        if number == 0 {
            Err(PlanError::Generation)
        } else {
            Ok(Self(number))
        }
    }

    /// Number of the generation.
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
    /// `signing` signs certificates. `others` exist and are trusted: the previous generation, or
    /// the next one before it signs.
    pub fn new(signing: Generation, others: impl IntoIterator<Item = Generation>) -> Self {
        let mut all: BTreeSet<_> = others.into_iter().collect();
        all.insert(signing);
        Self { signing, all }
    }

    /// Only the first generation.
    pub fn first() -> Self {
        Self::new(Generation::FIRST, [])
    }

    /// The generation that signs certificates.
    pub fn signing(&self) -> Generation {
        self.signing
    }

    /// All generations, oldest first.
    pub fn all(&self) -> impl Iterator<Item = Generation> {
        self.all.iter().copied()
    }
}

impl Lifetimes {
    /// The lifetimes that a Cluster's spec requests.
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

    /// Lifetime of a certificate of `role`.
    pub fn of(&self, role: LeafRole) -> Duration {
        let asked = match role {
            LeafRole::Admin => KUBECONFIG_LIFETIME,
            _ => self.leaf,
        };
        asked.min(self.overlap)
    }

    /// Lifetime of a kubelet's certificate. A client certificate lives as long as the one in a
    /// kubeconfig, a serving certificate as long as those of the control plane.
    pub fn of_kubelet(&self, purpose: Use) -> Duration {
        match purpose {
            Use::Client => KUBECONFIG_LIFETIME.min(self.overlap),
            Use::Server => self.leaf.min(self.overlap),
        }
    }

    /// Checks that the lifetimes fit together.
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
    /// The certificate of this role of the cluster `id`.
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

    /// Name of the role as part of an object's name; also the name of its copy.
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

    /// Name of the Certificate and Secret of this role in [`PKI_NAMESPACE`].
    pub fn object_name(self, id: &ClusterId) -> String {
        format!("{id}-{}", self.name())
    }

    /// Where the certificate and key are copied to.
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

    /// The CA that signs the certificate.
    pub fn authority(self) -> AuthorityRole {
        match self {
            Self::FrontProxyClient => AuthorityRole::FrontProxy,
            _ => AuthorityRole::Cluster,
        }
    }
}

#[cfg(test)]
mod tests;
