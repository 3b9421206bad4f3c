//! Names of objects that the chart creates, and of users and groups in tenant clusters.

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
/// a control-plane namespace, name of the copy of [`LeafRole::Sleeper`](super::LeafRole::Sleeper).
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
/// User of the konnectivity-server, which has the API server review the tokens of agents.
pub const KONNECTIVITY_USER: &str = "yoke:konnectivity-server";
