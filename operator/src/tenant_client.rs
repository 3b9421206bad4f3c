//! Client of tenants' own APIs: readiness, base objects, number of Nodes.
//!
//! The client dials the ClusterIP of the control plane's Service and verifies the name in the
//! certificate, so it needs no DNS. To prove that a kubeconfig works, it also dials the ingress by
//! address, with the public name as TLS server name.
//!
//! Tenants write the objects in their APIs, and may be hostile. Every object is therefore decoded
//! as [`Lenient`](yoke_api::Lenient), or only its needed fields are decoded.

mod access;
mod addons;
mod api;
mod apply_base;
pub(crate) mod base_objects;
pub(crate) mod bootstrap;
mod clients;
mod connection;
mod error;
mod groups;
pub(crate) mod kubelet_versions;
mod limits;
pub(crate) mod line_limit;
pub(crate) mod node_admission_policy;
pub(crate) mod node_leases;
mod object;
pub(crate) mod paged_list;
mod readiness;
pub(crate) mod watch;
mod webhooks;

pub use crate::tenant_client::access::{Access, Secret, Way};
pub use crate::tenant_client::addons::Foreign;
pub use crate::tenant_client::api::TenantApi;
pub use crate::tenant_client::base_objects::{BaseObjects, build_base};
pub use crate::tenant_client::bootstrap::BootstrapToken;
pub use crate::tenant_client::clients::TenantApis;
pub use crate::tenant_client::error::TenantApiError;
pub(crate) use crate::tenant_client::node_admission_policy::is_marked;
pub(crate) use crate::tenant_client::node_leases::{NODES_MAX, TAINTS_MAX};
