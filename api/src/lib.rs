//! Types that Yoke's processes share: custom resources, names, labels, conditions, and the
//! ConfigMap that the operator writes for the ingress.
//!
//! ```text
//!  user ──Cluster, Tenant──▶ host API ──▶ operator ──ConfigMap yoke-ingress──▶ ingress-xds
//!                                            │
//!                                            └──Cluster.status──▶ kubectl yoke, user
//! ```
//!
//! This crate is pure data: it does no I/O. `cargo xtask crds` generates the CRDs in `crds/` from
//! these types.

// The KubeSchema derive repeats each type inside a function, and the lint takes that copy for
// unreachable.
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

/// API group of all custom resources of Yoke.
pub const GROUP: &str = "yoke.drzzl.io";
/// Served and stored version of all custom resources of Yoke.
pub const VERSION: &str = "v1alpha1";
