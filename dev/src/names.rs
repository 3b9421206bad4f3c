//! Pure: names and ports that several parts of the stack share.

/// Name of the first node, and prefix of the other nodes' names.
pub const NODE_NAME: &str = "yoke-host";
/// Port of the host's kube-apiserver.
pub const HOST_API_PORT: u16 = 6443;
/// Namespace of Yoke's own processes.
pub const NAMESPACE: &str = "yoke-system";
/// Domain of every tenant cluster's public name.
pub const BASE_DOMAIN: &str = "yoke.test";
/// Port of the ingress.
pub const INGRESS_PORT: u16 = 443;
/// Name of the demo tenant and of its cluster.
pub const DEMO: &str = "demo";
