//! The vocabulary that Yoke's processes share: custom resources, names, labels, conditions, and the one
//! ConfigMap by which the operator tells the ingress about a cluster.
//!
//! ```text
//!  person ──Cluster, Tenant──▶ host API ──▶ operator ──ConfigMap yoke-ingress──▶ ingress-xds
//!                                             │
//!                                             └──Cluster.status──▶ kubectl yoke, person
//! ```
//!
//! Everything here is pure data. The CRDs in `crds/` are generated from these types by `cargo xtask crds`.

// The KubeSchema derive repeats a type inside a function, where the lint takes it for unreachable.
#![allow(unreachable_pub)]

pub mod addons;
pub mod cluster;
pub mod condition;
pub mod extra_args;
pub mod ingress;
pub mod join_token;
pub mod labels;
pub mod lenient;
pub mod names;
pub mod network;
pub mod sleep;
pub mod tenant;
pub mod time;
pub mod usage;
pub mod version;
pub mod workers;

pub use cluster::{Cluster, ClusterSpec, ClusterStatus};
pub use condition::{ConditionType, Reason};
pub use join_token::{JoinToken, JoinTokenSpec, JoinTokenStatus};
pub use lenient::Lenient;
pub use names::{ClusterId, HostedNamespace, PublicName};
pub use network::Cidr;
pub use tenant::{Tenant, TenantSpec, TenantStatus};
pub use version::KubernetesVersion;

/// The API group of every custom resource of Yoke.
pub const GROUP: &str = "yoke.drzzl.io";
/// The served and stored version of every custom resource of Yoke.
pub const VERSION: &str = "v1alpha1";
