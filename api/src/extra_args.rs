//! The arguments of control-plane components that a tenant may set. Whatever is not listed here is refused: a tenant
//! who could set any flag would own the host or a neighbour.

/// kube-apiserver flags that a tenant may set, without the leading dashes.
///
/// OIDC: <https://kubernetes.io/docs/reference/access-authn-authz/authentication/#openid-connect-tokens>. No flag that
/// names a file, an address, an admission plugin or a trust anchor is ever added to this list.
pub const API_SERVER: &[&str] = &[
    "audit-log-format",
    "default-not-ready-toleration-seconds",
    "default-unreachable-toleration-seconds",
    "event-ttl",
    "oidc-client-id",
    "oidc-groups-claim",
    "oidc-groups-prefix",
    "oidc-issuer-url",
    "oidc-required-claim",
    "oidc-username-claim",
    "oidc-username-prefix",
];

/// kube-controller-manager flags that a tenant may set, without the leading dashes.
pub const CONTROLLER_MANAGER: &[&str] = &["node-monitor-grace-period", "terminated-pod-gc-threshold"];

/// kube-scheduler flags that a tenant may set, without the leading dashes.
pub const SCHEDULER: &[&str] = &["v"];
